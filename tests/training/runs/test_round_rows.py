"""What rows say was spent: from the ledger's charges, however often a round had to be charged."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpfedmeta.accounting.divergences.pld_composition import sampled_delta
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.honest_norm import CHANCE
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, read, spent
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import create
from dpfedmeta.core.random.random_sources import KeyedSource, OperatingSystemSource
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.learning.evaluation import Benchmark
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.units import Bounded
from dpfedmeta.training.loop import Training
from dpfedmeta.training.results import round_rows
from dpfedmeta.training.results.round_rows import (
    RELEASED,
    TOO_LONG,
    aborted_row,
    charged_after,
    compared,
    delta_at_limit,
    round_row,
    running_epsilons,
    signal_to_noise,
    too_long_words,
)
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


@pytest.mark.parametrize("bits", [12, 18])
def test_delta_at_the_limit_counts_what_discrete_noise_costs(bits):
    sizes = {"clients": 10_000, "cohort": 300.0, "rounds": 5, "noise_multiplier": 1.0, "client_delta": 1e-6}
    plan = PrivacyPlan(**sizes, sampler="fixed", server_sees="sum", secure=SecureRounds(bits=bits, dimension=64))
    epsilon = next(cell.epsilon for cell in guarantees(plan) if cell.name == "(client, public)")
    assert delta_at_limit(plan.phases, epsilon) == pytest.approx(1e-6, rel=0.01)
    plain = replace(plan, secure=None, server_sees="messages")
    assert delta_at_limit(plain.phases, epsilon) < (1e-8 if bits == 12 else 1.1e-6)


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


@pytest.mark.parametrize(("norm", "noise", "due"), [
    (5.0, 4.0, 0.75), (5.0, 3.0, 4 / 3), (3.0, 5.0, 0.0), (2.0, 2.0, 0.0), (5.0, 0.0, None),
])  # fmt: skip
def test_the_share_of_signal_is_what_noise_does_not_explain(norm, noise, due):
    assert signal_to_noise(norm, noise) == (due if due is None else pytest.approx(due))


def released(**values):
    value = {"w": torch.tensor([3.0, 4.0]), "attached": torch.tensor([12.0])}
    return SimpleNamespace(**{"value": value, "noise_deviation": 0.5, "length": 13.0, "size": 3} | values)


def test_a_row_is_of_the_model_s_part_of_a_release_and_the_bound_before_it(monkeypatch):
    """What clients attached for the clip policy is no part of the model."""
    monkeypatch.setattr(round_rows, "running_epsilons", lambda plan, charged: ("epsilons", plan, charged))
    sent = {"w": torch.zeros(2)}
    policy = SimpleNamespace(mode="holding")
    state = SimpleNamespace(round=7, bound=0.25, policy=policy, model={"other": 1}, first=sent)
    row = round_row("plan", "charged", state, released())
    noise = 0.5 * 2**0.5
    assert row == {
        "round": 7, "clip": 0.25, "clip_mode": "holding", "aggregate_norm": 5.0, "noise_norm_expected": noise,
        "signal_to_noise": pytest.approx((25 - noise**2) ** 0.5 / noise), "epsilons": ("epsilons", "plan", "charged"),
    }  # fmt: skip
    state.bound = float("inf")
    aborted = aborted_row("plan", "charged", state)
    assert aborted == {"round": 7, "aborted": True, "clip": None, "clip_mode": "holding", "epsilons": row["epsilons"]}


@pytest.mark.parametrize("most", [None, 12.0, 13.0, 14.0])
@pytest.mark.parametrize("rests", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_a_release_is_too_long_where_honest_clients_give_less_and_cohorts_are_known(monkeypatch, most, rests, again):
    """Its whole length, with what clients attached, against that of whole honest messages."""
    asked = []
    monkeypatch.setattr(round_rows, "spacing_of", lambda privacy: 4 if rests else None)
    monkeypatch.setattr(round_rows, "honest_norm", lambda *given, **named: asked.append((given, named)) or most)
    plan = SimpleNamespace(
        privacy=SimpleNamespace(at=lambda round_: ("at", round_)), message_bound=lambda bound: 2 * bound,
        settings=SimpleNamespace(server=SimpleNamespace(noise="mine:noise" if rests else "independent")),
    )  # fmt: skip
    ledger = SimpleNamespace(charges=[SimpleNamespace(attempt=0), SimpleNamespace(attempt=int(again))])
    state = SimpleNamespace(round=7, bound=0.25)
    found = compared(plan, ledger, state, released())
    if rests and again:
        assert found == {}
        assert asked == []
        return
    assert found == ({TOO_LONG: 12.0, RELEASED: 13.0} if most == 12.0 else {})
    assert asked == [((("at", 7),), {"moved": 0.5, "deviation": 0.5, "dimension": 3, "own_noise": rests})]


def test_the_operator_is_told_both_lengths_and_how_rare_that_is():
    said = too_long_words({"round": 7, TOO_LONG: 12.0, RELEASED: 13.5})
    assert said.startswith("round 7: the released mean has norm 13.5, but honest clients give at most 12 (except in")
    assert f"one round in {1 / CHANCE:,.0f})" in said


def test_a_running_epsilon_is_no_more_than_the_promise_and_no_infinity_of_json(monkeypatch):
    def cells(*values):
        names = (("client", "public"), ("client", "server"), ("record", "server"))
        return [SimpleNamespace(unit=u, observer=o, epsilon=e) for (u, o), e in zip(names, values, strict=True)]

    monkeypatch.setattr(round_rows, "four_cells", lambda *given: cells(2.0, 3.0, float("inf")))
    monkeypatch.setattr(round_rows, "Terms", SimpleNamespace(of=lambda privacy: None))
    plan = SimpleNamespace(privacy=None, running_grid=1e-3, planned=cells(2.5, 2.75, float("inf")))
    found = running_epsilons(plan, ())
    assert found == {"client_public": 2.0, "client_server": 2.75, "record_server": None}
