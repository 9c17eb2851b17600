from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.populations.disjoint import ShardPopulation


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """4 classes of 20, 30, 25 and 25 images; a pixel says which image it is."""
    path = tmp_path_factory.mktemp("pool") / "images.npy"
    numbers = np.arange(110, dtype=np.uint8)[:, None, None, None]
    np.save(path, np.broadcast_to(numbers, (110, 1, 8, 8)))
    # 10 images of the file belong to nobody here.
    return ClassPool(path=path, names=tuple("abcd"), first=(0, 20, 60, 85), counts=(20, 30, 25, 25))


def population(pool, **changes):
    return ShardPopulation(**{"pool": pool, "records": 10, "clients": 25, "seed": 3, **changes})


def numbers(episode):
    return (episode.support_images[:, 0, 0, 0] * 255).round().long().tolist()


def test_one_deal_uses_every_image_once(pool):
    dealt = population(pool)
    assert dealt.clients_per_deal == 10
    held = [number for client in range(10) for number in numbers(dealt.episode(client))]
    assert sorted(held) == [*range(50), *range(60, 110)]


def test_later_deals_shuffle_the_shards_anew(pool):
    dealt = population(pool)
    second = [number for client in range(10, 20) for number in numbers(dealt.episode(client))]
    assert sorted(second) == [*range(50), *range(60, 110)]
    assert numbers(dealt.episode(0)) != numbers(dealt.episode(10))


def test_labels_are_those_of_the_images_and_a_client_holds_few_classes(pool):
    ends = np.array([20, 60, 85, 110])
    for client in range(25):
        episode = population(pool).episode(client)
        wanted = np.searchsorted(ends, numbers(episode), side="right")
        assert episode.support_labels.tolist() == wanted.tolist()
        assert len(episode.support_labels) == 10
        assert len(episode.query_labels) == 0
        assert len(set(wanted.tolist())) <= 4


def test_a_client_always_holds_the_same(pool):
    assert numbers(population(pool).episode(7)) == numbers(population(pool, clients=10**9).episode(7))
    assert numbers(population(pool).episode(7)) != numbers(population(pool, seed=4).episode(7))


def test_far_clients_cost_nothing(pool):
    far = population(pool, clients=10**10).episode(10**10 - 1)
    assert len(far.support_labels) == 10


@pytest.mark.parametrize("records", [7, 300])
def test_records_that_are_not_two_shards(pool, records):
    with pytest.raises(InputError, match=f"population.records = {records}"):
        population(pool, records=records)


def test_there_is_no_such_client(pool):
    with pytest.raises(IndexError, match="population of 25"):
        population(pool).episode(25)


def test_pixels_are_standardised_like_those_of_episodes(pool):
    plain, _ = pool.records_at(np.array([0, 99]))
    made, _ = replace(pool, mean=(0.5,), deviation=(0.25,)).records_at(np.array([0, 99]))
    assert torch.allclose(torch.from_numpy(made), (torch.from_numpy(plain) - 0.5) / 0.25)
