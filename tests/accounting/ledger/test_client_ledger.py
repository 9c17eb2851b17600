import json
import math
import stat
from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates, epsilon_of_discrete
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.record_layer import RecordLayer, default_relation, holding
from dpfedmeta.accounting.ledger.client_ledger import NO_COST, ClientLedger, RecordBudget, RunCost
from dpfedmeta.accounting.ledger.hash_chain import VERSION, HashChain
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.participation_cost import Spending
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.fresh_seeds import attempt_bytes
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.simulation.availability import ClientLedgers

LAYER = RecordLayer(support_noise=4.0, query_noise=1.6, support_steps=5, support_records=25, query_records=25)


def of(layer):
    """What a participation under this layer costs a record."""
    return Spending(mus={each: layer.towards_messages(each)[0] for each in holding(layer)},
                    relation=default_relation(layer))  # fmt: skip


def mu_of(mu):
    return Spending(mus={"zero-out": mu})


SPENT = of(LAYER)
PLAN = PrivacyPlan(clients=1000, cohort=100, rounds=20, noise_multiplier=1.0, max_participations=3, record=LAYER)


def budget(participations):
    cell = guarantees(replace(PLAN, max_participations=participations))[2]
    return RecordBudget(epsilon=cell.epsilon, delta=cell.delta)


def test_a_client_takes_part_as_often_as_it_was_promised_and_then_declines(tmp_path):
    ledger = ClientLedger(tmp_path / "c", budget(3))
    for round_ in range(3):
        assert ledger.accepts(SPENT)
        ledger.charge(round_, SPENT)
    assert not ledger.accepts(SPENT)
    assert ledger.epsilon == pytest.approx(budget(3).epsilon)
    with pytest.raises(ValueError, match="would exceed"):
        ledger.charge(3, SPENT)


def test_what_was_spent_survives_and_is_what_the_accountant_says(tmp_path):
    ClientLedger(tmp_path / "c", budget(3)).charge(0, SPENT)
    again = ClientLedger(tmp_path / "c", budget(3))
    assert again.epsilon == pytest.approx(budget(1).epsilon)
    again.charge(7, SPENT)
    assert ClientLedger(tmp_path / "c", budget(3)).epsilon == pytest.approx(budget(2).epsilon)
    assert stat.S_IMODE((tmp_path / "c").stat().st_mode) == 0o600


def test_other_noise_counts_as_what_it_is(tmp_path):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=3.0, delta=1e-5))
    ledger.charge(0, SPENT)
    strong = replace(LAYER, query_noise=0.5)
    assert not ledger.accepts(of(strong))
    assert ledger.epsilon == pytest.approx(gaussian_epsilon(1 / 1.6, 1e-5))


def test_an_edited_ledger_or_another_budget_is_refused(tmp_path):
    path = tmp_path / "c"
    ClientLedger(path, budget(3)).charge(0, SPENT)
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
    ClientLedger(path, tight).charge(0, SPENT)
    assert not ClientLedger(path, tight).accepts(SPENT)
    changed = ClientLedger(path, budget(2), change=True)
    changed.charge(1, SPENT)
    assert not changed.accepts(SPENT)
    # It holds from then on, without being asked for again; a lower one too.
    again = ClientLedger(path, budget(2))
    assert (again.epsilon, again.participations) == (pytest.approx(changed.epsilon), 2)
    with pytest.raises(InputError, match="--change-limit"):
        ClientLedger(path, tight)
    assert not ClientLedger(path, tight, change=True).accepts(SPENT)
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
    ClientLedger(tmp_path / "c", first).charge(0, SPENT if units[0] == "record" else Spending(mus={"client": 1.0}))
    with pytest.raises(InputError, match=f"give --unit {units[0]}"):
        ClientLedger(tmp_path / "c", second, change=change)


def test_a_line_that_a_crash_tore_was_never_answered_and_is_charged_again(tmp_path):
    path = tmp_path / "c"
    ledger = ClientLedger(path, budget(3))
    for round_ in (0, 1):
        ledger.charge(round_, SPENT)
    whole = path.read_text()
    path.write_text(whole[:-5])
    mended = ClientLedger(path, budget(3))
    assert (mended.holds(0), mended.holds(1)) == (True, False)
    mended.charge(1, SPENT)
    assert path.read_text() == whole
    path.write_text(whole[:20])
    assert ClientLedger(path, budget(3)).epsilon == 0.0


def test_an_attempt_at_a_round_is_charged_on_its_own(tmp_path):
    ledger = ClientLedger(tmp_path / "c", budget(3))
    ledger.charge(4, SPENT)
    once = ledger.epsilon
    ledger.charge(4, SPENT, again=(1, 77))
    assert ledger.epsilon > once
    again = ClientLedger(tmp_path / "c", budget(3))
    assert again.holds(4, (1, 77))
    assert not again.holds(4, (2, 77))


def test_a_cohort_keeps_those_who_are_willing(tmp_path):
    ledgers = ClientLedgers(folder=tmp_path / "clients", budget=budget(2), each=SPENT)
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
            each.charge(round_, mu_of(0.3), run=run, cost=rare if each is ledger else NO_COST)
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
    # A run that began without it pays with its next participation; so after a restart.
    for name, again in (("o", False), ("r", True)):
        old = ClientLedger(tmp_path / name, RecordBudget(epsilon=5.0, delta=1e-5))
        old.charge(0, mu_of(0.3), run="a")
        before = old.epsilon
        old = ClientLedger(tmp_path / name, RecordBudget(epsilon=5.0, delta=1e-5)) if again else old
        old.charge(1, mu_of(0.0), run="a", cost=rare)
        assert old.epsilon > before
        spent = old.epsilon
        old = ClientLedger(tmp_path / name, RecordBudget(epsilon=5.0, delta=1e-5)) if again else old
        old.charge(2, mu_of(0.0), run="a", cost=rare)
        assert old.epsilon == spent
    # A third such run has no delta left.
    assert ledger.further([mu_of(1e-9)], run="b", cost=rare) == 1
    assert ledger.further([mu_of(1e-9)], run="c", cost=rare) == 0
    assert not ledger.accepts(mu_of(1e-9), run="c", cost=rare)


def test_how_many_more_fit_is_what_is_then_accepted(tmp_path):
    budget = RecordBudget(epsilon=3.0, delta=1e-5, participations=9)
    ledger = ClientLedger(tmp_path / "l", budget)
    layers = [mu_of(0.1 * (1 + number % 3)) for number in range(20)]
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
    assert ledger.further([mu_of(0.0)], run="r", cost=infinite) == 0
    trusted = ClientLedger(tmp_path / "t", RecordBudget(epsilon=None, delta=1e-5, participations=2))
    trusted.charge(0, mu_of(math.inf), run="r", cost=infinite)
    assert ClientLedger(tmp_path / "t", RecordBudget(epsilon=None, delta=1e-5, participations=2)).epsilon == math.inf
    before = (tmp_path / "t").read_bytes()
    with pytest.raises(ValueError, match="NaN"):
        trusted.charge(1, mu_of(math.nan), run="r")
    assert (tmp_path / "t").read_bytes() == before


def test_a_client_that_is_asked_again_in_one_attempt_is_charged_once(tmp_path):
    ledgers = ClientLedgers(folder=tmp_path / "clients", budget=budget(9), each=SPENT)
    spent = []
    for again in ((), (), (1, 77), (1, 77), (2, 77), (1, 77)):
        assert ledgers.willing(Cohort(round=3, clients=np.asarray([5]), again=again)).clients.tolist() == [5]
        spent.append(ClientLedger(tmp_path / "clients" / "5.jsonl", budget(9)).participations)
    assert spent == [1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize(
    ("given", "stated"),
    [
        ({"epsilon": 2.0}, {"epsilon": 2.0, "delta": 1e-5}),
        ({"epsilon": None}, {"epsilon": None, "delta": 1e-5}),
        ({"epsilon": 2.0, "participations": 7}, {"epsilon": 2.0, "delta": 1e-5, "participations": 7}),
        ({"epsilon": 2.0, "unit": "client"}, {"epsilon": 2.0, "delta": 1e-5, "unit": "client"}),
        ({"epsilon": None, "participations": 7, "unit": "client"},
         {"epsilon": None, "delta": 1e-5, "participations": 7, "unit": "client"}),
    ],
)  # fmt: skip
def test_a_limit_is_stated_by_what_is_said(tmp_path, given, stated):
    own = RecordBudget(delta=1e-5, **given)
    assert own.header() == stated
    ledger = ClientLedger(tmp_path / "c", own)
    assert json.loads((tmp_path / "c").read_text()) == {"version": VERSION, "budget": stated, "previous": "0" * 64}
    assert (ledger.epsilon, ledger.participations) == (0.0, 0)
    ClientLedger(tmp_path / "c", own)
    assert len((tmp_path / "c").read_text().splitlines()) == 1


@pytest.mark.parametrize("name", ["epsilon", "delta", "participations"])
def test_each_part_of_a_limit_is_the_limit(tmp_path, name):
    first = RecordBudget(epsilon=2.0, delta=1e-5, participations=7)
    other = replace(first, **{name: {"epsilon": None, "delta": 1e-6, "participations": 6}[name]})
    ClientLedger(tmp_path / "c", first)
    with pytest.raises(InputError, match="has the limit epsilon 2, delta 1e-05, participations 7; give the same one"):
        ClientLedger(tmp_path / "c", other)
    ClientLedger(tmp_path / "c", other, change=True)
    with pytest.raises(InputError, match="--change-limit"):
        ClientLedger(tmp_path / "c", first)
    # Back again: the last one counts, not the first.
    ClientLedger(tmp_path / "c", first, change=True)
    ClientLedger(tmp_path / "c", first)


COSTS = [
    RunCost(),
    RunCost(rare=1e-7),
    RunCost(coordinates=(Coordinates(count=5.0, variance=2.5, blended=1e-9),)),
    RunCost(rare=2e-7, coordinates=(Coordinates(count=5.0, variance=2.5, blended=math.inf),
                                    Coordinates(count=7.0, variance=3.5, blended=0.0))),
]  # fmt: skip


@pytest.mark.parametrize("cost", COSTS)
def test_a_runs_cost_comes_back_from_its_line(cost):
    line = json.loads(json.dumps(cost.as_json(), allow_nan=False))
    assert RunCost.from_json(line) == cost
    assert set(line) == ({"rare"} if cost.rare else set()) | ({"discrete"} if cost.coordinates else set())


def test_costs_of_several_runs_add_up_by_their_law(tmp_path):
    """Of one law together, of another one apart; what is rare in each."""
    one, two = Coordinates(count=5.0, variance=40.0, blended=0.0), Coordinates(count=9.0, variance=40.0, blended=1e-12)
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=50.0, delta=1e-5))
    for run, cost in (("a", RunCost(rare=1e-6, coordinates=(one, two))), ("b", RunCost(rare=2e-6, coordinates=(one,)))):
        ledger.charge(0, mu_of(0.5), run=run, cost=cost)

    def at(delta):
        return gaussian_epsilon(0.5 * math.sqrt(2), delta)

    left = 1e-5 - 3e-6
    due = epsilon_of_discrete(at, left, at(left), [replace(one, count=10.0), two])
    assert ledger.epsilon == pytest.approx(due, rel=1e-12)
    assert ClientLedger(tmp_path / "c", RecordBudget(epsilon=50.0, delta=1e-5)).epsilon == ledger.epsilon


def test_a_limit_is_met_exactly_and_exceeded_by_nothing(tmp_path):
    """By participations that differ, whose squares add up."""
    mus = (0.3, 0.5, 0.2)
    limit = gaussian_epsilon(math.sqrt(sum(mu**2 for mu in mus)), 1e-5)
    for factor, fit in ((1.0, 3), (1 - 1e-7, 2), (1 + 1e-7, 3)):
        ledger = ClientLedger(tmp_path / f"{factor}", RecordBudget(epsilon=limit * factor, delta=1e-5))
        assert ledger.further([mu_of(mu) for mu in mus]) == fit
        for round_, mu in enumerate(mus[:fit]):
            ledger.charge(round_, mu_of(mu))
        assert ledger.accepts(mu_of(0.01)) is (fit == 2)
    assert ClientLedger(tmp_path / "n", RecordBudget(epsilon=limit, delta=1e-5)).further([mu_of(math.nan)]) == 0


@pytest.mark.parametrize("most", [1, 3])
def test_no_more_participations_than_the_client_allows_over_all_runs(tmp_path, most):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=None, delta=1e-5, participations=most))
    for number in range(most):
        assert ledger.further([mu_of(1.0)] * 9, run="z") == most - number
        ledger.charge(number, mu_of(math.inf), run=f"run {number}")
    assert ledger.further([mu_of(1.0)] * 9) == 0
    with pytest.raises(
        ValueError, match=f"round 9 would exceed this client's record budget of .*participations={most}"
    ):
        ledger.charge(9, mu_of(0.0))
    assert ledger.participations == most


ROWS, SLOTS = of(replace(LAYER, rows=True)), of(LAYER)


def squares(*mus):
    return gaussian_epsilon(math.sqrt(sum(mu**2 for mu in mus)), 1e-5)


def test_every_relation_is_counted_and_stated_where_all_participations_hold_it(tmp_path):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=90.0, delta=1e-5))
    assert (ledger.relation, ledger.epsilons) == (None, {})
    ledger.charge(0, ROWS, run="a")
    ledger.charge(1, ROWS, run="a")
    for again in (ledger, ClientLedger(tmp_path / "c", RecordBudget(epsilon=90.0, delta=1e-5))):
        # Rows are counted from the first participation on, and that is what the limit is for.
        assert again.relation == "row-deleted"
        assert again.epsilons == {name: pytest.approx(squares(mu, mu)) for name, mu in ROWS.mus.items()}
        assert again.epsilon == again.epsilons["row-deleted"] > again.epsilons["zero-out"]
        # What states nothing of rows is declined, not counted as something else.
        assert not again.accepts(SLOTS, run="b")
        with pytest.raises(ValueError, match="would exceed"):
            again.charge(0, SLOTS, run="b")
    other = RecordBudget(epsilon=90.0, delta=1e-5, relation="zero-out")
    changed = ClientLedger(tmp_path / "c", other, change=True)
    changed.charge(0, SLOTS, run="b")
    for again in (changed, ClientLedger(tmp_path / "c", other)):
        assert again.relation == "zero-out"
        assert list(again.epsilons) == ["zero-out"]
        assert again.epsilon == pytest.approx(squares(*[ROWS.mus["zero-out"]] * 2, SLOTS.mus["zero-out"]))
    before = (tmp_path / "c").read_bytes()
    with pytest.raises(InputError, match="give --relation zero-out"):
        ClientLedger(tmp_path / "c", replace(other, relation="row-deleted"), change=True)
    assert (tmp_path / "c").read_bytes() == before


def test_the_relation_of_a_ledger_that_began_without_rows_stays(tmp_path):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=90.0, delta=1e-5))
    ledger.charge(0, SLOTS, run="a")
    ledger.charge(0, ROWS, run="b")
    assert ClientLedger(tmp_path / "c", RecordBudget(epsilon=90.0, delta=1e-5)).relation == "zero-out"
    assert list(ledger.epsilons) == ["zero-out"]


@pytest.mark.parametrize("relation", ROWS.mus)
def test_the_limit_is_for_the_relation_that_is_named(tmp_path, relation):
    """As many participations as the relation's own mu allows, and the next one is declined."""
    limit = squares(*[ROWS.mus[relation]] * 3)
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=limit, delta=1e-5, relation=relation))
    assert ledger.further([ROWS] * 9) == 3
    for round_ in range(3):
        ledger.charge(round_, ROWS)
    assert ledger.epsilon == pytest.approx(limit)
    assert not ledger.accepts(ROWS)
    with pytest.raises(InputError, match=f"relation {relation}; give the same one"):
        ClientLedger(tmp_path / "c", RecordBudget(epsilon=limit, delta=1e-5))


@pytest.mark.parametrize("name", ["zero-out", "row-deleted"])
def test_no_mu_is_nan(tmp_path, name):
    ledger = ClientLedger(tmp_path / "c", RecordBudget(epsilon=9.0, delta=1e-5))
    with pytest.raises(ValueError, match="round 1: its cost for a record is NaN"):
        ledger.charge(1, replace(ROWS, mus={**ROWS.mus, name: math.nan}))


@pytest.mark.parametrize("again", [False, True], ids=["at once", "after a restart"])
def test_a_participation_is_known_by_its_run_its_round_and_its_attempt(tmp_path, again):
    own = RecordBudget(epsilon=90.0, delta=1e-5)
    ledger = ClientLedger(tmp_path / "c", own)
    ledger.charge(3, mu_of(0.1))
    ledger.charge(3, mu_of(0.1), (1, 77), run="a", question="q1", fresh="ab" * 16)
    ledger.charge(3, mu_of(0.1), run="b", question="q2", fresh="cd" * 16)
    ledger.charge(4, mu_of(0.1), run="a", question="q3")
    if again:
        ledger = ClientLedger(tmp_path / "c", own)
    assert [ledger.holds(3), ledger.holds(4), ledger.holds(3, (1, 77))] == [True, False, False]
    assert ledger.question("a", (3, 1, 77)) == "q1"
    assert (ledger.question("a", (3,)), ledger.question("b", (3,)), ledger.question("", (3,))) == (None, "q2", "")
    assert (ledger.keys("a"), ledger.keys("b"), ledger.keys("c")) == ([(3, 1, 77), (4,)], [(3,)], [])
    assert list(ledger.charged()) == [("", (3,), ""), ("a", (3, 1, 77), "q1"), ("b", (3,), "q2"), ("a", (4,), "q3")]
    assert ledger.stream("a", (3, 1, 77)) == attempt_bytes("ab" * 16, "q1")
    assert ledger.stream("b", (3,)) == attempt_bytes("cd" * 16, "q2")
    assert ledger.stream("a", (4,)) == b""
    with pytest.raises(LookupError):
        ledger.stream("b", (4,))
    assert ledger.epsilon == pytest.approx(gaussian_epsilon(0.2, 1e-5))


@pytest.mark.parametrize("first", [{"more": 1}, {"budget": 3}, {"budget": None}])
def test_another_first_line_is_no_ledger_of_a_client(tmp_path, first):
    own = RecordBudget(epsilon=2.0, delta=1e-5)
    HashChain.start(tmp_path / "c", {"budget": own.header(), **first})
    with pytest.raises(InputError, match="line 1: this client's ledger was started as"):
        ClientLedger(tmp_path / "c", own)


@pytest.mark.parametrize(
    "line", [{"round": 0}, {"mu": 0.5}, {"round": 0, "mu": "x"}, {"round": 0, "mu": 0.5, "again": 3}]
)
def test_a_line_that_lacks_something_is_refused(tmp_path, line):
    own = RecordBudget(epsilon=2.0, delta=1e-5)
    chain = HashChain.start(tmp_path / "c", {"budget": own.header()})
    chain.append(line)
    with pytest.raises(InputError, match="a line of this client's ledger lacks its mu or its round"):
        ClientLedger(tmp_path / "c", own)
