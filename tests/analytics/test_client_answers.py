"""Answers of single clients, against what their model gives them."""

import math
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from dpfedmeta.analytics.client_answers import HeldImages, HeldNames, Holding, check_named, holdings
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import flatten
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation, ShardPopulation
from dpfedmeta.data.populations.from_records import RecordsPopulation
from dpfedmeta.data.populations.population import VirtualPopulation
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.run_plan import make_plan

WHOLE = {
    "population.episodes": "whole", "population.kind": "natural", "population.clients": "60", "task.most_ways": "5",
    "population.cohort": "6", "server.rounds": "2", "model.name": "mlp", "model.width": "4", "meta.steps": "2",
    "meta.learn": "body",
}  # fmt: skip


def test_a_whole_client_is_judged_by_the_outputs_of_its_own_classes():
    plan = make_plan(resolve("maml", "omniglot", None, WHOLE), load_task("omniglot")[0])
    bright = np.repeat([0.0, 1.0], 6).astype(np.float32)[:, None, None, None] * np.ones((1, 1, 28, 28), np.float32)
    population = RecordsPopulation(held={"ann": (bright, [0] * 6 + [1] * 6)}, shape=plan.whole, seed=0)
    held = HeldImages(plan=plan, population=population)
    initial = plan.algorithm.initial(plan.network, 0)
    # A head that learned that everything is the fifth class, which this client does not have.
    initial["head.bias"] = torch.tensor([0.0, 0.0, 0.0, 0.0, 100.0])
    before, after = held.accuracies(0, flatten(initial).numpy().astype("<f4").tobytes())
    assert before == 0.5
    assert after >= 0.5


def episode(support, query):
    return SimpleNamespace(support_labels=np.array(support), query_labels=np.array(query))


class Natural:
    """Clients that hold more than an episode."""

    def holdings(self, client):
        return {"a": client, "b": 2}


def test_clients_that_hold_more_than_an_episode_say_all_of_it():
    assert holdings(Natural(), 7) == {"a": 7, "b": 2}


@pytest.mark.parametrize("kind", ["virtual", "shards", "of another kind"])
def test_clients_of_a_simulation_hold_both_parts_of_their_episode(kind):
    """Support and query records alike, by the names of their own classes."""
    pool = SimpleNamespace(names=["ape", "bee", "cat", "dog"], classes=4)
    spec = {"virtual": VirtualPopulation, "shards": ShardPopulation}.get(kind)
    population = Mock(spec=spec) if spec else Mock(spec=["episode", "pool", "classes_of"])
    population.pool = pool
    population.episode = lambda client: episode([0, 0, 1], [1, 2, 2, 2]) if client == 3 else episode([0], [0])
    population.classes_of = lambda client: [2, 0, 3] if client == 3 else [1]
    found = {
        "virtual": {"cat": 2, "ape": 2, "dog": 3},
        "shards": {"ape": 2, "bee": 2, "cat": 3},
        "of another kind": {"0": 2, "1": 2, "2": 3},
    }
    assert holdings(population, 3) == found[kind]


@pytest.mark.parametrize(
    ("kind", "words"),
    [(DisjointPopulation, "population.kind: these"), (NaturalPopulation, "population.kind: these"),
     (None, "a population: these"), (VirtualPopulation, None), (ShardPopulation, None), ("holds more", None)],
)  # fmt: skip
def test_only_clients_of_whose_classes_somebody_knows_the_names_are_asked_for_names(kind, words):
    population = Natural() if kind == "holds more" else Mock(spec=kind or ["episode"])
    if kind in (DisjointPopulation, NaturalPopulation):
        population = object.__new__(kind)
        if isinstance(population, Holding):
            words = None
    if words is None:
        check_named(population)
    else:
        with pytest.raises(InputError, match=words):
            check_named(population)


class Unreadable:
    def __init__(self, error):
        self.error = error

    def holdings(self, client):
        raise self.error


def test_data_that_cannot_be_read_are_none_and_no_error():
    """Whatever it is: an error would tell the server of them. Memory that lacks is no property of anybody's data."""
    for error in (ValueError("x"), OSError("x"), KeyError("x"), ZeroDivisionError()):
        held = HeldImages(plan=None, population=Unreadable(error))
        assert held.holdings(3) == held.names(3) == {}
    with pytest.raises(MemoryError):
        HeldImages(plan=None, population=Unreadable(MemoryError())).holdings(3)


def test_names_of_a_file_are_those_of_the_clients_own_line():
    held = HeldNames(lines=[{"a": 1}, {"b": 2, "c": 1}, {}])
    assert [held.names(client) for client in range(3)] == [{"a": 1}, {"b": 2, "c": 1}, {}]
    assert (held.holdings(1), held.message_norm(1), held.accuracies(1, b"")) == ({}, None, None)
    with pytest.raises(InputError, match="have no images to adapt a model to"):
        held.check_model(b"")


def with_side(parts, message):
    held = HeldImages(plan=None, population=None)
    asked = []

    def exact_messages(start, round_, clients):
        asked.append((start, round_, clients))
        return [message]

    side = SimpleNamespace(parts=parts, exact_messages=exact_messages)
    vars(held)["_side"], vars(held)["_start"] = side, "the weights"
    return held, asked


def test_the_length_of_a_message_is_that_of_all_of_it_or_the_median_of_its_parts():
    whole = {"a": torch.tensor([3.0, 0.0]), "b": torch.tensor([4.0])}
    held, asked = with_side(1, whole)
    assert held.message_norm(17) == 5.0
    assert asked == [("the weights", 0, [17])]
    # Three parts, of lengths 5, 13 and 1.
    parts = {"a": torch.tensor([[3.0], [5.0], [0.0]]), "b": torch.tensor([[4.0], [12.0], [1.0]])}
    assert with_side(3, parts)[0].message_norm(17) == 5.0
    assert with_side(1, None)[0].message_norm(17) is None


@pytest.mark.parametrize("numbers", [False, True])
def test_a_model_is_as_many_finite_numbers_as_the_network_has(numbers):
    plan = SimpleNamespace(evaluation=SimpleNamespace(targets=SimpleNamespace(numbers=numbers)))
    held = HeldImages(plan=plan, population=None)
    vars(held)["_initial"] = {"a": torch.zeros(2, 3), "b": torch.zeros(1)}
    model = np.arange(7, dtype="<f4")
    if numbers:
        with pytest.raises(InputError, match="predicts numbers"):
            held.check_model(model.tobytes())
        return
    held.check_model(model.tobytes())
    for wrong in (model[:6].tobytes(), model.tobytes() + b"\0", np.arange(8, dtype="<f4").tobytes(), b""):
        with pytest.raises(InputError, match=rf"the model has {len(wrong)} bytes, expected 7 weights of 4 bytes"):
            held.check_model(wrong)
    for place, bad in ((0, math.inf), (3, -math.inf), (6, math.nan)):
        spoiled = model.copy()
        spoiled[place] = bad
        with pytest.raises(InputError, match="weights that are not finite"):
            held.check_model(spoiled.tobytes())
