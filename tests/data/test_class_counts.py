"""Which classes a client holds, by name, without a look at what is in them."""

from collections import Counter

import numpy as np
import pytest
from own_data import write_clients

from dpfedmeta.analytics.client_answers import check_named, holdings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.disjoint import DisjointPopulation, ShardPopulation
from dpfedmeta.data.populations.natural import RealPopulation
from dpfedmeta.data.populations.population import VirtualPopulation

SHAPE = EpisodeShape(ways=3, shots=1, queries=2)


@pytest.mark.parametrize("most_shots", [None, 6])
def test_simulated_clients_hold_their_episode_by_name(tiny_strokes, most_shots):
    pool = tiny_strokes.train
    clients = VirtualPopulation(pool=pool, shape=SHAPE, clients=40, seed=3, most_shots=most_shots)
    for client in range(12):
        episode, held = clients.episode(client), holdings(clients, client)
        assert sum(held.values()) == len(episode.support_labels) + len(episode.query_labels)
        for label, index in enumerate(clients.classes_of(client)):
            # An image of this label is one of this class, turned or not.
            image = episode.support_images[episode.support_labels == label][0].numpy()
            own = pool.images[pool.first[index] : pool.first[index] + pool.counts[index]].astype(np.float32)
            turned = [np.rot90(pool.standardised(own.copy()), turn, axes=(2, 3)) for turn in range(4)]
            assert any(np.allclose(image, each, atol=1e-5) for turn in turned for each in turn)
            assert pool.names[index] in held


def test_sorted_shards_hold_what_they_are_cut_from(tiny_strokes):
    clients = ShardPopulation(pool=tiny_strokes.train, records=20, clients=10, seed=0)
    labels = Counter(clients.episode(4).support_labels.tolist())
    assert holdings(clients, 4) == {tiny_strokes.train.names[label]: count for label, count in labels.items()}


def test_clients_of_the_data_hold_all_that_is_theirs(tmp_path):
    root = write_clients(tmp_path / "mine", [f"client{number:02d}" for number in range(12)])
    pool = open_dataset(str(root), None, 3).train
    clients = RealPopulation(pool=pool, shape=SHAPE, clients=len(set(pool.clients)), seed=1)
    held = [holdings(clients, client) for client in range(clients.clients)]
    assert all(sorted(own.values()) == [4, 4, 4] for own in held)
    assert Counter(name for own in held for name in own) == Counter(pool.names)
    # One that holds too little for an episode holds something all the same.
    greedy = RealPopulation(pool=pool, shape=EpisodeShape(ways=3, shots=9, queries=9), clients=clients.clients, seed=1)
    assert holdings(greedy, 0) == held[0]


def test_clients_without_names_are_counted_and_not_named(tiny_strokes):
    clients = DisjointPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=4, seed=0)
    assert sorted(holdings(clients, 1).values()) == [3, 3, 3]
    with pytest.raises(InputError, match="keep no names"):
        check_named(clients)
