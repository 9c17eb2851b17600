"""What a GPU does for many clients at once, forced on a CPU: the sums of one client after the other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.params import difference, dimension, flatten, norm
from dpfedmeta.learning.meta.algorithm import TOGETHER
from dpfedmeta.learning.record_dp.per_example_gradients import per_record_engine
from dpfedmeta.privacy.clipping import clip, clip_per_layer
from dpfedmeta.privacy.per_example.clip_rows import clip_rows, clip_rows_per_layer
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.gpu_batches import Chunks
from tests.simulation.test_failing_clients import HOSTILE, Hostile
from tests.simulation.test_worker_backend import setting

CLIENTS, BOUND = [1, 2, 3, 4, 5], 0.1
FORM = {"a.weight": torch.zeros(2, 3), "a.bias": torch.zeros(2), "b.weight": torch.zeros(4)}


def gradients(factor):
    generator = torch.Generator().manual_seed(0)
    return {name: factor * torch.randn(value.shape, generator=generator) for name, value in FORM.items()}


@pytest.mark.parametrize("factor", [0.0, 1e-30, 1e-3, 1.0, 1e30, float("nan"), float("inf")])
def test_rows_are_clipped_as_each_alone(factor):
    rows = torch.stack([flatten(gradients(factor)), flatten(gradients(0.01))])
    for together, alone in (
        (clip_rows(rows, 0.7), clip),
        (clip_rows_per_layer(rows, 0.7, FORM), clip_per_layer),
    ):
        for row, own in zip(together, (factor, 0.01), strict=True):
            expected = flatten(alone(gradients(own), 0.7))
            torch.testing.assert_close(row, expected, rtol=1e-6, atol=0.0)
            assert float(torch.linalg.vector_norm(row.double())) <= 0.7


def test_rows_within_the_bound_stay_as_they_are():
    rows = torch.stack([flatten(gradients(0.1))])
    assert torch.equal(clip_rows(rows, float(norm(gradients(0.1)))), rows)
    assert torch.equal(clip_rows(rows, float("inf")), rows)


def as_rows(monkeypatch, clients, model, numbers=CLIENTS):
    """(that of one after the other, that of rows)."""
    expected = clients.clipped_sum(model, BOUND, 0, numbers)
    monkeypatch.setattr(ClientRunner, "as_rows", True)
    found = clients.clipped_sum(model, BOUND, 0, numbers)
    monkeypatch.undo()
    return expected, found


def check_same(clients, expected, found):
    whole = clients.whole_numbers(BOUND, expected[0].shape[1])
    one, other = whole.values(found[0]), whole.values(expected[0])
    assert found[1] == expected[1]
    assert float((one - other).norm()) <= 1e-6 * max(float(other.norm()), BOUND)


CASES = {
    "flat": ("dp-agr", {}, {}),
    "layers": ("dp-agr", {"clip.scope": "per-layer"}, {}),
    "attached": ("dp-aqc", {}, {}),
    "own noise": ("dp-agr", {}, {"message_noise": 0.3}),
    "attached, own noise": ("dp-aqc", {}, {"message_noise": 0.3}),
    "steps": ("dp-agrlr", {}, {}),
    "clipped again": ("dp-agrlr", {}, {"message_clip_ratio": 0.5}),
    "micro-episodes": ("dp-agrlr-micro", {}, {}),
    "unbounded": ("maml", {}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_the_sum_is_that_of_one_after_the_other(tiny_strokes, monkeypatch, case):
    algo, given, more = CASES[case]
    _, clients, model = setting(tiny_strokes, algo, **given)
    clients = replace(clients, **more)
    monkeypatch.setattr("dpfedmeta.simulation.gpu_batches._MOST_VALUES", 2000)
    check_same(clients, *as_rows(monkeypatch, clients, model))


# Body and head adapt: one client at a time on a CPU.
ALL = {"meta.adapt": "all", "meta.steps": "2", "model.features": "raw", "meta.learn": "all", "meta.lr": "0.1"}
PIECES = {
    "steps": ("dp-agrlr", {}),
    "steps, the body too": ("dp-agrlr", ALL),
    "micro-episodes": ("dp-agrlr-micro", {}),
    "micro-episodes, divided": ("dp-agrlr-micro", {"meta.divisions": "2", "record.micro_shots": "1"}),
    "micro-episodes towards a sum": ("dp-agrlr-secure", {}),
}


# The plan of a secure sum takes seconds.
@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if case.endswith("sum") else case for case in PIECES]
)
def test_record_level_clients_in_pieces_send_what_they_send_on_a_cpu(tiny_strokes, monkeypatch, case):
    algo, given = PIECES[case]
    _, clients, model = setting(tiny_strokes, algo, **{"task.shots": "3", "task.queries": "3", **given})
    expected = list(clients.bounded_parts(model, BOUND, 0, CLIENTS))
    monkeypatch.setattr(ClientRunner, "at_once", True)
    monkeypatch.setattr(ClientRunner, "together", 4)
    found = list(replace(clients, chunk=3).bounded_parts(model, BOUND, 0, CLIENTS))
    for one, other in zip(found, expected, strict=True):
        for part, known in zip(one, other, strict=True):
            assert np.linalg.norm(part - known) <= 1e-4 * np.linalg.norm(known)


@pytest.mark.parametrize("algo", ["dp-agr", pytest.param("dp-agrlr-micro", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_client_that_fails_counts_as_before_and_touches_no_other(tiny_strokes, monkeypatch, kind, algo):
    _, clients, model = setting(tiny_strokes, algo)
    clients = replace(clients, population=Hostile(clients.population, 2, HOSTILE[kind]))
    check_same(clients, *as_rows(monkeypatch, clients, model))


class Odd:
    """An algorithm of a user's own: some of its messages are not what they should be."""

    def __init__(self, inner, odd):
        self._inner, self._odd, self._sent = inner, odd, 0

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def messages(self, context, episodes, bound, noises):
        for message in self._inner.messages(context, episodes, bound, noises):
            self._sent += 1
            made = message if isinstance(message, dict) else message.value
            yield changed(made, self._odd.get(self._sent))


def changed(message, how):
    first = next(iter(message))
    if how == "short":
        return {key: value for key, value in message.items() if key != first}
    if how == "whole":
        return {**message, first: message[first].long()}
    return {key: 1e9 * value for key, value in message.items()} if how == "long" else message


@pytest.mark.parametrize(
    ("algo", "odd", "entered"),
    [
        ("dp-agr", {2: "short", 4: "whole"}, 3),
        ("dp-agr", {2: "long"}, 5),
        ("dp-agrlr-micro", {1: "long", 3: "short"}, 3),
    ],
)
def test_what_is_not_of_the_form_or_too_long_does_not_enter(tiny_strokes, monkeypatch, algo, odd, entered):
    _, clients, model = setting(tiny_strokes, algo)
    first = replace(clients, algorithm=Odd(clients.algorithm, odd))
    expected = first.clipped_sum(model, BOUND, 0, CLIENTS)
    monkeypatch.setattr(ClientRunner, "as_rows", True)
    found = replace(clients, algorithm=Odd(clients.algorithm, odd)).clipped_sum(model, BOUND, 0, CLIENTS)
    assert found[1] == entered
    check_same(clients, expected, found)


def test_a_gpu_computes_record_level_clients_together_whatever_adapts(tiny_strokes):
    for algo, given in (PIECES["steps"], PIECES["steps, the body too"], PIECES["micro-episodes"]):
        plan, _, _ = setting(tiny_strokes, algo, **{"task.shots": "3", "task.queries": "3", **given})
        engine = per_record_engine("auto")
        assert plan.algorithm.together(engine, "cuda", None) == TOGETHER
        assert plan.algorithm.together(engine, "cpu", None) in (None, 1)
        # Hooks on one module take one client at a time, wherever.
        assert plan.algorithm.together(per_record_engine("opacus"), "cuda", None) == 1


def test_noise_of_a_piece_that_did_not_fit_is_not_used_again(tiny_strokes, monkeypatch):
    """What a client sends after a smaller piece carries noise of its own; nobody saw that of the first attempt."""
    _, clients, model = setting(tiny_strokes, "dp-agrlr-micro")
    plain = list(clients._messages(model, BOUND, 0, [1, 2]))
    tried = []

    def pieces(function, items):
        function(items)
        tried.append(len(items))
        return [made for item in items for made in function([item])]

    monkeypatch.setattr(ClientRunner, "at_once", True)
    monkeypatch.setattr(Chunks, "compute", lambda self, function, items: pieces(function, items))
    again = list(clients._messages(model, BOUND, 0, [1, 2]))
    assert tried == [2]
    for one, other in zip(again, plain, strict=True):
        noise = clients.message_noise_variance(BOUND) ** 0.5 * dimension(model) ** 0.5
        # Two independent draws are sqrt(2) deviations apart.
        assert float(norm(difference(one, other))) == pytest.approx(2**0.5 * noise, rel=0.2)
