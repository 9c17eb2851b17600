import threading
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.simulation.gpu_batches import Chunks, ahead
from tests.simulation.test_failing_clients import HOSTILE, Hostile
from tests.simulation.test_worker_backend import setting

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def doubled(piece):
    return [2 * item for item in piece]


@pytest.mark.parametrize("size", [None, 1, 3, 7, 100])
def test_pieces_come_back_in_order(size):
    seen = []
    chunks = Chunks(device=CPU, fixed=size)
    found = chunks.compute(lambda piece: seen.append(len(piece)) or doubled(piece), list(range(10)))
    assert found == doubled(range(10))
    assert max(seen) == min(size or 1, 10)


class Memory:
    """A GPU that holds `room` bytes, of which an item takes `each`."""

    def __init__(self, monkeypatch, room, each, seen_each=None):
        self.room, self.each, self.sizes = room, each, []
        peak = defaultdict(int)
        answers = {
            "synchronize": lambda _: None,
            "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda _: peak.clear(),
            "memory_allocated": lambda _: 1000,
            "max_memory_allocated": lambda _: 1000 + self.sizes[-1] * (seen_each or each),
            "mem_get_info": lambda _: (room, 2 * room),
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)

    def __call__(self, piece):
        self.sizes.append(len(piece))
        if len(piece) * self.each > self.room:
            raise torch.cuda.OutOfMemoryError
        return doubled(piece)


def test_a_gpu_takes_what_its_memory_holds(monkeypatch):
    memory, chunks = Memory(monkeypatch, room=1000, each=10), Chunks(device=GPU)
    assert chunks.compute(memory, list(range(200))) == doubled(range(200))
    assert memory.sizes == [4, 70, 70, 56]
    assert chunks.compute(memory, list(range(70))) == doubled(range(70))
    assert memory.sizes[4:] == [70]


def test_too_large_a_guess_is_halved_and_nothing_is_lost(monkeypatch):
    memory, chunks = Memory(monkeypatch, room=1000, each=100, seen_each=10), Chunks(device=GPU)
    assert chunks.compute(memory, list(range(100))) == doubled(range(100))
    assert memory.sizes[:5] == [4, 70, 35, 17, 8]


def test_where_one_client_does_not_fit_the_error_says_what_to_do(monkeypatch):
    memory = Memory(monkeypatch, room=10, each=100)
    with pytest.raises(InputError, match=r"not even one client fits.*--device cpu"):
        Chunks(device=GPU).compute(memory, list(range(5)))
    with pytest.raises(InputError, match=r"run.chunk = 4: this many clients"):
        Chunks(device=GPU, fixed=4).compute(memory, list(range(5)))


def test_the_next_is_under_way_while_this_one_is_used():
    begun = [threading.Event() for _ in range(4)]

    def draw(number):
        begun[number].set()
        return 10 * number

    found = []
    for number, drawn in enumerate(ahead(draw, range(4))):
        assert number == 3 or begun[number + 1].wait(5.0)
        assert number > 1 or not begun[number + 2].is_set()
        found.append(drawn)
    assert found == [0, 10, 20, 30]
    assert list(ahead(draw, [])) == []


def test_one_who_stops_early_waits_for_what_is_under_way_and_no_more():
    begun = []
    drawn = ahead(lambda number: begun.append(number) or number, range(10))
    assert next(drawn) == 0
    drawn.close()  # type: ignore[attr-defined]  # a generator
    assert begun == [0, 1]


def test_what_fails_ahead_fails_in_its_turn():
    drawn = ahead(lambda number: 1 // number, [2, 1, 0, 1])
    assert [next(drawn), next(drawn)] == [0, 1]
    with pytest.raises(ZeroDivisionError):
        next(drawn)


# Divisions adapt the head.
FORMS = [*((a, n, "1") for a in ("head", "all") for n in ("batch", "group")), ("head", "batch", "3")]


# With either order each part of a form once; the other half is slow.
ORDERS = [
    pytest.param(*form, order, marks=[] if (place + int(order)) % 2 else [pytest.mark.slow])
    for place, form in enumerate(FORMS)
    for order in ("1", "2")
]


@pytest.mark.parametrize(("adapt", "norm", "divisions", "order"), ORDERS)
def test_several_at_once_send_what_each_sends_alone(tiny_strokes, monkeypatch, order, adapt, norm, divisions):
    monkeypatch.setattr("dpfedmeta.learning.algorithms.maml.TOGETHER", 2)
    given = {
        "meta.order": order,
        "meta.adapt": adapt,
        "meta.divisions": divisions,
        "model.norm": norm,
        "meta.lr": "0.05",
        "meta.steps": "3",
        "model.features": "raw",
    }
    _, clients, model = setting(tiny_strokes, "dp-agr", **given)
    alone = list(clients.exact_messages(model, 0, range(5)))
    for chunk in (2, 5):
        together = list(replace(clients, chunk=chunk).exact_messages(model, 0, range(5)))
        for one, other in zip(together, alone, strict=True):
            largest = max(float(value.abs().max()) for value in other.values())
            for name, value in other.items():
                torch.testing.assert_close(one[name], value, rtol=1e-3, atol=1e-4 * largest, msg=name)


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_client_that_fails_touches_no_other_in_its_chunk(tiny_strokes, kind):
    _, clients, model = setting(tiny_strokes, "dp-agr")
    hostile = replace(clients, chunk=4, population=Hostile(clients.population, 2, HOSTILE[kind]))
    honest = replace(clients, chunk=4)
    bad, _ = hostile.clipped_sum(model, 0.1, 0, [2])
    with_bad, _ = hostile.clipped_sum(model, 0.1, 0, [1, 2, 3, 4])
    without, _ = honest.clipped_sum(model, 0.1, 0, [1, 3, 4])
    numbers = honest.whole_numbers(0.1, bad.shape[1])
    assert torch.isfinite(numbers.values(with_bad)).all()
    assert float(numbers.values(with_bad - bad - without).norm()) <= 1e-5
