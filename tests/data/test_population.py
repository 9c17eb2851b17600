import pickle
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.data import EpisodeShape, VirtualPopulation

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
