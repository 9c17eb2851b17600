"""Costs of releases: which kinds add up, what is infinite, and what stands beside a number in words."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from dpfedmeta.accounting import release_costs
from dpfedmeta.accounting.divergences.pld_composition import COARSE
from dpfedmeta.accounting.events.events import Earlier, Phase
from dpfedmeta.accounting.events.failure_probability import exceeded, most
from dpfedmeta.accounting.events.guarantee import Bound, FourGuarantees, Guarantee
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.observers.server_observer import client_server, record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.release_costs import (
    composed_delta,
    composed_epsilon,
    cost_named,
    cost_of,
    participations_of,
    rounds_seen,
)
from dpfedmeta.core.errors import InputError, RefusedPlan

PLAIN = PrivacyPlan(clients=100, cohort=25.0, rounds=4, noise_multiplier=3.0)
KINDS = {
    "independent": PLAIN,
    "sum": replace(PLAIN, sampler="fixed", server_sees="sum", secure=SecureRounds(bits=18, dimension=64)),
    "correlated": replace(PLAIN, noise="toeplitz", correlation=Correlation(separation=2)),
    "allocated": replace(PLAIN, sampler="check-ins", capacity=60, max_participations=1),
}
# Which kinds are added up together, and by which of them.
TOGETHER = {
    ("independent", "sum"): "sum",
    ("correlated", "independent"): "correlated",
    ("correlated", "sum"): "correlated",
    ("correlated", "independent", "sum"): "correlated",
}


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_kinds_add_up_where_one_of_them_knows_the_others_in_whatever_order(count):
    for names in itertools.combinations(sorted(KINDS), count):
        due = names[0] if count == 1 else TOGETHER.get(names)
        for order in itertools.permutations(names):
            phases = [phase for name in order for phase in KINDS[name].phases]
            if due is not None:
                assert cost_of(phases) is cost_named(due)
            else:
                with pytest.raises(RefusedPlan, match=f"rounds whose costs are {' and '.join(names)} are not added up"):
                    cost_of(phases)
    assert cost_of(()) is cost_named("independent")


def test_a_cost_that_is_none_is_refused_by_its_name():
    with pytest.raises(InputError, match=r"cost of a release = nothing: unknown"):
        cost_named("nothing")
    with pytest.raises(InputError, match="is no ReleaseCost; derive it from dpfedmeta"):
        cost_named("dpfedmeta.accounting.events.events:Phase")
    with pytest.raises(InputError, match="ReleaseCost has no composed; it needs composed, delta_at, pair"):
        cost_named("dpfedmeta.accounting.release_costs:ReleaseCost")


def test_what_is_infinite_and_what_is_nothing(monkeypatch):
    (phase,) = PLAIN.phases
    bare = Phase(event=replace(phase.event, noise=None), rounds=1)
    assert composed_epsilon((), "add-remove", 0.0) == composed_epsilon((), "add-remove", -1.0) == 0.0
    assert composed_delta((), "add-remove", 1.0) == 0.0
    for phases in ((bare,), (phase, bare), (bare, phase)):
        assert composed_epsilon(phases, "add-remove", 1e-6) == math.inf
        assert composed_delta(phases, "add-remove", 1.0) == 1.0
    for delta in (0.0, -1e-9):
        assert composed_epsilon((phase,), "add-remove", delta) == math.inf
    monkeypatch.setattr(release_costs, "cost_of", lambda phases: SimpleCost())
    assert composed_epsilon((phase,), "replace-one", 1e-6, COARSE) == 7.0
    assert composed_delta((phase,), "replace-one", 2.0) == 0.25


class SimpleCost:
    def composed(self, phases, neighbours, delta, grids):
        assert (len(phases), neighbours, delta, grids) == (1, "replace-one", 1e-6, COARSE)
        return 7.0, "pld"

    def delta_at(self, phases, neighbours, epsilon):
        assert (len(phases), neighbours, epsilon) == (1, "replace-one", 2.0)
        return 0.25


@pytest.mark.parametrize("kind", [*KINDS, "turns"])
def test_how_often_a_client_takes_part_for_who_knows_when(kind):
    """With a cap that; where the server draws, what is seldom exceeded; one round of its own choice is one."""
    turns = replace(PLAIN, sampler="cyclic", noise="banded", correlation=Correlation(separation=2, numbers=(1.0, 0.5)))
    phases = {**KINDS, "turns": turns}[kind].phases
    capped, free = participations_of(phases, 2, 1e-5), participations_of(phases, None, 1e-5)
    assert capped == (2, 1e-5)
    assert free[0] == 4
    assert free[1] <= 1e-5


@pytest.mark.parametrize(
    ("method", "joint", "formula", "loose"),
    [
        ("pld", None, "PLD of PAIR, 4-fold", False),
        ("rdp", None, "RDP of PAIR (a closed bound, where their distribution is too much to compute), 4-fold", True),
        ("gdp", None, "GDP without sampling of PAIR (a closed bound, where their distribution is too much to compute), "
         "4-fold", True),
        ("gdp", "one release", "one release", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rare", [0.0, 2.5e-8])
def test_a_bound_says_how_it_was_found(method, joint, formula, loose, rare):
    (phase,) = PLAIN.phases
    phase = replace(phase, event=replace(phase.event, surplus_probability=rare))

    class Cost(release_costs.ReleaseCost):
        def composed(self, phases, neighbours, delta, grids=()):
            assert (neighbours, delta, grids) == ("replace-one", 1e-6, COARSE)
            return 1.5, method

        def pair(self, phases, neighbours):
            return "PAIR"

        def one_release(self, phases, moved):
            assert moved == 2.0
            return joint

    found = Cost().bound((phase,), "replace-one", 1e-6, COARSE)
    said = "" if not rare or joint else ", at delta - 1e-07 (surplus or hostile clients)"
    assert found == Bound(method=method, epsilon=1.5, event=rounds_seen((phase,)), formula=formula + said, loose=loose)
    # Without noise, or at no delta, nothing is composed.
    bare = replace(phase, event=replace(phase.event, noise=None))
    assert Cost().bound((bare,), "replace-one", 1e-6, COARSE).epsilon == math.inf
    assert Cost().bound((phase,), "replace-one", 0.0, COARSE).epsilon == math.inf
    assert Cost().bound((), "replace-one", 0.0, COARSE).epsilon == 0.0


def test_rounds_in_words_are_those_of_each_phase_in_order():
    (phase,) = PLAIN.phases
    quiet = Phase(event=replace(phase.event, rate=0.125, noise=None), rounds=2)
    assert rounds_seen((phase, quiet)) == (
        "4 rounds (each client with q = 0.25) with Gaussian noise of z = 3, then 2 rounds (each client with q = 0.125) "
        "with no noise"
    )
    assert rounds_seen(()) == "no round"


# ---- a cell


def cell(*epsilons, **given):
    bounds = tuple(
        Bound(method=method, epsilon=epsilon, event=f"event {method}", formula=f"formula {method}")
        for method, epsilon in zip(("pld", "gdp-mixture", "zcdp"), epsilons, strict=False)
    )
    usual = {"unit": "record", "observer": "public", "delta": 1e-5, "adjacency": "zero-out", "bounds": bounds}
    return Guarantee(**{**usual, **given})


@pytest.mark.parametrize(("epsilons", "binding"), [((2.0, 1.5, 3.0), 1), ((1.0, 1.0), 0), ((math.inf, 4.0), 1)])
def test_a_cell_is_its_smallest_bound(epsilons, binding):
    found = cell(*epsilons)
    method = ("pld", "gdp-mixture", "zcdp")[binding]
    assert (found.epsilon, found.method, found.binding) == (epsilons[binding], method, found.bounds[binding])
    stated = found.as_json()
    assert stated == {
        "unit": "record", "observer": "public", "epsilon": epsilons[binding], "delta": 1e-5, "adjacency": "zero-out",
        "method": method, "event": f"event {method}", "formula": f"formula {method}",
        "bounds": {bound.method: bound.epsilon if math.isfinite(bound.epsilon) else None for bound in found.bounds},
    }  # fmt: skip
    json.dumps(stated, allow_nan=False)
    assert replace(found, relations={"in-place": 2.5}).as_json() == {**stated, "relations": {"in-place": 2.5}}
    assert replace(found, relations={"zero-out": math.inf}).as_json() == {**stated, "relations": {"zero-out": None}}


def test_a_cell_that_holds_nothing_says_so():
    found = cell(math.inf, math.inf)
    assert (found.method, found.as_json()["method"], found.as_json()["epsilon"]) == ("none", "none", None)


def test_cells_are_found_by_unit_and_observer_and_printed_a_line_each():
    names = [("client", "public"), ("client", "server"), ("record", "server"), ("record", "public")]
    four = FourGuarantees(
        cell(1.00001 + place, unit=unit, observer=observer, delta=1.2345678e-6)
        for place, (unit, observer) in enumerate(names)
    )
    for place, (unit, observer) in enumerate(names):
        assert four.of(unit, observer) is four[place]
    with pytest.raises(StopIteration):
        four.of("record", "nobody")
    lines = repr(four).splitlines()
    assert lines[0] == "(client, public)  epsilon 1.001    at delta 1.23457e-06 (zero-out, pld)"
    assert [line.split()[0] + " " + line.split()[1] for line in lines] == [f"({u}, {o})" for u, o in names]


# ---- what stands before


LAYER = RecordLayer(support_noise=2.0, query_noise=1.6, support_steps=1, support_records=25, query_records=25)


@pytest.mark.parametrize("before", [False, True])
def test_events_of_cells_towards_the_server_say_what_was_counted(before):
    earlier = (Earlier(run="a", head="", phases=KINDS["sum"].phases),) if before else ()
    besides = f", besides {rounds_seen(KINDS['sum'].phases)} before" if before else ""
    for cap, how in ((None, "exceeded with probability <= 1e-07"), (1, "the cap")):
        plan = replace(PLAIN, record=LAYER, max_participations=cap, earlier=earlier)
        worst = participations_of(plan.phases, cap, plan.record_delta)[0]
        record = record_server(plan.phases, Terms.of(plan)).binding
        many = "" if worst == 1 else "s"
        assert record.event == f"{worst} participation{many} ({how}), each one 0.625-GDP release{besides}"
        assert record.formula == "sqrt(R) * 1/z_q-GDP"
        loud = replace(plan, record=replace(LAYER, support_noise=1.0))
        louder = record_server(loud.phases, Terms.of(loud)).binding
        assert louder.formula == "sqrt(R) * sqrt(K)/z_s-GDP"


def test_copies_are_said_to_have_a_cap_each():
    plan = replace(PLAIN, record=LAYER, max_participations=1)
    (phase,) = plan.phases
    both = (phase, replace(phase, copy=1))
    for of in (client_server, record_server):
        assert "2 participations (the cap in each copy)" in of(both, Terms.of(plan)).binding.event
        assert "1 participation (the cap)" in of((phase,), Terms.of(plan)).binding.event


# ---- tails in closed form


@pytest.mark.parametrize(("trials", "rate"), [(50, 0.3), (1000, 0.9), (7, 0.5), (10**8, 1e-6)])
def test_a_tail_in_closed_form_is_chernoffs(trials, rate):
    """exp(-n KL(k/n, q)) at k = count + 1, a thousandth of its exponent given up for rounding."""
    first = math.floor(trials * rate)
    for count in sorted({first, first + 1, first + 3, 2 * first + 5, trials - 2, trials - 1}):
        share = (count + 1) / trials
        if not rate < share <= 1 or count >= trials:
            continue
        rest = 0.0 if share == 1 else (1 - share) * math.log((1 - share) / (1 - rate))
        exponent = trials * (share * math.log(share / rate) + rest)
        due = min(1.0, math.exp(1e-3 - exponent * (1 - 1e-3)))
        assert exceeded(count, trials, rate) == pytest.approx(due, rel=1e-6, abs=1e-300)
    assert exceeded(first - 1, trials, rate) == 1.0
    assert exceeded(trials, trials, rate) == exceeded(trials + 5, trials, rate) == 0.0
    for allowed in (0.5, 1e-3, 1e-12):
        found = most(trials, rate, allowed)
        assert exceeded(found, trials, rate) <= allowed
        assert found == 0 or exceeded(found - 1, trials, rate) > allowed
