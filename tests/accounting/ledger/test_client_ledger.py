import json
import math
import stat
from dataclasses import dataclass, replace

import numpy as np
import pytest

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates, epsilon_of_discrete
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.client_ledger import NO_COST, ClientLedger, RecordBudget, RunCost
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.availability import ClientLedgers

LAYER = RecordLayer(support_noise=4.0, query_noise=1.6, support_steps=5, support_records=25, query_records=25)
PLAN = PrivacyPlan(clients=1000, cohort=100, rounds=20, noise_multiplier=1.0, max_participations=3, record=LAYER)


def budget(participations):
    cell = guarantees(replace(PLAN, max_participations=participations))[2]
    return RecordBudget(epsilon=cell.epsilon, delta=cell.delta)


def test_a_client_takes_part_as_often_as_it_was_promised_and_then_declines(tmp_path):
    ledger = ClientLedger(tmp_path / "c", budget(3))
    for round_ in range(3):
        assert ledger.accepts(LAYER)
        ledger.charge(round_, LAYER)
    assert not ledger.accepts(LAYER)
    assert ledger.epsilon == pytest.approx(budget(3).epsilon)
    with pytest.raises(ValueError, match="would exceed"):
        ledger.charge(3, LAYER)


def test_what_was_spent_survives_and_is_what_the_accountant_says(tmp_path):
    ClientLedger(tmp_path / "c", budget(3)).charge(0, LAYER)
    again = ClientLedger(tmp_path / "c", budget(3))
    assert again.epsilon == pytest.approx(budget(1).epsilon)
    again.charge(7, LAYER)
    assert ClientLedger(tmp_path / "c", budget(3)).epsilon == pytest.approx(budget(2).epsilon)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600


def test_other_noise_counts_as_what_it_is(tmp_path):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=3.0, delta=1e-5))
    ledger.charge(0, LAYER)
    strong = replace(LAYER, query_noise=0.5)
    assert not ledger.accepts(strong)
    assert ledger.epsilon == pytest.approx(gaussian_epsilon(1 / 1.6, 1e-5))


def test_an_edited_ledger_or_another_budget_is_refused(tmp_path):
    path = tmp_path / "c"
    ClientLedger(path, budget(3)).charge(0, LAYER)
    with pytest.raises(
        InputError,
        match=r"has the limit epsilon .*, delta 1e-05; give the same one, or set another .* by --change-limit",
    ):
        ClientLedger(path, budget(2))
    path.write_text(path.read_text().replace('"mu"', '"nu"'))
    with pytest.raises(InputError, match=r"line|mu"):
        ClientLedger(path, budget(3))


def test_a_limit_may_be_changed_and_what_was_spent_stays_counted(tmp_path):
    path, tight = tmp_path / "c", budget(1)
    ClientLedger(path, tight).charge(0, LAYER)
    assert not ClientLedger(path, tight).accepts(LAYER)
    changed = ClientLedger(path, budget(2), change=True)
    changed.charge(1, LAYER)
    assert not changed.accepts(LAYER)
    # It holds from then on, without being asked for again; a lower one too.
    again = ClientLedger(path, budget(2))
    assert (again.epsilon, again.participations) == (pytest.approx(changed.epsilon), 2)
    with pytest.raises(InputError, match="--change-limit"):
        ClientLedger(path, tight)
    assert not ClientLedger(path, tight, change=True).accepts(LAYER)
    # The line is in the chain: nobody takes it out unnoticed.
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if '"budget"' not in line or line is lines[0]))
    with pytest.raises(InputError, match="hash chain"):
        ClientLedger(path, tight)


@pytest.mark.parametrize("change", [False, True])
@pytest.mark.parametrize("units", [("record", "client"), ("client", "record")])
def test_what_a_record_spent_is_not_taken_for_what_a_client_spent(tmp_path, units, change):
    """The mu of a record is a small part of that of its client, in the same participation."""
    first, second = (replace(budget(3), unit=unit) for unit in units)
    ClientLedger(tmp_path / "c", first).charge(0, LAYER)
    with pytest.raises(InputError, match=f"give --unit {units[0]}"):
        ClientLedger(tmp_path / "c", second, change=change)


def test_a_line_that_a_crash_tore_was_never_answered_and_is_charged_again(tmp_path):
    path = tmp_path / "c"
    ledger = ClientLedger(path, budget(3))
    for round_ in (0, 1):
        ledger.charge(round_, LAYER)
    whole = path.read_text()
    path.write_text(whole[:-5])
    mended = ClientLedger(path, budget(3))
    assert (mended.holds(0), mended.holds(1)) == (True, False)
    mended.charge(1, LAYER)
    assert path.read_text() == whole
    path.write_text(whole[:20])
    assert ClientLedger(path, budget(3)).epsilon == 0.0


def test_an_attempt_at_a_round_is_charged_on_its_own(tmp_path):
    ledger = ClientLedger(tmp_path / "c", budget(3))
    ledger.charge(4, LAYER)
    once = ledger.epsilon
    ledger.charge(4, LAYER, again=(1, 77))
    assert ledger.epsilon > once
    again = ClientLedger(tmp_path / "c", budget(3))
    assert again.holds(4, (1, 77))
    assert not again.holds(4, (2, 77))


def test_a_cohort_keeps_those_who_are_willing(tmp_path):
    ledgers = ClientLedgers(folder=tmp_path / "clients", budget=budget(2), each=LAYER)
    cohorts = [Cohort(round=r, clients=np.asarray([1, 2 + r], dtype=np.int64)) for r in range(4)]
    stayed = [ledgers.willing(cohort).clients.tolist() for cohort in cohorts]
    assert stayed == [[1, 2], [1, 3], [4], [5]]
    assert sorted(file.name for file in (tmp_path / "clients").iterdir()) == [f"{c}.jsonl" for c in (1, 2, 3, 4, 5)]
    assert stat.S_IMODE((tmp_path / "clients").stat().st_mode) == 0o700
    assert ledgers.willing(Cohort(round=9, clients=np.empty(0, dtype=np.int64))).clients.size == 0


def test_what_a_run_costs_besides_is_counted_once_and_survives(tmp_path):
    """Rare events and discrete noise: of each run once, on disk, and in the same words again."""
    rare = RunCost(rare=4e-6, coordinates=(Coordinates(count=512.0, variance=1e4, blended=0.0),))
    ledger = ClientLedger(tmp_path / "l", RecordBudget(epsilon=5.0, delta=1e-5))
    plain = ClientLedger(tmp_path / "p", RecordBudget(epsilon=5.0, delta=1e-5))
    found = []
    for run, round_ in (("a", 0), ("a", 1), ("b", 0)):
        for each in (ledger, plain):
            each.charge(round_, Mu(0.3), run=run, cost=rare if each is ledger else NO_COST)
        found.append((ledger.epsilon, plain.epsilon))
    assert all(one > other for one, other in found)
    # Exactly: what is left of delta, and beside it the two runs' coordinates together.
    left = 1e-5 - 8e-6
    both = [replace(rare.coordinates[0], count=1024.0)]

    def at(delta):
        return gaussian_epsilon(0.3 * math.sqrt(3), delta)

    assert ledger.epsilon == pytest.approx(epsilon_of_discrete(at, left, at(left), both))
    lines = [json.loads(line) for line in (tmp_path / "l").read_text().splitlines()[1:]]
    assert ["rare" in line for line in lines] == ["discrete" in line for line in lines] == [True, False, True]
    assert ClientLedger(tmp_path / "l", RecordBudget(epsilon=5.0, delta=1e-5)).epsilon == ledger.epsilon
    # One that an earlier version began, which did not count it, pays with its next participation; so after a restart.
    for name, again in (("o", False), ("r", True)):
        old = ClientLedger(tmp_path / name, RecordBudget(epsilon=5.0, delta=1e-5))
        old.charge(0, Mu(0.3), run="a")
        before = old.epsilon
        old = ClientLedger(tmp_path / name, RecordBudget(epsilon=5.0, delta=1e-5)) if again else old
        old.charge(1, Mu(0.0), run="a", cost=rare)
        assert old.epsilon > before
        spent = old.epsilon
        old = ClientLedger(tmp_path / name, RecordBudget(epsilon=5.0, delta=1e-5)) if again else old
        old.charge(2, Mu(0.0), run="a", cost=rare)
        assert old.epsilon == spent
    # A third such run has no delta left.
    assert ledger.further([Mu(1e-9)], run="b", cost=rare) == 1
    assert ledger.further([Mu(1e-9)], run="c", cost=rare) == 0
    assert not ledger.accepts(Mu(1e-9), run="c", cost=rare)


def test_how_many_more_fit_is_what_is_then_accepted(tmp_path):
    budget = RecordBudget(epsilon=3.0, delta=1e-5, participations=9)
    ledger = ClientLedger(tmp_path / "l", budget)
    layers = [Mu(0.1 * (1 + number % 3)) for number in range(20)]
    fit = ledger.further(layers)
    assert 0 < fit <= 9
    done = 0
    while done < len(layers) and ledger.accepts(layers[done]):
        assert ledger.further(layers[done:]) == fit - done
        ledger.charge(done, layers[done])
        done += 1
    assert done == fit
    assert ledger.further([]) == 0
    infinite = RunCost(coordinates=(Coordinates(count=1.0, variance=1.0, blended=math.inf),))
    assert ledger.further([Mu(0.0)], run="r", cost=infinite) == 0
    trusted = ClientLedger(tmp_path / "t", RecordBudget(epsilon=None, delta=1e-5, participations=2))
    trusted.charge(0, Mu(math.inf), run="r", cost=infinite)
    assert ClientLedger(tmp_path / "t", RecordBudget(epsilon=None, delta=1e-5, participations=2)).epsilon == math.inf
    before = (tmp_path / "t").read_bytes()
    with pytest.raises(ValueError, match="NaN"):
        trusted.charge(1, Mu(math.nan), run="r")
    assert (tmp_path / "t").read_bytes() == before


@dataclass(frozen=True)
class Mu:
    """A participation of one role."""

    mu: float

    def roles(self):
        return (self.mu,)


def test_a_client_that_is_asked_again_in_one_attempt_is_charged_once(tmp_path):
    ledgers = ClientLedgers(folder=tmp_path / "clients", budget=budget(9), each=LAYER)
    spent = []
    for again in ((), (), (1, 77), (1, 77), (2, 77), (1, 77)):
        assert ledgers.willing(Cohort(round=3, clients=np.asarray([5]), again=again)).clients.tolist() == [5]
        spent.append(ClientLedger(tmp_path / "clients" / "5.jsonl", budget(9)).participations)
    assert spent == [1, 1, 2, 2, 3, 3]
