"""Steps of a run from its settings to its last file, one at a time: who gets what, in which order, and what is said."""

import itertools
import json
import math
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dpfedmeta import Callback
from dpfedmeta.accounting.ledger.ledger import Budget
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.evaluation.few_shot import Benchmark
from dpfedmeta.planning.data_digests import HeldData
from dpfedmeta.training import run_training, setup, update_variance
from dpfedmeta.training.results import facts, snapshot, summary, trained_run
from dpfedmeta.training.results.snapshot import Snapshot
from dpfedmeta.training.run_training import _budget, _go_on_longer, _nothing_left, _reserve, _tell_the_end, _trackers
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state import extend, recover
from dpfedmeta.training.state.private_timings import COARSE
from dpfedmeta.training.tracking import plan_summary
from dpfedmeta.training.tracking.callbacks import CallbackFailed, JsonLines
from dpfedmeta.training.update_variance import update_spread
from dpfedmeta.training.verification import replan, verify
from tests.data.test_population_statement import pool_of


class Hears(Callback):
    def __init__(self, fails=False):
        self.fails, self.heard = fails, []

    def on_end(self, row):
        self.heard.append(row["status"])
        if self.fails:
            raise ValueError("at the end")


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("status", ["completed", "interrupted"])
def test_what_ended_a_run_is_raised_after_everybody_was_told_and_the_first_cause_of_two(before, fails, status):
    cause = KeyError("a round")
    failure = CallbackFailed("callback X.on_round raised")
    failure.__cause__ = cause
    told = (Hears(fails=fails), Hears())
    run = SimpleNamespace(path="runs/r")
    with pytest.raises(CallbackFailed) if before or fails else nullcontext() as raised:
        _tell_the_end(told, {"status": status, "rounds": 3}, failure if before else None, run)
    assert [each.heard for each in told] == [[status], [status]]
    if raised:
        assert isinstance(raised.value.__cause__, KeyError if before else ValueError)
        words = "the run itself is complete" if status == "completed" else "the run ended cleanly after 3 rounds; go on"
        assert str(raised.value).startswith(
            "callback X.on_round raised; " if before else "callback Hears.on_end raised"
        )
        assert words in str(raised.value)


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("fails", [None, 0, 1])
def test_where_a_tracker_cannot_begin_a_new_run_leaves_nothing_and_a_resumed_one_stays(
    monkeypatch, tmp_path, fails, resumed
):
    """What a run has spent and learned is in its folder, and nowhere else."""
    run, opened = RunDirectory(tmp_path / "run"), []
    run.path.mkdir()
    run.ledger.write_text("what was spent")

    def begin(number, tracked, say):
        opened.append(tracked)
        if number == fails:
            raise InputError("no tracker here")
        return f"tracker {number}"

    trackers = [SimpleNamespace(opened=partial(begin, number)) for number in range(2)]
    monkeypatch.setattr(run_training, "trackers_of", lambda track: trackers)
    monkeypatch.setattr(run_training, "identity_of", lambda run: SimpleNamespace(run="name"))
    monkeypatch.setattr(run_training, "hides_times", lambda plan: True)
    plan, options = SimpleNamespace(settings=SimpleNamespace(track=None)), RunOptions(resume=run if resumed else None)
    if fails is None:
        with _nothing_left(run, options):
            lines, *found = _trackers(plan, run, options, print)
        assert (type(lines), found) == (JsonLines, ["tracker 0", "tracker 1"])
    else:
        with pytest.raises(InputError, match="no tracker here"), _nothing_left(run, options):
            _trackers(plan, run, options, print)
    assert [(each.run, each.identity, each.timed) for each in opened] == [(run, "name", False)] * len(opened)
    assert run.path.exists() == (fails is None or resumed)
    assert not run.path.exists() or run.ledger.read_text() == "what was spent"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("register", [None, "people.jsonl"])
@pytest.mark.parametrize("keep", [False, True])
def test_a_population_is_registered_by_what_its_clients_hold(monkeypatch, own, known, register, keep):
    """Clients of the caller's own by their digest, those that are made of a data set by that of its images."""
    asked = []
    monkeypatch.setattr(run_training, "reserve", lambda path, **given: asked.append((str(path), given)))
    held = HeldData(sha256="", own=own, clients="of clients" if known else None,
                    decoded="of images" if known else None, source="")  # fmt: skip
    population = SimpleNamespace(register=register, kind="virtual", records=500)
    settings = SimpleNamespace(population=population, run=SimpleNamespace(seed=3))
    plan = SimpleNamespace(settings=settings, privacy="privacy")
    with pytest.raises(InputError, match="has no digest") if register and not known else nullcontext():
        _reserve("run", SimpleNamespace(plan=plan, held=held), keep=keep)
    made_by = {"population.kind": "virtual", "population.records": "500", "run.seed": "3"}
    due = {"run": "run", "data": "of clients" if own else "of images", "plan": "privacy", "keep": keep}
    due["made_by"] = {} if own else made_by
    assert asked == ([(register, due)] if register and known else [])


@pytest.mark.parametrize("extends", [None, 30])
@pytest.mark.parametrize("limits", [(math.inf,) * 4, (math.inf, 3.0, math.inf, math.inf)])
def test_an_extension_is_in_the_ledger_before_the_files_of_before_are_set_aside(monkeypatch, extends, limits):
    done = []
    monkeypatch.setattr(run_training, "extend", lambda run, content, rounds, lineage: done.append(("extend", rounds)))
    monkeypatch.setattr(run_training, "read_content", lambda path: "content")
    monkeypatch.setattr(run_training, "set_aside", lambda run, rounds: done.append(("aside", rounds)) or "there")
    monkeypatch.setattr(run_training, "_write_plan", lambda run, made, rate: done.append(("plan", rate)))
    monkeypatch.setattr(run_training, "promise", lambda settings, begun: SimpleNamespace(limits=limits))
    plan = SimpleNamespace(settings=None, privacy=SimpleNamespace(ends=(10, 20), rounds=30, begun="begun"))
    run, options = SimpleNamespace(ledger=None), SimpleNamespace(extend_to=extends)
    said = list(_go_on_longer(run, SimpleNamespace(plan=plan), options, None, 7.0))
    assert done == [("extend", 30)] * (extends is not None) + [("aside", 20), ("plan", 7.0)]
    assert said[0].startswith("extended from 20 to 30 rounds")
    # Where a target limits the run, when it stops may depend on what it shows.
    assert ("no target limits this run: its guarantees for 30 rounds" in said[-1]) == (len(said) == 2)
    assert (len(said) == 2) == (limits == (math.inf,) * 4)


class Longer:
    def __init__(self, ends=(10,)):
        self.ends, self.settings = ends, "settings"

    def extended(self, rounds):
        return Longer((*self.ends, rounds))


@pytest.mark.parametrize("extends", [None, 40])
@pytest.mark.parametrize("before", [(), (10,), (10, 20)])
def test_a_plan_goes_through_each_of_its_extensions_in_order(monkeypatch, extends, before):
    content = SimpleNamespace(plan=SimpleNamespace(ends=before, rounds=(10, 20, 30)[len(before)]))
    monkeypatch.setattr(setup, "read_content", lambda path, torn: content)
    longer = SimpleNamespace(ends=(*before, content.plan.rounds), rounds=40)
    monkeypatch.setattr(setup, "extended_plan", lambda run, settings, content, rounds: longer)
    options = RunOptions(resume=SimpleNamespace(ledger=None), extend_to=extends)
    due = (*before, content.plan.rounds) + (() if extends is None else (40,))
    assert setup._extended(cast(Any, Longer()), options).ends == due  # type: ignore[attr-defined]
    assert setup._extended(cast(Any, Longer()), RunOptions()).ends == (10,)  # type: ignore[attr-defined]


@pytest.mark.parametrize("resumed", [None, False, True])
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("seed", [None, 0, 5])
def test_a_run_draws_as_it_began_and_a_new_one_as_it_is_told(monkeypatch, resumed, secure, seed):
    made = []
    monkeypatch.setattr(setup, "identity_of", lambda run: SimpleNamespace(secure=resumed))
    monkeypatch.setattr(setup, "secret_of_run", lambda *given, **named: made.append(("of run", given, named)))
    monkeypatch.setattr(setup, "new_source", lambda *given, **named: made.append(("new", given, named)))
    settings = SimpleNamespace(run=SimpleNamespace(noise_seed=seed))
    options = RunOptions(resume=None if resumed is None else "run", secure_rng=secure)
    refused = resumed is None and secure and seed is not None
    with pytest.raises(InputError, match="both given") if refused else nullcontext():
        setup._secret_source(settings, options)
    if refused:
        assert made == []
    elif resumed is None:
        assert made == [("new", (seed,), {"secure_rng": secure})]
    else:
        assert made == [("of run", ("run", seed), {"secure": resumed})]


@pytest.mark.parametrize("available", [False, True])
@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_a_gpu_is_used_where_there_is_one_unless_it_was_not_wanted(monkeypatch, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    settings = SimpleNamespace(run=SimpleNamespace(device=device))
    with pytest.raises(InputError, match="sees no CUDA") if device == "cuda" and not available else nullcontext():
        assert setup._device(settings).type == ("cuda" if available and device != "cpu" else "cpu")


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("capable", [False, True])
def test_a_precision_is_taken_where_the_device_has_it_and_switched_off_elsewhere(
    monkeypatch, precision, device, capable
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0) if capable else (7, 5))
    monkeypatch.setattr(setup, "bfloat16_in_hardware", lambda: capable)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", precision != "tf32")
    settings = SimpleNamespace(run=SimpleNamespace(precision=precision))
    fits = {"float32": True, "tf32": device == "cuda" and capable, "bfloat16": device == "cuda" or capable}[precision]
    with nullcontext() if fits else pytest.raises(InputError, match=f"run.precision = {precision}: "):
        setup.use_precision(settings, torch.device(device))
        assert torch.backends.cudnn.allow_tf32 == (precision == "tf32")


@pytest.mark.parametrize(("device", "cores", "wanted", "due"), [
    ("cuda", 8, 4, 1), ("cpu", 8, None, 8), ("cpu", 8, 4, 4), ("cpu", 4, 4, 4), ("cpu", 4, 5, 4),
])  # fmt: skip
def test_workers_are_as_many_as_wanted_and_no_more_than_cores(monkeypatch, device, cores, wanted, due):
    said = []
    monkeypatch.setattr(setup, "available_cores", lambda: cores)
    settings = SimpleNamespace(run=SimpleNamespace(workers=wanted))
    assert setup.worker_count(settings, torch.device(device), said.append) == due
    assert len(said) == (device == "cpu" and wanted is not None and wanted > cores)


@pytest.mark.parametrize(("rate", "minutes"), [(None, None), (0.0, None), (20.0, 5.0)])
@pytest.mark.parametrize("repeatable", [False, True])
def test_what_a_run_is_told_to_take_is_its_participations_over_the_speed(monkeypatch, rate, minutes, repeatable):
    monkeypatch.setattr(setup, "planned_of", lambda plan, task: SimpleNamespace())
    monkeypatch.setattr(setup, "replace", lambda planned, **values: values)
    settings = SimpleNamespace(population=SimpleNamespace(register=None))
    made = SimpleNamespace(
        plan=SimpleNamespace(privacy=SimpleNamespace(expected_participations=6000.0), settings=settings),
        repeatable=repeatable, dataset=SimpleNamespace(task=None), statement=SimpleNamespace(text="sixty clients"),
    )  # fmt: skip
    found = setup.RunContext.planned(made, rate)
    assert (found["minutes"], found["clients_per_second"]) == (minutes, rate)
    assert (found["clients"] == "sixty clients") == repeatable


@pytest.mark.parametrize("messages", [3, 2])
def test_the_spread_of_updates_is_their_variance_and_their_squared_mean_by_parameter(monkeypatch, messages):
    """One that has no message is left out; the variance is that of these clients, not of a population."""
    sent = [{"a": torch.tensor([1.0, 4.0])}, None, {"a": torch.tensor([3.0, 0.0])}, {"a": torch.tensor([5.0, 5.0])}]
    public = SimpleNamespace(device="cpu", exact_messages=lambda model, round_, clients: sent[: len(clients)])
    found = update_spread(public, {"a": torch.zeros(2)}, 3, messages + 1)
    kept = torch.stack([each["a"] for each in sent[: messages + 1] if each is not None])
    mean = kept.mean(0)
    assert found.between_client_variance == pytest.approx(float(((kept - mean) ** 2).mean(0).mean()))
    assert found.update_scale == pytest.approx(float((mean**2).mean()))
    assert update_variance.UpdateSpread.__dataclass_fields__.keys() == {"between_client_variance", "update_scale"}


@pytest.mark.parametrize(("charged", "round_", "again"), [
    ([], 0, True), ([0, 1, 2], 3, True), ([0, 1, 2, 3], 3, True), ([0, 1, 2, 3, 4], 3, False), ([0, 1, 1, 2], 2, True),
])  # fmt: skip
def test_a_resumed_run_says_which_rounds_are_done_again_and_whether_they_cost(charged, round_, again):
    ledger = SimpleNamespace(charges=[SimpleNamespace(round=each) for each in charged], rounds=len(charged))
    journal = SimpleNamespace(
        ledger=ledger, plan=SimpleNamespace(rounds=9), reproducible=True, environment="",
        charged=lambda *asked: again, last_question=lambda round_, inputs: inputs,
    )  # fmt: skip
    said = list(recover._progress(journal, SimpleNamespace(round=round_, model={}, bound=1.0)))
    if not charged:
        assert said == []
        return
    assert said[0] == f"resuming at round {round_} of 9; {len(charged)} charges are in the ledger"
    last = max(charged)
    assert (len(said) == 2) == (last >= round_)
    if len(said) == 2:
        assert said[1].startswith(f"round {round_}," if last == round_ else f"rounds {round_} to {last},")
        assert ("not charged again" in said[1]) == again


@pytest.mark.parametrize(("rounds", "fits"), [
    ([], True), ([0], True), ([0, 1, 2], True), ([0, 2], True), ([0, 0], False), ([1, 0], False), ([True], False),
    ([0, "1"], False), ([-1], False),
])  # fmt: skip
def test_rows_are_of_rising_rounds_each_once(tmp_path, rounds, fits):
    run = RunDirectory(tmp_path)
    run.rounds_file.write_text("".join(json.dumps({"round": each}) + "\n" for each in rounds))
    with nullcontext() if fits else pytest.raises(InputError, match="is not the next round; restore it from a backup"):
        assert [row["round"] for row in recover._rows(run)[0]] == rounds


@pytest.mark.parametrize("hidden", [False, True])
def test_what_a_run_took_is_coarse_where_it_could_tell_and_its_speed_is_that_of_the_time_told(monkeypatch, hidden):
    monkeypatch.setattr(summary, "hides_times", lambda plan: hidden)
    plan = SimpleNamespace(privacy=SimpleNamespace(cohort=30.0))
    found = summary.what_it_took(plan, 7, 61.0, 333.0)
    seconds = 100.0 if hidden else 61.0
    assert found == {
        "seconds": seconds, "clients_per_second": 5.0 if hidden else 7 * 30 / 61.0,
        "peak_memory_mb": 500.0 if hidden else 333.0, "times": COARSE if hidden else None,
    }  # fmt: skip


def test_a_summary_says_how_its_sums_are_made(monkeypatch):
    monkeypatch.setattr(facts, "constants_of_the_sum", lambda plan: {"degree": 4})
    secure = SimpleNamespace(dimension=11, dropout=0.1, adversarial=0.05)
    for each in (None, secure):
        found = facts.aggregation("mode", SimpleNamespace(secure=each, server_sees="sum"))
        due = (11, 0.1, 0.05) if each else (None, None, None)
        assert (found["dimension"], found["dropout"], found["adversarial"]) == due
        assert (found["mode"], found["server_sees"], found["degree"]) == ("mode", "sum", 4)


@pytest.mark.parametrize("checkpoints", [(), (7,), (7, 12)])
@pytest.mark.parametrize("stated", [None, {}, {"rounds": 9}])
def test_weights_are_of_the_last_checkpoint_else_of_the_summary_else_of_all_rounds(tmp_path, checkpoints, stated):
    run = RunDirectory(tmp_path)
    (tmp_path / "checkpoint").mkdir()
    for each in checkpoints:
        (tmp_path / "checkpoint" / f"round-{each:06d}.safetensors").write_text("")
    if stated is not None:
        run.write_json("summary.json", stated)
    assert trained_run._rounds(run, 20) == (max(checkpoints) if checkpoints else (stated or {}).get("rounds", 20))


@pytest.mark.parametrize(("copies", "releases"), [
    (["aaa", "aab"], "0a 1a 2a 2b"), (["aaa", "abb", "aac"], "0a 1a 2a 1b 2b 2c"),
    # The third copy is as the second up to its last round, and as the first in none but round 0.
    (["aaa", "abb", "abc"], "0a 1a 2a 1b 2b 2c"), (["aaa", "bbb", "bbc"], "0a 1a 2a 0b 1b 2b 2c"),
    (["aa", "aab", "aac"], "0a 1a 2b 2c"),
])  # fmt: skip
def test_of_copies_of_one_run_each_release_counts_once_whichever_two_share_it(monkeypatch, copies, releases):
    """And what each alone went on with is of a copy of its own."""
    plan = PrivacyPlan(clients=40, cohort=10, rounds=3, noise_multiplier=2.0)
    kept = {name: SimpleNamespace(name=name) for name in {f"{n}{letter}" for n, letter in
            itertools.product(range(3), "abc")}}  # fmt: skip
    for name, each in kept.items():
        each.round, each.again, each.fresh, each.release = int(name[0]), (), name, ""
    contents = [
        SimpleNamespace(plan=plan, identity=SimpleNamespace(run="r", secure=False),
                        charges=tuple(kept[f"{n}{letter}"] for n, letter in enumerate(copy)))
        for copy in copies
    ]  # fmt: skip
    stated = []
    left = iter(contents)
    monkeypatch.setattr(verify, "read_run", lambda run: SimpleNamespace(content=next(left)))
    monkeypatch.setattr(verify, "phases_of", lambda charges: [plan.phases[0]] * len(charges))
    monkeypatch.setattr(verify, "stated", lambda phases, terms: stated.append(phases) or ())
    found = verify.compose([SimpleNamespace(path=str(n)) for n in range(len(copies))])
    assert [each.name for each in found.charges] == releases.split()
    own = [sum(phase.copy == place for phase in stated[0]) for place in range(1, len(copies))]
    assert len(copies[0]) + sum(own) == len(found.charges)
    assert found.remarks[0].startswith(f"{len(copies)} copies of run r: together they charged {len(found.charges)} rel")


@pytest.mark.parametrize("change", ["run", "plan", "alone"])
def test_only_copies_of_one_run_are_composed(monkeypatch, change):
    plan = PrivacyPlan(clients=40, cohort=10, rounds=3, noise_multiplier=2.0)
    other = PrivacyPlan(clients=40, cohort=10, rounds=3, noise_multiplier=1.0) if change == "plan" else plan
    contents = [
        SimpleNamespace(plan=each, identity=SimpleNamespace(run=name, secure=False), charges=())
        for each, name in ((plan, "r"), (other, "s" if change == "run" else "r"))
    ]
    left = iter(contents)
    monkeypatch.setattr(verify, "read_run", lambda run: SimpleNamespace(content=next(left)))
    assert verify.compose([None] * (1 if change == "alone" else 2)) is None


def attempts(names):
    return [SimpleNamespace(round=n, again=(), fresh=name, release="") for n, name in enumerate(names)]


@pytest.mark.parametrize(("one", "other", "clash"), [
    ("aab", "aac", None), ("aabd", "aacd", 3), ("abd", "acd", 2), ("aa", "aab", None),
])  # fmt: skip
def test_the_same_keys_past_the_first_difference_are_the_same_noise_for_another_sum(one, other, clash):
    runs = [SimpleNamespace(path="one"), SimpleNamespace(path="two")]
    left, right = (attempts(names) for names in (one, other))
    with nullcontext() if clash is None else pytest.raises(InputError, match=f"with the same noise in round {clash};"):
        verify._check_noise(left, right, *runs)


def test_of_several_rounds_with_the_same_noise_the_first_is_named():
    left, right = (attempts(names) for names in ("abdefg", "acdexg"))
    runs = [SimpleNamespace(path="one"), SimpleNamespace(path="two")]
    with pytest.raises(InputError, match=r"one and two are copies .* with the same noise in round 2;"):
        verify._check_noise(left, right, *runs)


@pytest.mark.parametrize("secure", [False, True])
def test_copies_of_a_run_without_seed_share_no_noise_that_could_be_compared(monkeypatch, secure):
    plan, looked = PrivacyPlan(clients=40, cohort=10, rounds=3, noise_multiplier=2.0), []
    content = SimpleNamespace(plan=plan, identity=SimpleNamespace(run="r", secure=secure), charges=())
    monkeypatch.setattr(verify, "read_run", lambda run: SimpleNamespace(content=content))
    monkeypatch.setattr(verify, "phases_of", lambda charges: [])
    monkeypatch.setattr(verify, "stated", lambda phases, terms: ())
    monkeypatch.setattr(verify, "_check_noise", lambda *given: looked.append(given[2:]))
    verify.compose(["one", "two", "three"])
    # Each with each, once.
    assert looked == ([] if secure else [("two", "one"), ("three", "one"), ("three", "two")])


@pytest.mark.parametrize(("stage", "starts"), [
    ("running", "running: 2 of 9 rounds so far"), ("stopped", "stopped after 2 of 9 rounds and does not say how"),
    ("completed", None), ("budget", None), ("interrupted", None),
])  # fmt: skip
def test_a_run_that_has_not_ended_says_so_and_what_to_do(tmp_path, stage, starts):
    """Rounds count once, however often they were charged."""
    charged = [SimpleNamespace(attempt=n) for n in (0, 1, 2, 0)]
    content = SimpleNamespace(charges=charged, plan=SimpleNamespace(rounds=9))
    found = Snapshot(run=RunDirectory(tmp_path), stage=stage, page=None, summary=None, rows=None, content=content)
    assert found.rounds == 2
    assert found.ended == (starts is None)
    assert found.words is None if starts is None else found.words.startswith(starts)
    assert starts is None or ("go on with: dpfedmeta train --resume" in found.words) == (stage == "stopped")


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("status", [None, "completed", "budget", "interrupted", "odd"])
def test_how_a_run_stands_is_its_summary_s_word_unless_somebody_writes_it(tmp_path, written, status):
    run = RunDirectory(tmp_path)
    stated = None if status is None else {"status": status}
    if status == "odd":
        with pytest.raises(InputError, match="its status is 'odd'"):
            snapshot._stage(run, written, stated)
        return
    ended = status in ("completed", "budget")
    due = "running" if written and not ended else status or "stopped"
    assert snapshot._stage(run, written, stated) == due
    assert snapshot.may_be_torn(due) == (not ended)


@pytest.mark.parametrize(("head", "went_on"), [("a", True), ("b", True), ("c", False), ("x", False), (None, False)])
def test_a_run_went_on_where_its_summary_ends_before_its_ledger(head, went_on):
    content = SimpleNamespace(heads=("a", "b", "c"))
    assert snapshot._went_on({"ledger": {"head": head}}, content) == went_on
    assert not snapshot._went_on({"ledger": None}, content)
    assert not snapshot._went_on({}, content)


@pytest.mark.parametrize("cell", [0, 1, 3])
@pytest.mark.parametrize("most", [2, 3, 4])
def test_the_promise_that_an_extension_would_break_is_named_with_what_it_still_allows(monkeypatch, cell, most):
    names = [("client", "public"), ("client", "server"), ("record", "server"), ("record", "public")]
    spent = [2.0, 3.0, math.inf, 5.0]
    after = [SimpleNamespace(name=f"({u}, {o})", epsilon=e) for (u, o), e in zip(names, spent, strict=True)]
    limits = [math.inf if place != cell else spent[cell] - 0.5 for place in range(4)]
    monkeypatch.setattr(extend, "guarantees", lambda plan: after)
    budget = SimpleNamespace(limits=limits, allows=lambda cells: False, affordable_rounds=lambda longer: most)
    longer = SimpleNamespace(rounds=7, ends=(1, 3))
    with pytest.raises(RefusedPlan) as told:
        extend._check_promise(SimpleNamespace(path="runs/r"), budget, longer)
    words = f"--rounds 7: runs/r promised {after[cell].name} = {limits[cell]:g}, and 7 rounds spend {spent[cell]:g}; "
    assert str(told.value).startswith(words)
    assert (f"{most} rounds in all are allowed" in str(told.value)) == (most > 3)
    assert ("it is used up" in str(told.value)) == (most <= 3)


def test_a_cell_that_is_no_number_breaks_a_promise_too(monkeypatch):
    spent = {"(client, public)": 1.0, "(record, server)": math.nan}
    after = [SimpleNamespace(name=name, epsilon=epsilon) for name, epsilon in spent.items()]
    monkeypatch.setattr(extend, "guarantees", lambda plan: after)
    budget = SimpleNamespace(limits=[2.0, 2.0], allows=lambda cells: False, affordable_rounds=lambda longer: 1)
    with pytest.raises(RefusedPlan, match=r"promised \(record, server\) = 2"):
        extend._check_promise(SimpleNamespace(path="r"), budget, SimpleNamespace(rounds=7, ends=(3,)))


@pytest.mark.parametrize("wanted", [None, 1, 3])
@pytest.mark.parametrize("ranks", [None, 1, 4])
def test_processes_of_torchrun_are_the_workers_and_no_others_are_asked_for(monkeypatch, wanted, ranks):
    said, opened = [], []

    @contextmanager
    def workers(count):
        opened.append(count)
        yield "own"

    monkeypatch.setattr(setup, "open_workers", workers)
    monkeypatch.setattr(setup, "worker_count", lambda settings, device, remark: 2)
    settings = SimpleNamespace(run=SimpleNamespace(workers=wanted))
    there = None if ranks is None else SimpleNamespace(count=ranks)
    made = setup._workers(settings, SimpleNamespace(workers=there), torch.device("cpu"), said.append)
    if ranks is not None and wanted is not None:
        with pytest.raises(InputError, match=rf"run\.workers = {wanted}: under torchrun"), made:
            pass
        return
    with made as found:
        assert found == ("own" if ranks is None else there)
    assert opened == ([2] if ranks is None else [])
    assert said == ([] if ranks is None else [f"{ranks} rank{'s' * (ranks > 1)} of torchrun compute; rank 0 writes"])


@pytest.mark.parametrize("stated", [(1.0, 2.0), (1.0,), (1.0, 2.0, 3.0), (), (1.0, 2.5), (1.0 + 1e-12, 2.0)])
def test_fitted_numbers_are_as_many_and_alike(stated):
    due = (1.0, 2.0)
    alike = len(stated) == 2 and all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(stated, due, strict=True))
    assert replan._close(stated, due) == replan._close(due, stated) == alike


@pytest.mark.parametrize(
    ("kept", "words"), [([], None), (["head.b"], "at zero"), (["head.b", "head.w"], "at zero"),
                        (["body.w"], "as they begin"), (["head.w", "body.w"], "as they begin")],
)  # fmt: skip
def test_weights_that_nobody_learns_begin_at_zero_where_they_are_a_head(kept, words):
    weights = {name: torch.zeros(2) for name in ("head.w", "head.b", "body.w", "body.b")}
    begins = plan_summary._begin_at_zero(SimpleNamespace(name="mlp"), weights, kept)
    assert begins == (words != "as they begin")


def test_a_row_without_a_release_is_none_of_those_that_are_known(tmp_path, monkeypatch):
    rows = [{"round": 0, "release": "a"}, {"round": 1}, {"round": 2, "release": "c"}]
    content = SimpleNamespace(charges=(), lines=())
    opened = SimpleNamespace(content=content, restorable=True, reproducible=True, ledger="ledger", remarks=())
    monkeypatch.setattr(recover, "open_ledger", lambda *given: opened)
    monkeypatch.setattr(recover, "_rows", lambda run: (rows, []))
    monkeypatch.setattr(recover, "reopen_participations", lambda *given: ("participations", []))
    monkeypatch.setattr(recover, "_latest", lambda *given, **more: (None, []))
    monkeypatch.setattr(recover, "_check_released", lambda *given, **more: None)
    monkeypatch.setattr(recover, "_progress", lambda *given: ())
    monkeypatch.setattr(recover, "Journal", lambda **given: SimpleNamespace(**given))
    found = recover.reopen(
        SimpleNamespace(ledger="ledger"), SimpleNamespace(privacy="plan"), "initial", "budget", "source", None, None
    )
    assert found.journal.released == {0: "a", 2: "c"}


@pytest.mark.parametrize("register", [None, "people.jsonl"])
def test_a_registered_run_has_the_budget_that_its_register_holds_for_it(monkeypatch, register):
    read = {Path("people.jsonl"): SimpleNamespace(budget=lambda run, planned: ("registered", run, planned))}
    monkeypatch.setattr(run_training, "read_register", lambda path: read[path])
    monkeypatch.setattr(run_training, "identity_of", lambda run: SimpleNamespace(run=f"name of {run}"))
    settings = SimpleNamespace(population=SimpleNamespace(register=register))
    plan = SimpleNamespace(settings=settings, planned=(SimpleNamespace(epsilon=1.5),))
    planned = Budget(limits=(1.5,))
    due = planned if register is None else ("registered", "name of mine", planned)
    assert _budget(SimpleNamespace(plan=plan), "mine") == due


@pytest.mark.parametrize(("counts", "said"), [
    ([9] * 6, "3 public clients in a.csv"), ([9, 9, 9, 9, 1, 9], "2 of 3 public clients in a.csv"),
    ([1, 9, 9, 1, 9, 9], "1 of 3 public clients in a.csv"),
])  # fmt: skip
def test_people_who_hold_too_little_to_be_judged_are_not_counted_among_the_judged(tmp_path, counts, said):
    pool = pool_of(counts, tmp_path, clients=("ann", "ann", "bob", "bob", "cid", "cid"))
    task = SimpleNamespace(source=OwnSource(reader="vectors", path="data/a.csv"))
    test = Benchmark(pool=pool, shape=EpisodeShape(ways=2, shots=2, queries=2), seed=0, split="test")
    assert setup.judged_on(SimpleNamespace(task=task, test=pool), test) == said
    task = SimpleNamespace(source=load_task("strokes")[0].source)
    assert setup.judged_on(SimpleNamespace(task=task, test=pool), test) is None
