"""More rounds for a completed run: one plan of all rounds, within the promise, on the same ledger."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from itertools import combinations
from types import SimpleNamespace

import pytest
import torch

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.ledger import Ledger, RunIdentity, read_content
from dpfedmeta.accounting.ledger.population_register import begin_register, read_register
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.api import train as in_python
from dpfedmeta.cli import account_of_runs
from dpfedmeta.cli.account_of_runs import account_of
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.params import norm
from dpfedmeta.learning.server_optimizers.adam_rule import adam
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training import loop, setup
from dpfedmeta.training import run_training as run_module
from dpfedmeta.training.results.round_rows import round_row
from dpfedmeta.training.results.trained_run import open_run
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.state import extend as extension
from dpfedmeta.training.state.extend import limited
from dpfedmeta.training.state.resume import finished, settings_of_run
from dpfedmeta.training.verification.verify import audit, compose

TINY = {
    "model.width": "4", "population.cohort": "6", "population.clients": "60", "task.ways": "3", "task.shots": "2",
    "task.queries": "2", "evaluation.every": "2", "evaluation.validation_episodes": "2", "evaluation.episodes": "2",
    "run.workers": "1", "run.noise_seed": "3", "privacy.client.delta": "0.001", "clip.window": "2",
    "run.checkpoint_every": "2", "server.final_lr": "null", "server.average": "0.5",
}  # fmt: skip
NOISE = {"server.noise_multiplier": "2"}


@pytest.fixture(autouse=True)
def own_register(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


def begin(task_file, folder, rounds, name="r", algo="dp-agr", **given):
    values = {**TINY, "server.rounds": str(rounds), "run.dir": str(folder), "run.name": name, **given}
    return run_training(resolve(algo, str(task_file), None, values))[0]


def extend(run, rounds):
    return run_training(settings_of_run(run, {}), RunOptions(resume=run, extend_to=rounds))


def resume(run):
    return run_training(settings_of_run(run, {}), RunOptions(resume=run))


def rows(run):
    # Epsilons along the way are on a grid of their own for each plan; `audit` compares them with the ledger.
    left = ("seconds", "clients_per_second", "epsilons")
    return [{k: v for k, v in row.items() if k not in left} for row in run.rounds()]


def results(run):
    summary = run.read_json("summary.json")
    kept = ("accuracy", "guarantees", "planned", "status", "rounds")
    return run.weights.read_bytes(), rows(run), read_content(run.ledger).charges, {n: summary[n] for n in kept}


@pytest.fixture(scope="module")
def completed(tiny_task_file, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_STATE", str(tmp_path_factory.mktemp("state")))
        return begin(tiny_task_file, tmp_path_factory.mktemp("runs"), 3, **NOISE)


@pytest.fixture(scope="module")
def longer(tiny_task_file, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPFEDMETA_STATE", str(tmp_path_factory.mktemp("state")))
        return begin(tiny_task_file, tmp_path_factory.mktemp("runs"), 6, **NOISE)


@pytest.fixture
def run(completed, tmp_path):
    return RunDirectory(shutil.copytree(completed.path, tmp_path / "r"))


def test_an_extended_run_is_the_run_of_all_its_rounds(run, longer):
    write_report(run)
    before = run.weights.read_bytes()
    assert extend(run, 6)[1] == "completed"
    (weights, made, charges, summary), (due_weights, due, due_charges, due_summary) = results(run), results(longer)
    # Averages begin after 3 of 6 rounds; those of the 3 rounds that were all once do not count. A row is measured where
    # its run ended.
    made[2].pop("validation_accuracy")
    assert (weights, made, charges, summary) == (due_weights, due, due_charges, due_summary)
    aside = run.path / "after-3-rounds"
    assert RunDirectory(aside).read_json("summary.json")["rounds"] == 3
    assert (aside / "model.safetensors").read_bytes() == before
    assert (aside / "report.html").exists()
    assert not (run.path / "report.html").exists()
    write_report(run)
    verified = audit(run)
    within = limited(verified.proven.settings, verified.plan)
    words = "within its promise" if within else "and no target limits how many rounds follow"
    assert f"extended from 3 rounds, {words}" in verified.remarks
    cautions = account_of(run).cautions
    assert "it ended after 3 rounds, and was extended (train --extend)" in cautions
    assert any(line.startswith("no target limits its rounds") for line in cautions) is not within
    assert run.read_json("summary.json")["extended_from"] == [3]
    found = open_run(run.path)
    assert (found.rounds, found.planned_rounds) == (6, 6)
    # Its own checkpoints may be gone: the summary knows.
    for path in run.weights.parent.glob("round-*"):
        path.unlink()
    assert open_run(run.path).rounds == 6


def test_a_run_that_a_crash_cut_in_its_ledger_can_be_evaluated(run):
    (run.path / "summary.json").unlink()
    with run.ledger.open("a") as ledger:
        ledger.write('{"round": 3, "att')
    assert open_run(run.path).planned_rounds == 3


def test_a_spent_promise_is_not_exceeded(tiny_task_file, tmp_path):
    run = begin(tiny_task_file, tmp_path, 3, **{"privacy.client.epsilon": "1.5"})
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(RefusedPlan, match=r"promised \(client, public\) = 1\.5.*it is used up") as refusal:
        extend(run, 4)
    assert "4 rounds spend" in str(refusal.value)
    assert before == {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    # Written all the same, it does not pass.
    content = read_content(run.ledger)
    Ledger.resume(run.ledger, content, run.ledger.stat().st_size).extend(9)
    for name in ("summary.json", "plan.json"):
        (run.path / name).unlink()
    with pytest.raises(RefusedPlan, match="promised"):
        audit(run)


@pytest.mark.slow
def test_what_is_left_of_a_promise_may_be_used_and_the_cap_holds_over_all_rounds(tiny_task_file, tmp_path):
    given = {"population.max_participations": "1", "record.client_ledgers": "true", "privacy.client.epsilon": "3000"}
    run = begin(tiny_task_file, tmp_path, 3, algo="dp-agrlr-micro", **given)
    record = next(cell for cell in audit(run).guarantees if cell.name == "(record, server)")
    extend(run, 6)
    found = audit(run)
    assert next(cell for cell in found.guarantees if cell.name == "(record, server)").epsilon == record.epsilon
    lines = (run.secret / "participations.jsonl").read_text().splitlines()
    counts = Counter(client for line in lines for client in json.loads(line)["clients"])
    assert len(lines) == 6
    assert max(counts.values()) == 1
    # Without a cap more rounds are more participations, and the clients' own ledgers hold the server to what it said.
    limits = extension.promise(settings_of_run(run, {}), found.plan.begun).limits
    assert limits[0] == 3000
    assert limits[2] == record.epsilon


@pytest.mark.parametrize(
    "record",
    [
        None,
        RecordLayer(
            support_noise=None,
            support_steps=1,
            query_noise=1.6,
            support_records=25,
            query_records=25,
            parts="micro-episodes",
        ),
    ],
)
@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_the_epsilon_of_an_extended_plan_is_that_of_all_its_rounds(record, sampler):
    def plan(rounds):
        return PrivacyPlan(
            clients=1000, cohort=50, rounds=rounds, noise_multiplier=1.1, sampler=sampler, record=record, hostile=0.1,
            schedule=(Change(from_round=15, noise_scale=2.0),),
        )  # fmt: skip

    first, whole = plan(10), plan(40).phases
    extended = first.extended(20).extended(40)
    # No round of before costs anything else than it did.
    assert [extended.at(round_) for round_ in range(10)] == [first.at(round_) for round_ in range(10)]
    assert [extended.in_force(round_) for round_ in (0, 9, 10, 19, 20, 39)] == [10, 10, 20, 20, 40, 40]
    assert extended.begun == first
    for mine, anew in zip(guarantees(extended), guarantees(plan(40)), strict=True):
        # In shared mode the rare events of a round are those of the first plan.
        assert mine.epsilon == pytest.approx(anew.epsilon, rel=0.0 if record is None else 0.02)
    if record is None:
        assert extended.phases == whole
    for bad in (40, 39, 0):
        with pytest.raises(RefusedPlan):
            extended.extended(bad)


def test_old_and_new_rounds_have_noise_of_their_own(tiny_task_file, tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(loop, "round_row", lambda *given: released.append(given[-1]) or round_row(*given))
    run = begin(tiny_task_file, tmp_path, 3, **{"server.noise_multiplier": "30"})
    extend(run, 6)
    assert len(released) == 6
    noises = [torch.cat([value.flatten() for value in each.value.values()]) / each.noise_deviation for each in released]
    size = noises[0].numel() ** 0.5
    for noise in noises:
        assert norm({"it": noise}) == pytest.approx(size, rel=0.15)
    for one, other in combinations(noises, 2):
        assert abs(torch.dot(one, other)) < 5 * size


def test_a_crash_after_the_extension_is_written_is_resumed(run, longer, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_, **__):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "set_aside", killed)
        with pytest.raises(Killed):
            extend(run, 6)
    assert finished(run) is None
    resume(run)
    assert results(run)[0] == results(longer)[0]
    assert finished(run) == "completed"
    audit(run)


def test_what_cannot_be_extended_is_named(run, tmp_path, tiny_task_file, dpfedmeta):
    for rounds in (0, 3):
        with pytest.raises(InputError, match="number of rounds in all"):
            extend(run, rounds)
    assert "give the rounds" in dpfedmeta("train", "--extend", run.path, code=2).error
    assert "whole number" in dpfedmeta("train", "--extend", run.path, "--rounds", "2.5", code=2).error
    assert "no such run" in dpfedmeta("train", "--extend", tmp_path / "no", "--rounds", "9", code=2).error
    assert (
        "--server.lr: a run"
        in dpfedmeta("train", "--extend", run.path, "--rounds", "9", "--server.lr", "1", code=2).error
    )
    both = ("train", "--extend", run.path, "--resume", run.path, "--rounds", "9")
    assert "--extend, --resume" in dpfedmeta(*both, code=2).error
    with pytest.raises(InputError, match="extend_to"):
        in_python.train(extend_to=5)
    summary = run.path / "summary.json"
    summary.write_text(summary.read_text().replace('"completed"', '"interrupted"'))
    with pytest.raises(InputError, match="finish it first"):
        extend(run, 9)


def test_a_stale_copy_is_refused_and_copies_are_composed(run, tmp_path):
    copy = RunDirectory(shutil.copytree(run.path, tmp_path / "copy"))
    extend(run, 5)
    with pytest.raises(InputError, match="stale copy"):
        extend(copy, 5)
    assert len(read_content(copy.ledger).charges) == 3
    together = compose([copy, run])
    assert together.plan == read_content(run.ledger).plan
    assert together.charges == read_content(run.ledger).charges


def test_averaging_and_step_size_are_those_of_the_rounds_in_force(completed):
    settings = settings_of_run(completed, {})
    settings = replace(settings, server=replace(settings.server, average=0.5, final_lr=0.001))
    made = SimpleNamespace(
        settings=settings, privacy=replace(read_content(completed.ledger).plan, rounds=4).extended(8), rule=adam
    )
    assert [loop.averages(made, round_) for round_ in range(8)] == [False, False, *[True] * 6]
    assert [loop.optimizer(made, round_).rounds for round_ in (3, 4)] == [4, 8]


def test_a_ledger_that_is_extended_at_the_wrong_place_is_refused(run):
    content = read_content(run.ledger)
    for rounds in (3, 2, 9.0, True, "9"):
        copy = run.ledger.with_name("copy.jsonl")
        shutil.copy(run.ledger, copy)
        Ledger.resume(copy, content, copy.stat().st_size).extend(rounds)
        with pytest.raises((InputError, RefusedPlan)):
            read_content(copy)
    early = run.ledger.with_name("early.jsonl")
    ledger = Ledger(early, content.plan, content.identity)
    ledger.charge(content.charges[0])
    ledger.extend(9)
    with pytest.raises(InputError, match="extended to 9 rounds after 1 of 3"):
        read_content(early)
    stated = run.ledger.with_name("stated.jsonl")
    Ledger(stated, replace(content.plan, rounds=9, ends=(3,)), content.identity)
    with pytest.raises(InputError, match="extended plan"):
        read_content(stated)


CELLS = [(unit, observer) for unit in ("client", "record") for observer in ("public", "server")]


@pytest.mark.parametrize("ledgers", [False, True])
@pytest.mark.parametrize(
    ("client", "record", "expected"),
    [
        ((None, "public", None), (None, "server"), {}),
        ((3.0, "public", None), (None, "server"), {("client", "public"): 3.0}),
        ((3.0, "server", None), (None, "server"), {("client", "server"): 3.0}),
        ((None, "public", 5.0), (None, "server"), {("client", "public"): 5.0}),
        ((3.0, "server", 5.0), (2.0, "public"), {
            ("client", "server"): 3.0, ("client", "public"): 5.0, ("record", "public"): 2.0}),
        ((3.0, "public", 5.0), (2.0, "server"), {("client", "public"): 3.0, ("record", "server"): 2.0}),
    ],
)  # fmt: skip
def test_every_target_that_a_run_began_with_stays_its_limit(client, record, expected, ledgers):
    settings = SimpleNamespace(
        privacy=SimpleNamespace(
            client=SimpleNamespace(epsilon=client[0], observer=client[1], limit=client[2]),
            record=SimpleNamespace(epsilon=record[0], observer=record[1]),
        ),
        record=SimpleNamespace(client_ledgers=ledgers),
    )
    layer = RecordLayer(support_noise=None, query_noise=40.0, support_steps=1, support_records=1, query_records=4)
    plan = PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0, record=layer)
    begun = next(cell.epsilon for cell in guarantees(plan) if (cell.unit, cell.observer) == ("record", "server"))
    assert begun < 2.0
    expected = {**expected, **({("record", "server"): begun} if ledgers else {})}
    found = extension.promise(settings, plan)
    by_cell = dict(zip([(cell.unit, cell.observer) for cell in guarantees(plan)], found.limits, strict=True))
    assert by_cell == {cell: expected.get(cell, math.inf) for cell in CELLS}


@pytest.mark.parametrize(
    ("attempts", "status", "words"),
    [
        ([0, 0, 0], "completed", None),
        ([0, 0, 1], "budget", "2 of 3 rounds are charged and the run is not completed; its promise is used up"),
        ([0, 0, 1, 2], "budget", "2 of 3 rounds are charged"),
        ([0, 0, 1, 0], "completed", None),
        ([0, 0, 0], "interrupted", "finish it first"),
        ([0, 0], None, "finish it first"),
    ],
)
def test_a_run_is_extended_when_each_of_its_rounds_is_charged_however_often(tmp_path, attempts, status, words):
    """Further attempts at a round are no rounds."""
    done, charges = -1, []
    for attempt in attempts:
        done += not attempt
        charges.append(SimpleNamespace(round=done, attempt=attempt))
    run = RunDirectory(tmp_path)
    if status is not None:
        run.write_json("summary.json", {"status": status})
    plan = PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0)
    content = SimpleNamespace(plan=plan, charges=charges, identity=RunIdentity())
    settings = resolve("dp-agr", "strokes", None, {"privacy.client.epsilon": "null", **NOISE})
    if words is None:
        assert extension.extended_plan(run, settings, content, 5) == plan.extended(5)
        with pytest.raises(InputError, match="already has 3; give more"):
            extension.extended_plan(run, settings, content, 3)
    else:
        with pytest.raises(InputError, match=words):
            extension.extended_plan(run, settings, content, 5)


def test_a_population_register_counts_runs_and_extensions_before_they_are_charged(tiny_task_file, tmp_path):
    people = begin_register(tmp_path / "people", 3.0, 1e-3).path
    simulated = {**NOISE, "population.register": str(people)}
    before = people.read_bytes()
    with pytest.raises(InputError, match=r"population\.register = .*: run\.noise_seed = 3 makes the run a simulation"):
        begin(tiny_task_file, tmp_path / "none", 2, algo="dp-agr", **simulated)
    assert people.read_bytes() == before
    assert not (tmp_path / "none").exists()
    given = simulated | {"run.noise_seed": "null"}
    first = begin(tiny_task_file, tmp_path, 2, algo="dp-agr", **given)
    (one,) = read_register(people).runs
    assert (one.run, one.plan) == (read_content(first.ledger).identity.run, read_content(first.ledger).plan)
    extend(first, 4)
    (longer,) = read_register(people).runs
    assert longer.plan.rounds == 4
    assert longer.cost == pytest.approx(2 * one.cost)
    assert f"register: {people} holds no less for this run than it charged" in account_of_runs._verified(first).remarks
    before = people.read_bytes()
    with pytest.raises(RefusedPlan, match="leaves too little"):
        begin(tiny_task_file, tmp_path, 400, name="long", algo="dp-agr", **given)
    assert people.read_bytes() == before
    assert not (tmp_path / "long").exists()
    with pytest.raises(InputError, match="begin a register"):
        begin(tiny_task_file, tmp_path, 2, name="none", algo="dp-agr", **given | {"population.register": "nowhere"})
    assert not (tmp_path / "none").exists()


def refuse(*given, **named):
    raise InputError("refused")


@pytest.mark.parametrize("check", ["create", "registered", "_trackers", "make_plan"])
def test_a_run_that_cannot_begin_reserves_nothing(tiny_task_file, tmp_path, monkeypatch, check):
    """However often it is tried: what is reserved stays reserved, so everything else comes first."""
    people = begin_register(tmp_path / "people", 3.0, 1e-3).path
    given = NOISE | {"population.register": str(people), "run.noise_seed": "null"}
    before = people.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(setup if check == "make_plan" else run_module, check, refuse)
        for _ in range(2):
            with pytest.raises(InputError, match="refused"):
                begin(tiny_task_file, tmp_path, 2, **given)
            assert not (tmp_path / "r").exists()
            assert people.read_bytes() == before
    begin(tiny_task_file, tmp_path, 2, **given)
    assert len(read_register(people).runs) == 1


def test_a_process_that_ended_before_it_reserved_does_so_when_it_goes_on(tiny_task_file, tmp_path, monkeypatch):
    people = begin_register(tmp_path / "people", 3.0, 1e-3).path
    given = NOISE | {"population.register": str(people), "run.noise_seed": "null"}

    def killed(*given):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_trackers", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(tiny_task_file, tmp_path, 2, **given)
    run = RunDirectory(tmp_path / "r")
    assert not read_register(people).runs
    assert not read_content(run.ledger).charges
    assert resume(run)[1] == "completed"
    assert [each.run for each in read_register(people).runs] == [read_content(run.ledger).identity.run]


@pytest.mark.parametrize("first", [3.0, 5.0])
def test_of_two_targets_of_one_cell_the_smaller_one_stays_the_limit(first):
    """Whichever of them is named first."""
    privacy = SimpleNamespace(
        client=SimpleNamespace(epsilon=first, observer="public", limit=8.0 - first),
        record=SimpleNamespace(epsilon=None, observer="server"),
    )
    settings = SimpleNamespace(privacy=privacy, record=SimpleNamespace(client_ledgers=False))
    plan = PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0)
    assert extension.promise(settings, plan).limits == (3.0, math.inf, math.inf, math.inf)


OF_THE_END = {
    "summary.json",
    "report.html",
    "episodes.json",
    "evaluation.json",
    "evaluations",
    "accuracy.png",
    "clip.png",
}
STAYS = {"ledger.jsonl", "rounds.jsonl", "config.yaml", "plan.json", "checkpoint"}


@pytest.mark.parametrize(("rounds", "status", "moved"), [
    (3, "completed", True), (3, "budget", True), (3, "interrupted", False), (4, "completed", False),
    (None, None, False),
])  # fmt: skip
def test_what_describes_the_end_is_set_aside_and_the_summary_last(tmp_path, monkeypatch, rounds, status, moved):
    """As long as the summary is there, a crash has left something to do."""
    run, order, move = RunDirectory(tmp_path), [], shutil.move
    for name in (*OF_THE_END, *STAYS):
        path = tmp_path / name
        path.mkdir() if "." not in name else path.write_text("{}")
    (tmp_path / "checkpoint/model.safetensors").write_text("")
    if status is None:
        (tmp_path / "summary.json").unlink()
    else:
        run.write_json("summary.json", {"rounds": rounds, "status": status})
    monkeypatch.setattr(shutil, "move", lambda path, to: order.append(path.name) or move(path, to))
    folder = extension.set_aside(run, 3)
    assert folder == tmp_path / "after-3-rounds"
    there = {path.name for path in folder.iterdir()}
    assert there == (OF_THE_END | {"model.safetensors"} if moved else set())
    assert {path.name for path in tmp_path.iterdir()} >= STAYS
    assert not moved or order[-1] == "summary.json"
    assert extension.set_aside(run, 3) == folder
    assert {path.name for path in folder.iterdir()} == there
