"""What rows say was spent: from the ledger's charges, however often a round had to be charged."""

from dataclasses import replace

import pytest
import torch

from dpfedmeta.accounting.divergences.pld_composition import sampled_delta
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, read, spent
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.learning.evaluation import Benchmark
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.training.loop import Training
from dpfedmeta.training.results.round_rows import charged_after, delta_at_limit
from dpfedmeta.training.tracking.callbacks import JsonLines

SMALL = {
    "model.width": "4", "server.rounds": "8", "task.ways": "3", "task.shots": "2", "task.queries": "2",
    "population.clients": "2000", "population.cohort": "20", "clip.window": "3", "evaluation.every": "8",
    "evaluation.validation_episodes": "2", "run.checkpoint_every": "3",
}  # fmt: skip


class Crash(Exception):
    """The process ends here."""


class Clients:
    """Clients that send nothing; while those of round `ends` compute, the process ends."""

    def __init__(self, ends=None):
        self.ends = ends

    def cohort_sum(self, model, bound, cohort):
        if cohort.round == self.ends:
            raise Crash
        return Bounded(value={n: torch.zeros_like(v) for n, v in model.items()}, sensitivity=bound)


def plan_of(tiny_strokes, algo="dp-agr", **given):
    return make_plan(resolve(algo, "strokes", None, SMALL | given), tiny_strokes.task)


def go(tiny_strokes, plan, run, *, ends=None, environment="here", source=None):
    """Train or go on; the epsilons of the last row, and of the ledger."""
    training = Training(
        plan=plan,
        run=run,
        backend=Clients(ends),
        workers=InProcess(),
        validation=Benchmark(pool=tiny_strokes.val, shape=plan.shape, seed=0, split="val"),
        source=source or KeyedSource(1),
        trackers=(JsonLines(run.path),),
        budget=Budget.of(plan.planned),
        environment=environment,
    )
    try:
        training()
    except Crash:
        assert ends is not None
    return run.rounds()


def assert_as_the_ledger(rows, run):
    cells = spent(*read(run.ledger))
    told = [None if cell.epsilon == float("inf") else cell.epsilon for cell in cells]
    for said, found in zip(rows[-1]["epsilons"].values(), told, strict=True):
        assert said is found is None or found <= said * (1 + 1e-9) <= 1.011 * found


@pytest.mark.parametrize("how", ["another environment", "secure"])
def test_a_further_attempt_is_in_the_rows_as_in_the_ledger(tiny_strokes, tmp_path, how):
    plan, run = plan_of(tiny_strokes), create(tmp_path, "r")
    source = OperatingSystemSource() if how == "secure" else None
    go(tiny_strokes, plan, run, ends=5, source=source)
    rows = go(tiny_strokes, plan, run, environment="elsewhere", source=source)
    events = read(run.ledger)[1]
    assert any(event.attempt for event in events)
    # The budget ends the run when the plan's eight charges are made.
    assert len(events) == 8
    assert len(rows) < 8
    assert_as_the_ledger(rows, run)
    assert rows[-1]["epsilons"]["client_public"] == pytest.approx(plan.planned[0].epsilon)


def test_a_round_done_again_identically_has_the_row_it_had(tiny_strokes, tmp_path):
    plan, whole, cut = plan_of(tiny_strokes), create(tmp_path, "whole"), create(tmp_path, "cut")
    rows = go(tiny_strokes, plan, whole)
    assert_as_the_ledger(rows, whole)
    go(tiny_strokes, plan, cut, ends=5)
    # Rows 3 and 4 are made again from the checkpoint before them, when round 5 is charged already.
    lines = cut.rounds_file.read_text().splitlines(keepends=True)
    cut.rounds_file.write_text("".join(lines[:3]))
    go(tiny_strokes, plan, cut)
    for one, two in zip(rows, cut.rounds(), strict=True):
        assert {**one, "seconds": 0} == {**two, "seconds": 0}


def test_aborted_rounds_count_what_the_ledger_holds(tiny_strokes, tmp_path, monkeypatch):
    plan, run = plan_of(tiny_strokes), create(tmp_path, "r")
    go(tiny_strokes, plan, run, ends=1)
    go(tiny_strokes, plan, run, ends=3, environment="elsewhere")
    monkeypatch.setattr(Training, "_released", lambda self, state, remembered, *_: (None, remembered))
    rows = go(tiny_strokes, plan, run, environment="elsewhere")
    assert rows[-1]["aborted"]
    assert_as_the_ledger(rows, run)


def test_delta_at_the_limit_is_that_of_the_ledger(tiny_strokes, tmp_path):
    given = {"privacy.client.epsilon": "null", "server.noise_multiplier": "0.9", "privacy.client.limit": "2"}
    given["evaluation.every"] = "1"
    plan, run = plan_of(tiny_strokes, **given), create(tmp_path, "r")
    go(tiny_strokes, plan, run, ends=3)
    rows = go(tiny_strokes, plan, run, environment="elsewhere")
    phase = Phase(event=plan.privacy.at(0), rounds=len(read(run.ledger)[1]))
    assert phase.rounds > len(rows)
    assert rows[-1]["delta_at_limit"] == pytest.approx(sampled_delta([phase], "add-remove", 2.0))


def test_delta_at_the_limit_holds_what_surplus_clients_take():
    (phase,) = PrivacyPlan(clients=1000, cohort=10, rounds=10, noise_multiplier=1.0).phases
    plain = delta_at_limit([phase], 1.0)
    assert delta_at_limit([replace(phase, event=replace(phase.event, surplus_probability=1e-3))], 1.0) == pytest.approx(
        plain + 10 * 1e-3
    )


def test_without_a_further_attempt_a_row_counts_its_own_rounds_only(tiny_strokes, tmp_path):
    plan = plan_of(tiny_strokes).privacy
    plan = replace(plan, schedule=(Change(from_round=3, noise_scale=1.5),))
    ledger = Ledger(tmp_path / "l", plan)
    for round_ in range(6):
        ledger.charge(planned_charge(plan, round_))
    assert [s.rounds for s in charged_after(ledger, 1)] == [2]
    assert [s.rounds for s in charged_after(ledger, 4)] == [3, 2]
    # As soon as one round has two charges, every row counts all that there are.
    ledger.charge(replace(planned_charge(plan, 4), attempt=1))
    assert [s.rounds for s in charged_after(ledger, 4)] == [3, 4]
    ledger.charge(replace(planned_charge(plan, 5), attempt=1))
    assert [s.rounds for s in charged_after(ledger, 5)] == [3, 5]
