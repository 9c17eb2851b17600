import pickle
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.disjoint import ShardPopulation
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.population import VirtualPopulation, open_population
from dpfedmeta.data.populations.population_statement import asked_statement, population_statement
from tests.data.own_data import read_back

SHAPE = EpisodeShape(ways=3, shots=2, queries=2)


@pytest.fixture
def population(tiny_strokes):
    return VirtualPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=400_000, seed=7)


def same(one, two):
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in vars(one))


def test_a_client_always_holds_the_same_data(population):
    first = population.episode(123_456)
    population.episode(5)
    assert same(first, population.episode(123_456))
    assert same(first, pickle.loads(pickle.dumps(population)).episode(123_456))


def test_a_clients_data_do_not_depend_on_the_number_of_clients(population):
    assert same(population.episode(17), replace(population, clients=18).episode(17))


def test_clients_differ(population):
    episodes = [population.episode(client) for client in (*range(50), 399_999)]
    distinct = {episode.support_images.numpy().tobytes() for episode in episodes}
    assert len(distinct) == len(episodes)


def test_seeds_differ(population):
    assert not same(population.episode(1), replace(population, seed=8).episode(1))


@pytest.mark.parametrize("client", [-1, 400_000, 10**12])
def test_there_is_no_such_client(population, client):
    with pytest.raises(IndexError, match="population of 400000"):
        population.episode(client)


@pytest.mark.parametrize("clients", [400_000, 10**10])
def test_many_clients_cost_neither_time_nor_memory(tiny_strokes, clients):
    tiny_strokes.train.images  # noqa: B018 - mapped before the clock starts
    tracemalloc.start()
    started = time.perf_counter()
    population = VirtualPopulation(pool=tiny_strokes.train, shape=SHAPE, clients=clients, seed=0)
    first, last = population.episode(0), population.episode(clients - 1)
    seconds = time.perf_counter() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert not same(first, last)
    assert seconds < 1.0
    assert peak < 2_000_000
    assert len(pickle.dumps(population)) < 10_000


def test_no_image_is_read_before_a_client_is_asked(tiny_strokes, tmp_path):
    absent = replace(tiny_strokes.train, path=tmp_path / "absent.npy")
    population = VirtualPopulation(pool=absent, shape=SHAPE, clients=10, seed=0)
    with pytest.raises(FileNotFoundError):
        population.episode(0)


def test_images_are_mapped_not_loaded(tiny_strokes):
    assert isinstance(tiny_strokes.train.images, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        tiny_strokes.train.images[0] = 0


def test_clients_hold_training_classes_only(population, tiny_strokes):
    pools = (tiny_strokes.train, tiny_strokes.val, tiny_strokes.test)
    firsts = [set(pool.first) for pool in pools]
    assert not firsts[0] & firsts[1]
    assert not firsts[0] & firsts[2]
    assert not firsts[1] & firsts[2]
    held_out = {
        np.rot90(tiny_strokes.test.images[first + slot, 0], turn).tobytes()
        for first in tiny_strokes.test.first
        for slot in range(20)
        for turn in range(4)
    }
    for client in range(30):
        drawn = (population.episode(client).support_images * 255).round().to(torch.uint8).numpy()
        assert not {image.tobytes() for image in drawn[:, 0]} & held_out


def test_clients_of_unequal_size(population, tiny_strokes):
    unequal = replace(population, most_shots=5)
    shots = [len(unequal.episode(client).support_labels) // 3 for client in range(200)]
    assert set(shots) == {2, 3, 4, 5}
    assert min(shots.count(number) for number in range(2, 6)) > 25
    assert {len(unequal.episode(client).query_labels) for client in range(20)} == {6}
    assert same(unequal.episode(9), unequal.episode(9))


@pytest.mark.parametrize(
    ("kind", "clients", "most_shots", "reason"),
    [
        # 12 classes of 20 drawings: 5 blocks of 4 each, 3 a client.
        ("disjoint", 21, None, r"240 images make at most 20 clients of 3 classes with 4 images; use --clients 20"),
        ("natural", 1, None, "natural.*needs omniglot"),
        ("disjoint", 5, 4, "most_shots needs population.kind = virtual"),
        ("virtual", 5, 1, "most_shots = 1 is less than task.shots = 2"),
        ("virtual", 5, 19, "19 shots . 2 queries = 21 images per class"),
    ],
)
def test_what_the_images_do_not_make_is_refused(tiny_strokes, kind, clients, most_shots, reason):
    with pytest.raises(InputError, match=reason):
        open_population(kind, tiny_strokes.train, SHAPE, clients, 0, most_shots)


def test_the_statement_counts_how_often_an_image_recurs(tiny_strokes):
    small = EpisodeShape(ways=3, shots=2, queries=2)
    population = open_population("virtual", tiny_strokes.train, small, 400, 0)
    statement = population_statement(population, published=True)
    assert (statement.clients, statement.records, statement.images) == (400, 4800, 240)
    held = [
        {image.tobytes() for turn in range(4) for image in np.rot90(images, turn, axes=(2, 3))}
        for client in range(400)
        for episode in [population.episode(client)]
        for images in [np.concatenate([episode.support_images.numpy(), episode.query_images.numpy()])]
    ]
    image = (np.asarray(tiny_strokes.train.images[:240], dtype=np.float32) / 255)[:, :, :, :]
    counted = np.mean([sum(one.tobytes() in content for content in held) for one in image])
    assert statement.clients_per_image == pytest.approx(counted, rel=0.02) == 20.0
    assert "an image recurs in 20 clients on average, so a client is a simulated one," in statement.text
    assert read_back(statement) == statement


def test_the_statement_of_other_kinds(tiny_strokes):
    disjoint = population_statement(open_population("disjoint", tiny_strokes.train, SHAPE, 10, 0), published=True)
    assert (disjoint.kind, disjoint.records, disjoint.clients_per_image) == ("disjoint", 120, 0.5)
    assert "each image is in at most one client" in disjoint.text
    unequal = population_statement(open_population("virtual", tiny_strokes.train, SHAPE, 10, 0, 5), published=True)
    assert unequal.records == 10 * 3 * (2 + 5 + 4) // 2
    own = population_statement(from_pairs([], SHAPE))
    assert (own.kind, own.clients, own.images) == ("own", 0, None)
    assert "\n" not in disjoint.text + unequal.text + own.text
    shards = [
        population_statement(
            ShardPopulation(pool=tiny_strokes.train, records=20, clients=clients, seed=0), published=True
        )
        for clients in (3, 400)
    ]
    for each in (disjoint, unequal, own, asked_statement(7), *shards):
        assert read_back(each) == each


@pytest.mark.slow  # all of it is unpacked
@pytest.mark.data
def test_natural_clients_of_omniglot(data_folder):
    pool = open_dataset("omniglot", data_folder).train
    with pytest.raises(InputError, match="at most 420 clients"):
        open_population("natural", pool, EpisodeShape(ways=5, shots=5, queries=5), 421, 0)
    population = open_population("natural", pool, EpisodeShape(ways=5, shots=5, queries=5), 420, 0)
    assert population.episode(419).support_images.shape == (25, 1, 28, 28)
