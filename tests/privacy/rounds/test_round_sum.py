"""The sum of a loop's updates against the trainer's own clipping and whole numbers, and under arrays that change."""

import contextlib
import json
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import dpfedmeta as dp
from dpfedmeta.accounting.ledger.ledger import Budget
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.params import digest, flatten
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.learning.evaluation import Benchmark
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policy import ATTACHED, clipped_message
from dpfedmeta.privacy.discretised.fixed_point import WholeNumbers
from dpfedmeta.privacy.rounds import round_sum
from dpfedmeta.privacy.rounds.round_sum import RoundSum, form_of
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.training.loop import Training
from dpfedmeta.training.tracking.callbacks import JsonLines

FORM = {"w": np.zeros((7, 11), dtype=np.float32), "b": np.zeros(13, dtype=np.float32)}


@pytest.fixture(autouse=True)
def register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize("bound", [0.3, 1.0, 7.77, 1e-9, 1e12])
@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_compiled_sums_are_bit_for_bit_those_of_clipping_and_whole_numbers(bound, precision):
    generator, numbers = torch.Generator().manual_seed(3), WholeNumbers.for_bounded(bound)
    total, whole = RoundSum(form_of(FORM), bound, None, range(40)), []
    for client in range(40):
        length = bound * 10.0 ** (client % 5 - 2)
        sent = {
            name: length * torch.randn(value.shape, generator=generator, dtype=precision)
            for name, value in FORM.items()
        }
        total.add(client, {name: value.numpy() for name, value in sent.items()})
        ordered = {name: sent[name] for name in sorted(sent)}
        whole.append(numbers.accepted(flatten(clipped_message(ordered, bound, None)).double()))
    assert np.array_equal(total._total, torch.stack(whole).sum(0).numpy())


def test_an_array_that_changes_after_it_was_measured_moves_the_sum_no_further(monkeypatch):
    from dpfedmeta.privacy.rounds import round_sum

    form = {"w": FORM["w"]}
    sent, true = {"w": np.ones(FORM["w"].shape, dtype=np.float32)}, []

    def measured_then_changed(values):
        # Another process that shares the memory.
        true.append(sum(float(value) ** 2 for value in values))
        for value in sent.values():
            value[:] = 1e9
        return true[-1]

    monkeypatch.setattr(round_sum, "squared_length", measured_then_changed)
    total = RoundSum(form_of(form), 1.0, None, [0])
    total.add(0, sent)
    moved = np.linalg.norm(np.concatenate([value.reshape(-1) for value in total.query().value.values()]))
    assert true
    assert 0.99 < moved <= 1.0


SMALL = {
    "model.width": "2", "server.rounds": "2", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "population.clients": "400", "population.cohort": "40", "population.max_participations": "null",
    "privacy.client.epsilon": "6", "privacy.client.delta": "1e-4", "clip.policy": "constant", "clip.initial": "0.7",
    "evaluation.every": "2", "evaluation.validation_episodes": "2",
}  # fmt: skip


def test_the_same_updates_through_the_trainer_and_through_the_door_are_one_hash(tmp_path, tiny_strokes, tiny_task_file):
    plan = make_plan(resolve("dp-agr", str(tiny_task_file), None, SMALL), tiny_strokes.task)
    sent = {}

    class Known:
        """The trainer's own clipping and adding, of made-up updates."""

        def cohort_sum(self, model, bound, cohort):
            numbers, messages = WholeNumbers.for_bounded(bound), []
            for client in cohort.clients.tolist():
                draw = torch.Generator().manual_seed(1000 * cohort.round + client)
                update = {name: 0.1 * torch.randn(value.shape, generator=draw) for name, value in model.items()}
                sent[cohort.round, client] = update
                messages.append(flatten(clipped_message(update, bound, None)).double())
            size = sum(value.numel() for value in model.values())
            total, _ = numbers.total(messages, size)
            vector, start, values = numbers.values(total), 0, {}
            for name, value in model.items():
                values[name] = vector[start : start + value.numel()].reshape(value.shape)
                start += value.numel()
            return Bounded(value=values, sensitivity=bound)

    run = create(tmp_path, "trained")
    Training(
        plan=plan, run=run, backend=Known(), workers=InProcess(),
        validation=Benchmark(pool=tiny_strokes.val, shape=plan.shape, seed=0, split="val"), source=KeyedSource(7),
        trackers=(JsonLines(run.path),), budget=Budget.of(plan.planned), environment="here",
    )()  # fmt: skip
    hashes = [json.loads(line)["release"] for line in (run.path / "rounds.jsonl").read_text().splitlines()]
    # A loop's coordinates stand in the order of their names, the trainer's in that of the network.
    names = {name: f"{place:03d}" for place, name in enumerate(next(iter(sent.values())))}
    sent = {key: {names[name]: value for name, value in update.items()} for key, update in sent.items()}
    like = next(iter(sent.values()))
    with dp.PrivateRounds(
        clients=400, cohort=40, rounds=2, promise=dp.Promise(epsilon=6.0, delta=1e-4), like=like, noise_seed=7,
        clip=dp.clip.Constant(initial=0.7), run_dir=tmp_path / "mine",
    ) as private:  # fmt: skip
        assert private._rounds.plan.noise_multiplier == plan.privacy.noise_multiplier
        found = []
        for round_ in private:
            assert round_.cohort == sorted(client for number, client in sent if number == round_.number)
            for client in round_.cohort:
                round_.add(client, sent[round_.number, client])
            mean = round_.release()
            found.append(digest({name: mean[names[name]] for name in names}))
    assert found == hashes
    assert len(set(hashes)) == 2


def test_two_first_updates_at_once_agree_on_one_form(monkeypatch):
    """The first one says the form of a whole run; two that both looked before would add arrays of two shapes."""
    meeting, honest = threading.Barrier(2), round_sum.form_of

    def together(arrays):
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(0.3)  # the other one comes as far, unless it has to wait
        return honest(arrays)

    def added(message, factor, scale, total):  # the compiled one writes past the end of a shorter total
        total += (message * factor * scale).astype(np.int64)

    monkeypatch.setattr(round_sum, "form_of", together)
    monkeypatch.setattr(round_sum, "add_shortened", added)
    total = RoundSum(None, 2.0, None, range(2))
    updates = [{"w": np.ones(3) / 2}, {"w": np.ones(5) / 2}]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(total.add, range(2), updates))
    assert total.left_out == 1
    (size,) = total.form["w"].shape
    assert np.allclose(flatten(total.query().value), np.full(size, 0.5), atol=1e-6)


@pytest.mark.parametrize("form", [None, form_of({"w": np.zeros(3)})])
def test_nobody_brings_what_the_policy_attaches(form):
    """Not as part of the form either, where the first update says that."""
    total = RoundSum(form, 1.0, None, [1, 2])
    total.add(1, {"w": np.ones(3), ATTACHED: np.ones(1)})
    assert total.left_out == 1
    total.add(2, {"w": np.ones(3)})
    assert set(total.query().value) == {"w"}


@pytest.mark.parametrize(
    "kind", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.uint8]
)
def test_tensors_keep_every_bit_of_theirs(kind):
    """In float32 at least; whole numbers and long floats in float64."""
    given = (
        torch.tensor([1 / 3, 5.0, 2**30 + 1]).to(kind)
        if kind.is_floating_point
        else torch.tensor([3, 5, 7], dtype=kind)
    )
    given = given if kind != torch.float64 else torch.tensor([1 / 3, 5.0, 2**30 + 1], dtype=kind)
    found = round_sum.real_arrays({"w": given})["w"]
    assert found.dtype == (np.float32 if given.element_size() < 8 and kind.is_floating_point else np.float64)
    assert found.tolist() == given.tolist()


class Watched:
    """A lock that says whether it is held."""

    def __init__(self):
        self.held = False

    def __enter__(self):
        assert not self.held
        self.held = True

    def __exit__(self, *error):
        self.held = False


@pytest.mark.parametrize("form", [None, FORM])
def test_what_two_threads_share_is_touched_by_one_at_a_time(monkeypatch, form):
    """Who waits, who says the form, what is counted and what is summed; messages are copied side by side."""
    seen, lock = [], Watched()

    class Waiting(set):
        def __contains__(self, client):
            seen.append(("waits", lock.held))
            return super().__contains__(client)

        def discard(self, client):
            seen.append(("comes", lock.held))
            super().discard(client)

    total = RoundSum(None if form is None else form_of(form), 1.0, None, range(3))
    message, added = total._message, vars(round_sum)["add_shortened"]
    total._lock, total._waiting = lock, Waiting(range(3))
    total._message = lambda update: (
        seen.append(("form" if total.form is None else "copied", lock.held)),
        message(update),
    )[1]
    monkeypatch.setattr(
        round_sum, "add_shortened", lambda *given: (seen.append(("summed", lock.held)), added(*given))[1]
    )
    for client in range(2):
        total.add(client, {"w": np.ones((7, 11)), "b": np.ones(13)})
    first = ("form", True) if form is None else ("copied", False)
    once = [("waits", True), ("comes", True)]
    assert seen == [*once, first, ("summed", True), *once, ("copied", False), ("summed", True)]


@pytest.mark.parametrize("form", [None, FORM])
@pytest.mark.parametrize("other", [{"w": np.ones((7, 11))}, {"w": np.ones(77), "b": np.ones(13)}, {"x": np.ones(3)}])
def test_the_form_is_said_once_and_an_update_of_another_is_left_out(form, other):
    total = RoundSum(None if form is None else form_of(form), 1.0, None, range(3))
    if form is None:
        total.add(0, {name: np.ones(value.shape) for name, value in FORM.items()})
    before = {name: value.shape for name, value in total.form.items()}
    total.add(1, other)
    assert {name: value.shape for name, value in total.form.items()} == before
    assert total.left_out == 1
    total.add(2, {name: np.ones(value.shape) for name, value in FORM.items()})
    assert total.left_out == 1


@pytest.mark.parametrize("kind", ["longdouble", "float16", "int64"])
def test_no_number_of_a_client_makes_a_message(kind):
    """Numbers beyond float64 count as not finite, without a warning that would tell of them."""
    total = RoundSum(form_of({"w": np.zeros(2)}), 1.0, None, range(2))
    largest = {"longdouble": np.longdouble("1e4000"), "float16": np.float16(65504), "int64": np.int64(2**63 - 1)}[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total.add(0, {"w": np.array([largest, largest])})
    assert total.left_out == (1 if kind == "longdouble" and np.finfo(np.longdouble).max > 1e308 else 0)
