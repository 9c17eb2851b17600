"""Records that a device makes are those of the host, bit for bit; the CPU is a device too."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.data.episodes import gpu_sampling as device_drawing
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import chosen_of
from dpfedmeta.data.episodes.gpu_sampling import drawn, drawn_there
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.disjoint import DisjointPopulation
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.simulation.client_runner import ClientRunner
from tests.simulation.test_devices import DEVICES
from tests.simulation.test_worker_backend import setting

CPU, SHAPE = torch.device("cpu"), EpisodeShape(ways=3, shots=2, queries=2)
PARTS = ("support_images", "support_labels", "query_images", "query_labels")


def pool_of(folder, *, height=6, width=6, channels=3, **more):
    """Every pixel of every image another one, as far as bytes go."""
    images = np.random.default_rng(0).integers(0, 256, (40, channels, height, width), dtype=np.uint8)
    np.save(folder / "images.npy", images)
    given = {"rotations": 4, "flip": True, "mean": (0.5,) * channels, "deviation": (0.3,) * channels, **more}
    return ClassPool(
        path=folder / "images.npy",
        names=tuple("abcde"),
        first=(0, 8, 16, 24, 32),
        counts=(8,) * 5,
        **given,
    )


def check_same(population, clients=12, device=CPU):
    found = list(drawn([population.chosen(client) for client in range(clients)], device))
    assert len(found) == clients
    for client, episode in enumerate(found):
        for part in PARTS:
            assert torch.equal(getattr(episode, part).cpu(), getattr(population.episode(client), part)), (client, part)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("most", [None, 5])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"flip": False},
        {"rotations": 1},
        {"flip": False, "rotations": 1, "mean": (), "deviation": ()},
        {"shift": 3},
        {"shift": 5, "flip": False, "rotations": 1},
    ],
)
def test_turned_mirrored_and_standardised_alike(tmp_path, monkeypatch, given, most, device):
    monkeypatch.setattr(device_drawing, "_MOST_VALUES", 4 * SHAPE.ways * 4 * 3 * 36)
    pool = pool_of(tmp_path, **given)
    check_same(
        VirtualPopulation(pool=pool, shape=SHAPE, clients=12, seed=3, most_shots=most), device=torch.device(device)
    )


def test_images_that_are_no_squares_are_mirrored_and_never_turned(tmp_path):
    pool = pool_of(tmp_path, height=4, width=7, rotations=1)
    check_same(VirtualPopulation(pool=pool, shape=SHAPE, clients=12, seed=3))
    check_same(VirtualPopulation(pool=replace(pool, shift=3), shape=SHAPE, clients=12, seed=3))
    slots = [np.arange(4)] * 3
    with pytest.raises(ValueError, match="4 x 7 pixels cannot be turned"):
        list(drawn([chosen_of(pool, SHAPE, range(3), slots, [0, 1, 0])], CPU))
    outside = replace(pool, first=(0, 8, 38, 24, 32))
    with pytest.raises(IndexError, match="41 of a pool of 40"):
        list(drawn([chosen_of(outside, SHAPE, range(3), slots, [0] * 3)], CPU))


def test_clients_whose_images_are_moved_beside_those_whose_are_not(tmp_path):
    plain = VirtualPopulation(pool=pool_of(tmp_path), shape=SHAPE, clients=12, seed=3)
    moved = replace(plain, pool=replace(plain.pool, shift=2))
    found = list(drawn([plain.chosen(0), moved.chosen(1), plain.chosen(2)], CPU))
    for episode, expected in zip(found, (plain.episode(0), moved.episode(1), plain.episode(2)), strict=True):
        assert torch.equal(episode.query_images, expected.query_images)


def test_other_populations_choose_alike(tmp_path):
    check_same(DisjointPopulation(pool=pool_of(tmp_path), shape=SHAPE, clients=3, seed=1), clients=3)


def test_numbers_are_not_images(tmp_path):
    np.save(tmp_path / "images.npy", np.zeros((40, 5), dtype=np.float32))
    pool = replace(pool_of(tmp_path), path=tmp_path / "numbers.npy")
    np.save(tmp_path / "numbers.npy", np.zeros((40, 5), dtype=np.float32))
    assert not drawn_there(pool, CPU)
    assert drawn_there(pool_of(tmp_path), CPU)


@pytest.mark.parametrize("algo", ["dp-agr", "dp-agrlr-micro"])
def test_a_round_whose_records_the_device_makes_is_the_same(tiny_strokes, monkeypatch, algo):
    _, clients, model = setting(tiny_strokes, algo)
    expected = clients.clipped_sum(model, 0.1, 0, [1, 2, 3])
    monkeypatch.setattr(ClientRunner, "draws_there", True)
    found = clients.clipped_sum(model, 0.1, 0, [1, 2, 3])
    assert torch.equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_who_holds_too_little_counts_as_before_and_who_is_nobody_is_an_error(tiny_strokes, monkeypatch):
    _, clients, _ = setting(tiny_strokes, "dp-agr")
    whole = VirtualPopulation.chosen

    def chosen(self, client):
        if client == 2:
            raise ValueError("it holds too little")
        return whole(self, client)

    monkeypatch.setattr(VirtualPopulation, "chosen", chosen)
    monkeypatch.setattr(ClientRunner, "draws_there", True)
    assert [held is None for held in clients.held_by([1, 2, 3])] == [False, True, False]
    with pytest.raises(IndexError, match="client 1000"):
        clients.held_by([1, 1000])


def test_a_population_that_inherits_may_hold_anything(tiny_strokes, monkeypatch):
    _, clients, _ = setting(tiny_strokes, "dp-agr")
    monkeypatch.setattr(ClientRunner, "draws_there", True)

    class Own(VirtualPopulation):
        def episode(self, client):
            return super().episode(client + 1)

    population = clients.population
    own = Own(pool=population.pool, shape=population.shape, clients=1000, seed=0)
    (held,) = replace(clients, population=own).held_by([1])
    assert torch.equal(held.support_images, population.episode(2).support_images)
