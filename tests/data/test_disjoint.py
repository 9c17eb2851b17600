import pickle
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation
from dpfedmeta.data.populations.population_statement import population_statement
from tests.data.own_data import read_back

SHAPE = EpisodeShape(ways=3, shots=2, queries=1)


def numbered_pool(folder, counts, groups=(), rotations=1):
    """Image number i of the array carries i in its centre pixels, whatever its rotation."""
    total = sum(counts)
    images = np.zeros((total, 1, 8, 8), dtype=np.uint8)
    for number in range(total):
        images[number, 0, 3:5, 3:5] = number % 250 + 1
        images[number, 0, [0, 0, 7, 7], [0, 7, 0, 7]] = number // 250 + 1
    path = folder / f"numbered{total}.npy"
    np.save(path, images)
    return ClassPool(
        path=path,
        names=tuple(map(str, range(len(counts)))),
        first=tuple(np.cumsum([0, *counts[:-1]]).tolist()),
        counts=tuple(counts),
        groups=groups,
        rotations=rotations,
    )


def numbers(images):
    values = (images * 255).round().int()
    return (values[:, 0, 3, 3] - 1 + 250 * (values[:, 0, 0, 0] - 1)).tolist()


def class_of(pool, number):
    return int(np.searchsorted(pool.first, number, side="right")) - 1


def assert_sound(population, shape):
    """Right sizes, one class per label, and no image in two clients. Returns how often each class was taken."""
    pool, seen, taken = population.pool, set(), Counter()
    for client in range(population.clients):
        episode = population.episode(client)
        support, query = numbers(episode.support_images), numbers(episode.query_images)
        assert (len(support), len(query)) == (shape.support_records, shape.query_records)
        assert not seen & {*support, *query}
        assert len({*support, *query}) == len(support) + len(query)
        seen |= {*support, *query}
        labels = episode.support_labels.tolist() + episode.query_labels.tolist()
        classes = {(label, class_of(pool, n)) for label, n in zip(labels, support + query, strict=True)}
        assert len(classes) == len({index for _, index in classes}) == shape.ways
        taken.update(index for _, index in classes)
    return taken


@pytest.mark.parametrize(
    ("counts", "most"),
    [
        ([9] * 6, 6),  # 3 blocks of 3 images each: 18 blocks, 3 a client
        ([9] * 3, 3),
        ([30, 3, 3, 3], 1),  # one class cannot serve a client twice
        ([30, 30, 3, 3], 2),
        ([30, 30, 30, 2], 10),
        ([12, 9, 6, 5, 3], 3),
        ([2, 2, 2], 0),
    ],
)
@pytest.mark.parametrize("rotations", [1, 4])
def test_as_many_clients_as_the_images_make_share_no_image(tmp_path, counts, most, rotations):
    pool = numbered_pool(tmp_path, counts, rotations=rotations)
    population = DisjointPopulation(pool=pool, shape=SHAPE, clients=most, seed=1)
    assert population.most_clients() == most
    assert_sound(population, SHAPE)


def test_a_small_population_is_dealt_evenly_and_mixes_classes(tmp_path):
    pool = numbered_pool(tmp_path, [30] * 12)
    population = DisjointPopulation(pool=pool, shape=SHAPE, clients=40, seed=0)
    taken = assert_sound(population, SHAPE)
    assert set(taken.values()) == {10}
    companies = {
        frozenset(class_of(pool, n) for n in numbers(population.episode(client).support_images)) for client in range(40)
    }
    assert len(companies) > 30


def same(one, two):
    return all(torch.equal(getattr(one, name), getattr(two, name)) for name in vars(one))


@pytest.mark.parametrize("kind", [DisjointPopulation, NaturalPopulation])
def test_a_client_always_holds_the_same_data_in_every_process(tmp_path, kind):
    pool = numbered_pool(tmp_path, [9] * 8, groups=("a",) * 4 + ("b",) * 4)
    population = kind(pool=pool, shape=SHAPE, clients=5, seed=3)
    first = population.episode(4)
    assert same(first, pickle.loads(pickle.dumps(population)).episode(4))
    assert not same(first, replace(population, seed=4).episode(4))
    for client in (-1, 5):
        with pytest.raises(IndexError, match="population of 5"):
            population.episode(client)


def test_natural_clients_hold_one_alphabet_by_the_same_drawers(tmp_path):
    groups = ("greek",) * 7 + ("latin",) * 3 + ("rune",) * 2
    pool = numbered_pool(tmp_path, [10] * 12, groups=groups, rotations=4)
    population = NaturalPopulation(pool=pool, shape=SHAPE, clients=9, seed=0)
    # 10 drawers make 3 groups of 3; 7 and 3 characters make 2 and 1 groups of 3; 2 make none.
    assert population.most_clients() == 3 * (2 + 1)
    assert read_back(population_statement(population)) == population_statement(population)
    assert_sound(population, SHAPE)
    companies = set()
    for client in range(9):
        episode = population.episode(client)
        support, query = numbers(episode.support_images), numbers(episode.query_images)
        assert len({groups[class_of(pool, n)] for n in support + query}) == 1
        drawers = [{n % 10 for n in support[2 * way : 2 * way + 2]} | {query[way] % 10} for way in range(3)]
        assert drawers[0] == drawers[1] == drawers[2]
        assert len(drawers[0]) == 3
        companies.add(frozenset(class_of(pool, n) for n in support))
    assert len(companies) > 3


def test_natural_clients_need_to_know_the_authors(tmp_path):
    with pytest.raises(InputError, match=r"natural.*needs omniglot"):
        NaturalPopulation(pool=numbered_pool(tmp_path, [9] * 3), shape=SHAPE, clients=1, seed=0)
