"""Two features of a plan at once: what each costs alone is never lost beside the other, in any cell.

Laws over every kind of plan and every pair of features that the planner accepts. A feature that costs more is
never cheaper beside another one, and where both cost something, both together cost more than either.
"""

import itertools
import json
import math
import re
from dataclasses import replace
from functools import cache

import pytest

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.errors import RefusedPlan

PLAIN = PrivacyPlan(clients=200, cohort=50.0, rounds=4, noise_multiplier=3.0, max_participations=2)
STEPS = RecordLayer(support_noise=2.0, query_noise=1.6, support_steps=2, support_records=25, query_records=25)
PARTS = RecordLayer(support_noise=None, query_noise=1.6, support_steps=1, support_records=1, query_records=8)
BATCHES = RecordLayer(
    support_noise=1.0, query_noise=None, support_steps=4, support_records=50, query_records=1, batch_rate=0.2
)  # fmt: skip
SUMMED = RecordLayer(
    support_noise=None, query_noise=None, support_steps=1, support_records=1, query_records=8, of_sum=True
)  # fmt: skip
SECURE = SecureRounds(bits=18, dimension=64)
FIXED = replace(PLAIN, sampler="fixed", max_participations=None)
BY_SUMS = replace(FIXED, server_sees="sum", secure=SECURE)

KINDS = {
    "messages": PLAIN,
    "fixed cohorts": FIXED,
    "record steps": replace(PLAIN, record=STEPS),
    "record steps, stacked": replace(PLAIN, record=STEPS, noise_mode="stacked"),
    "record parts": replace(PLAIN, record=PARTS),
    "record mini-batches": replace(PLAIN, record=BATCHES, noise_mode="stacked"),
    "noise of clients": replace(FIXED, noise_site="clients"),
    "sums": BY_SUMS,
    "records under sums": replace(BY_SUMS, record=SUMMED, secure=replace(SECURE, parts=8)),
    "check-ins": replace(PLAIN, sampler="check-ins", capacity=120, cohort=50.0, max_participations=1),
    "correlated noise": replace(PLAIN, noise="toeplitz", correlation=Correlation(separation=2), noise_multiplier=5.0),
}

COUNTS = PrivacyPlan(
    clients=200, cohort=200.0, rounds=1, noise_multiplier=4.0, sampler="fixed", server_sees="sum",
    secure=SecureRounds(bits=31, dimension=10, longest=1.0),
)  # fmt: skip


def with_analysis(plan):
    return replace(plan, earlier=(*plan.earlier, Earlier(run="a", head="0", phases=COUNTS.phases)))


def with_rounds(plan):
    return plan.extended(plan.rounds + 2)


def with_louder_start(plan):
    return replace(plan, schedule=(Change(from_round=0, noise_scale=0.5), Change(from_round=2)))


def with_colluders(plan):
    return replace(plan, colluding=plan.colluding + 3)


def with_hostile(plan):
    return replace(plan, hostile=0.1)


def with_more_participations(plan):
    return replace(plan, max_participations=None if plan.max_participations is None else plan.max_participations + 1)


FEATURES = {
    "an analysis before": with_analysis,
    "two more rounds": with_rounds,
    "less noise at first": with_louder_start,
    "colluders": with_colluders,
    "hostile clients": with_hostile,
    "more participations": with_more_participations,
}


# Of these more never costs less. More clients who keep or leave out their noise let the others add more of it, which
# makes public cells smaller.
DEARER = {"an analysis before", "two more rounds", "less noise at first", "more participations"}
QUICK = ("messages", "record parts", "record mini-batches", "records under sums")


@cache
def epsilons(kind, *features):
    """Of the four cells; None: the planner refuses it."""
    plan = KINDS[kind]
    try:
        for feature in features:
            plan = FEATURES[feature](plan)
        return [cell.epsilon for cell in guarantees(plan)]
    except RefusedPlan:
        return None


CASES = [
    pytest.param(kind, feature, marks=() if kind in QUICK and feature is None else pytest.mark.slow)
    for kind in KINDS
    for feature in (None, *list(FEATURES)[1:])
]


def test_every_kind_of_plan_is_accepted_alone_and_says_how():
    for kind in QUICK:
        assert epsilons(kind) is not None
    # What a plan does not have is left out of the sentences.
    for plan in (*(KINDS[kind] for kind in QUICK), replace(PLAIN, max_participations=None), COUNTS):
        for cell in guarantees(plan):
            assert not re.search(r"None|nan|\(\)", " ".join(f"{bound.event} {bound.formula}" for bound in cell.bounds))


def test_counts_are_not_rotated_and_messages_are_to_a_power_of_two():
    assert (COUNTS.secure.rotated, COUNTS.phases[0].event.whole.dimension) == (10, 10)
    for dimension, rotated in ((1, 1), (2, 2), (3, 4), (64, 64), (65, 128)):
        assert replace(SECURE, dimension=dimension).rotated == rotated


@pytest.mark.parametrize("feature", [None, *FEATURES])
@pytest.mark.parametrize("kind", KINDS)
def test_a_ledger_states_the_whole_plan(kind, feature):
    try:
        plan = KINDS[kind] if feature is None else FEATURES[feature](KINDS[kind])
        # What a charge states is made from all of the plan's fields, so it has to be the same as well.
        charged = [plan.at(round_) for round_ in range(plan.rounds)]
    except RefusedPlan:
        return
    read = plan_of(json.loads(json.dumps(constants(plan))))
    assert read == plan
    assert [read.at(round_) for round_ in range(plan.rounds)] == charged


@pytest.mark.slow
@pytest.mark.parametrize(("one", "other"), list(itertools.combinations(FEATURES, 2)))
@pytest.mark.parametrize("kind", KINDS)
def test_both_together_cost_no_less_than_either_and_more_where_both_cost(kind, one, other):
    alone, first, second, both = epsilons(kind), epsilons(kind, one), epsilons(kind, other), epsilons(kind, one, other)
    assert alone is not None
    if first is None or second is None or both is None:
        pytest.skip("the planner refuses one of them")
    # Grids of two computations differ by parts in a thousand.
    for without, left, right, together in zip(alone, first, second, both, strict=True):
        assert one not in DEARER or together >= right * (1 - 2e-3)
        assert other not in DEARER or together >= left * (1 - 2e-3)
        most = max(left, right)
        # Costs that add up in squares show where they are of one size.
        comparable = most > 1.2 * without and min(left, right) - without >= 0.3 * (most - without)
        if {one, other} <= DEARER and math.isfinite(most) and comparable:
            assert together > most + 0.02 * (most - without)


@pytest.mark.parametrize(
    "feature", [None, *(pytest.param(name, marks=pytest.mark.slow) for name in list(FEATURES)[1:])]
)
@pytest.mark.parametrize(
    "kind", [kind if kind in QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
def test_an_analysis_before_costs_something_wherever_something_is_promised(kind, feature):
    features = () if feature is None else (feature,)
    without, after = epsilons(kind, *features), epsilons(kind, "an analysis before", *features)
    if without is None or after is None:
        # What clients choose themselves is proved of one plan alone.
        assert kind == "check-ins" or without is None
        return
    for before, with_it in zip(without, after, strict=True):
        assert with_it == before == math.inf or with_it > (1 + 5e-4) * before
