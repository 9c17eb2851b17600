"""A plan round by round, and what is rare in a round: each term with values that tell it from the others."""

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from scipy.stats import binom

from dpfedmeta.accounting.divergences.pld_composition import GRIDS
from dpfedmeta.accounting.events.events import Earlier, Phase
from dpfedmeta.accounting.events.failure_probability import largest_cohort, least_capacity, smallest_cohort
from dpfedmeta.accounting.events.integer_sum import ROOM, WholeSum, rounded_length, units_of
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.observers import four_guarantees
from dpfedmeta.accounting.observers.four_guarantees import running_grid
from dpfedmeta.accounting.observers.server_observer import seen_before
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan, Terms
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.release_costs import participations_of, quick_grid
from dpfedmeta.accounting.release_costs.sum_cost import SumCost
from dpfedmeta.core.errors import RefusedPlan

PLAN = PrivacyPlan(clients=1000, cohort=50.0, rounds=9, noise_multiplier=2.0)
SUMS = PrivacyPlan(
    clients=20_000, cohort=600.0, rounds=4, noise_multiplier=1.5, server_sees="sum",
    secure=SecureRounds(bits=20, dimension=100, parts=3, dropout=0.1),
)  # fmt: skip


@pytest.mark.parametrize("starts", [(), (0,), (3,), (0, 3, 7), (1, 2, 8), (3, 9), (3, 9, 12), (9,)], ids=str)
def test_a_plan_is_its_rounds_one_by_one(starts):
    """Each round belongs to the last change that began with it or before; what begins after the last one to none."""
    schedule = tuple(Change(from_round=at, noise_scale=1.0 + 0.125 * at, cohort_scale=0.5 + at / 16) for at in starts)
    plan = replace(PLAN, schedule=schedule)
    for round_ in range(9):
        latest = max((at for at in starts if at <= round_), default=None)
        noise, cohort = (1.0, 1.0) if latest is None else (1.0 + 0.125 * latest, 0.5 + latest / 16)
        event = plan.at(round_)
        assert (event.noise.multiplier, event.cohort) == (2.0 * noise, 50.0 * cohort)
        assert event.rate == pytest.approx(50.0 * cohort / 1000)
        assert plan.first(round_ + 1)[-1].event == event
    with pytest.raises(IndexError, match="round 9 is not in a plan of 9 rounds"):
        plan.at(9)
    assert plan.expected_participations == pytest.approx(sum(plan.at(round_).cohort for round_ in range(9)))
    assert sum(phase.rounds for phase in plan.phases) == 9
    assert all(phase.rounds > 0 for phase in plan.phases)


def test_an_extended_plan_knows_how_long_it_was_in_each_round():
    plan = PLAN.extended(12).extended(20)
    assert (plan.rounds, plan.ends) == (20, (9, 12))
    assert [plan.in_force(round_) for round_ in (0, 8, 9, 11, 12, 19)] == [9, 9, 12, 12, 20, 20]
    with pytest.raises(StopIteration):
        plan.in_force(20)
    assert plan.begun == PLAN
    assert PLAN.begun is PLAN
    # No constant of a round depends on how many follow.
    assert plan.at(3) == PLAN.at(3)
    assert plan.allowed == PLAN.allowed == pytest.approx(0.01 * 1e-6 / 9)
    assert replace(PLAN, record_delta=1e-8).allowed == pytest.approx(0.01 * 1e-8 / 9)


def test_what_was_before_is_that_of_all_ledgers_in_order():
    phases = [replace(PLAN, rounds=rounds).phases for rounds in (1, 2, 3)]
    earlier = (Earlier(run="a", head="", phases=(*phases[0], *phases[1])), Earlier(run="b", head="", phases=phases[2]))
    plan = replace(PLAN, earlier=earlier)
    assert plan.before == (*phases[0], *phases[1], *phases[2])
    assert [phase.rounds for phase in plan.before] == [1, 2, 3]


LAYER = RecordLayer(support_noise=2.0, query_noise=3.0, support_steps=3, support_records=4, query_records=5)
GIVEN = {
    "record": LAYER, "noise_mode": "stacked", "server_sees": "messages", "max_participations": 4, "client_delta": 2e-6,
    "record_delta": 3e-5,
}  # fmt: skip


def test_terms_are_those_of_their_plan():
    before = (Earlier(run="a", head="", phases=PLAN.phases),)
    plan = replace(PLAN, earlier=before, relation="in-place", **GIVEN)
    terms = Terms.of(plan)
    assert {field.name: getattr(terms, field.name) for field in fields(Terms)} == {
        **GIVEN, "before": PLAN.phases, "relation": "in-place",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("layer", "support", "steps", "query"),
    [
        (LAYER, 2.0, 3, 3.0),
        (replace(LAYER, support_noise=None), None, None, 3.0),
        (replace(LAYER, query_noise=None), 2.0, 3, None),
    ],
)
def test_an_event_states_the_releases_of_a_record_layer(layer, support, steps, query):
    event = replace(PLAN, record=layer, noise_mode="stacked").at(0)
    assert (event.support_noise, event.support_steps, event.query_noise) == (support, steps, query)
    assert (event.largest_cohort, event.hostile, event.surplus_probability, event.message_noise) == (None, 0, 0.0, 0.0)
    assert (event.total_noise, event.assured_noise, event.noise.multiplier) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize("hostile", [0.0, 0.07])
@pytest.mark.parametrize("colluding", [1, 4])
def test_noise_of_clients_is_that_of_those_who_are_sure_to_make_it(hostile, colluding):
    plan = replace(
        PLAN, sampler="fixed", noise_site="clients", hostile=hostile, colluding=colluding, noise_multiplier=3.0
    )
    event = plan.at(0)
    own = event.message_noise**2
    assert (event.hostile > 0) is (hostile > 0)
    assert own * (50 - event.hostile) == pytest.approx(9.0)
    assert event.assured_noise**2 == pytest.approx(9.0)
    assert event.total_noise**2 == pytest.approx(9.0 + event.hostile * own)
    assert event.noise.multiplier**2 == pytest.approx(9.0 - colluding * own)
    assert (event.surplus_probability > 0) is (hostile > 0)
    with pytest.raises(RefusedPlan, match="no noise is left that counts"):
        _ = replace(plan, colluding=50 - event.hostile).phases
    with pytest.raises(RefusedPlan, match="all 50 clients of a cohort may be hostile"):
        _ = replace(plan, hostile=0.95).phases


def test_both_rare_events_of_a_shared_noise_add_up():
    """A cohort that is too large, and too many hostile clients in it; each with a probability of its own."""
    plan = replace(PLAN, record=LAYER, hostile=0.05, client_delta=1e-3, record_delta=1e-3)
    event = plan.at(0)
    size, more = largest_cohort(1000, 0.05, plan.allowed)
    unlucky = binom.sf(event.hostile, 50, 0.05)
    assert event.largest_cohort == size
    assert min(more, unlucky) > 1e-9
    assert event.surplus_probability == pytest.approx(more + unlucky, rel=1e-9)
    own = (3.0 / 5) ** 2
    assert event.assured_noise**2 == pytest.approx(max(4.0 + own, (size - event.hostile) * own))
    assert event.total_noise**2 == pytest.approx(event.assured_noise**2 + event.hostile * own)


# ---- sums of whole numbers


def test_all_rare_events_of_a_sum_add_up():
    """Too many, too few, and so few survivors that one decides: none of them hides another."""
    plan = replace(SUMS, secure=replace(SUMS.secure, dropout=0.2, absent=0.12), client_delta=1e-3, record_delta=1e-3)
    event, whole = plan.at(0), plan.at(0).whole
    _, more = largest_cohort(20_000, 0.03, plan.allowed)
    least, fewer = smallest_cohort(20_000, 0.03, plan.allowed)
    sizes = np.arange(least + 1, whole.most + 1)
    missing = binom.cdf([whole.fewest(int(size)) for size in sizes], sizes, 0.88).max()
    assert whole.least == least + 1
    assert min(more, fewer, missing) > 1e-3 * max(more, fewer, missing)
    assert event.surplus_probability == pytest.approx(more + fewer + missing, rel=1e-9)
    assert event.surplus_probability > 1.01 * max(more + fewer, more + missing, fewer + missing)


def test_a_fixed_cohort_has_one_size_and_silence_tells_nothing():
    plan = replace(SUMS, sampler="fixed", secure=replace(SUMS.secure, absent=0.05), hostile=0.01)
    event = plan.at(0)
    assert (event.whole.least, event.whole.most, event.largest_cohort) == (600, 600, None)
    assert event.whole.unsure == plan.colluding + event.hostile
    without = replace(plan, secure=SUMS.secure).at(0)
    assert (
        event.surplus_probability
        == without.surplus_probability
        == pytest.approx(plan.sampling.hostile_of(plan, 600.0)[1])
    )


@pytest.mark.parametrize(("parts", "clients", "surplus"), [(1, 1000, 1.0), (7, 1000, 1.3), (7, 60, 2.5)])
@pytest.mark.parametrize("bits", [13, 14])
def test_a_grid_is_as_fine_as_four_deviations_of_the_sum_allow(bits, parts, clients, surplus):
    """What all say at once, the noise, and what rounding adds to each part of each message: in squares, by hand."""
    dimension, noise = 256, 1.5
    units = units_of(bits, dimension=dimension, parts=parts, clients=clients, noise=noise, surplus=surplus)
    signal = (parts * units * clients) ** 2 / dimension
    made = surplus * (noise * parts * rounded_length(units, dimension)) ** 2
    rounding = parts * clients / 4.0
    assert rounding > 2e-6 * (signal + made) > 0
    assert ROOM**2 * (signal + made + rounding) == pytest.approx(2.0 ** (2 * bits - 2), rel=1e-7)
    assert units_of(2, dimension=dimension, parts=parts, clients=clients, noise=noise, surplus=surplus) == 0.0


def test_a_sum_has_the_noise_that_its_plan_multiplies():
    whole = SUMS.at(0).whole
    assert whole.deviation == pytest.approx(1.5 * whole.of_a_client)
    assert whole.of_a_client == pytest.approx(3 * rounded_length(whole.units, 128))
    sizes = range(whole.least, whole.most + 1)
    shares = [whole.share(size) for size in sizes]
    assert (whole.largest_share, whole.smallest_share) == (max(shares), min(shares))
    assert whole.total == pytest.approx(max(size * share for size, share in zip(sizes, shares, strict=True)) + 4.0)
    assert whole.clients_noise(700) == pytest.approx(700 * whole.share(700))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"bits": 7}, "aggregation.bits = 7: expected a whole number from 8 to 20"),
        ({"bits": 21}, "from 8 to 20"),
        ({"bits": 32, "exact": True}, "from 8 to 31"),
        ({"dimension": 0}, "dimension = 0: expected a power of two"),
        ({"dimension": 96}, "dimension = 96: expected a power of two"),
        ({"dimension": 0, "exact": True}, "dimension = 0"),
        ({"units": 0.0}, "too few for a sum of 80 clients"),
        ({"units": math.inf}, "too few for a sum of 80 clients"),
        ({"deviation": 0.0}, "noise of deviation 0"),
        ({"deviation": math.inf}, "noise of deviation inf"),
    ],
    ids=str,
)
def test_constants_of_no_sum_are_refused(changes, words):
    given = {"bits": 16, "dimension": 64, "parts": 1, "units": 5.0, "deviation": 9.0, "least": 3, "most": 80,
             "dropout": 0.25, "unsure": 1}  # fmt: skip
    with pytest.raises(RefusedPlan, match=words):
        WholeSum(**{**given, **changes})
    for accepted in ({"bits": 8}, {"bits": 20}, {"bits": 31, "exact": True}, {"dimension": 1},
                     {"dimension": 96, "exact": True}):  # fmt: skip
        assert WholeSum(**{**given, **accepted})


def test_as_few_may_survive_as_the_share_says_and_no_fewer():
    whole = replace(SUMS.at(0).whole, dropout=0.1, unsure=2)
    assert [whole.fewest(invited) for invited in (1, 9, 10, 11, 19, 20, 100)] == [1, 9, 9, 10, 18, 18, 90]
    assert whole.share(10) == pytest.approx(whole.deviation**2 / 7)
    assert whole.share(3) == pytest.approx(whole.deviation**2)
    for few in (1, 2):
        with pytest.raises(ValueError, match=f"{few} invited clients cannot make the noise"):
            whole.share(few)


@pytest.mark.parametrize("noise", [0.3, 2.0, 40.0])
@pytest.mark.parametrize("longest", [1.0, 3.0])
def test_counts_are_in_the_coarsest_steps_that_blend(noise, longest):
    """A share of the noise of the cohort whose shares are smallest has 1.5 steps; in one step less it has not."""
    counts = SecureRounds(bits=31, dimension=10, longest=longest, dropout=0.1)
    plan = replace(SUMS, noise_multiplier=noise, secure=counts)
    whole = plan.at(0).whole
    steps = whole.units / longest
    assert steps == round(steps) >= 1
    assert whole.exact
    assert whole.sensitivity == whole.units
    smallest = math.sqrt(whole.smallest_share)
    assert smallest >= 1.5
    assert steps == 1 or smallest * (steps - 1) / steps < 1.5
    assert whole.deviation == pytest.approx(noise * whole.units)


# ---- what was seen before, and grids


def test_what_a_server_saw_before_takes_all_of_its_rare_events_off_delta():
    """More participations than were counted are one, for each release; the surplus of all rounds another."""
    first, second = replace(SUMS, rounds=30), replace(SUMS, rounds=50, noise_multiplier=4.0)
    phases = (*first.phases, *second.phases)
    seen = seen_before(phases, 2.0, 1e-5)
    squared = rare = 0.0
    for phase in phases:
        worst, left = participations_of([phase], None, 1e-5)
        squared += worst * phase.event.sum_noise.mu(2.0) ** 2
        rare += 1e-5 - left + phase.rounds * phase.event.surplus_probability
        assert 1e-5 - left > 1e-9
    assert seen.squared == pytest.approx(squared)
    assert seen.rare == pytest.approx(rare)
    assert len(seen.coordinates) == 2
    assert seen_before(phases, 1.0, 1e-5).squared == pytest.approx(squared / 4)
    assert seen_before((), 2.0, 1e-5).squared == 0.0
    silent = (Phase(event=replace(phases[0].event, sum_noise=None), rounds=1),)
    assert seen_before((*phases, *silent), 2.0, 1e-5).squared == math.inf


def test_a_grid_along_the_way_is_that_of_all_that_counts(monkeypatch):
    """Of rounds before too, under both neighbours and at the smaller delta; the finest that any of them needs."""
    plan = replace(PLAN, client_delta=1e-6, record_delta=1e-5, earlier=(Earlier(run="a", head="", phases=SUMS.phases),))
    asked = []

    def noted(phases, neighbours, delta):
        asked.append((tuple(phases), neighbours, delta))
        return {"add-remove": 1e-3, "replace-one": 3e-4}[neighbours]

    monkeypatch.setattr(four_guarantees, "quick_grid", noted)
    assert running_grid(plan) == 3e-4
    assert sorted(asked, key=lambda each: each[1]) == [
        ((*SUMS.phases, *PLAN.phases), neighbours, 1e-6) for neighbours in ("add-remove", "replace-one")
    ]
    assert running_grid(replace(plan, record_delta=1e-7)) == 3e-4
    assert asked[-1][2] == 1e-7
    asked.clear()
    # Fixed cohorts have one neighbour alone; without noise there is nothing to compute.
    running_grid(replace(PLAN, sampler="fixed"))
    assert [each[1] for each in asked] == ["replace-one"]
    assert running_grid(replace(PLAN, noise_multiplier=None)) == GRIDS[0]
    assert len(asked) == 1


def test_the_coarsest_grid_that_is_good_enough_is_taken(monkeypatch):
    from dpfedmeta.accounting import release_costs

    found = {GRIDS: 2.0, GRIDS[:1]: 2.03, GRIDS[1:2]: 2.0201, GRIDS[2:3]: 2.02, GRIDS[3:4]: 2.001}
    monkeypatch.setattr(release_costs, "composed_epsilon", lambda phases, neighbours, delta, grids=GRIDS: found[grids])
    assert quick_grid(PLAN.phases, "add-remove", 1e-6) == GRIDS[2]
    monkeypatch.setattr(release_costs, "composed_epsilon", lambda *given: 2.0 if len(given) == 3 else 3.0)
    assert quick_grid(PLAN.phases, "add-remove", 1e-6) == GRIDS[-1]


def test_the_published_bound_is_of_sums_alone():
    """Beside rounds of another kind it would leave these out."""
    for plan in (replace(PLAN, rounds=2), replace(PLAN, sampler="fixed", rounds=2)):
        sums = replace(SUMS, sampler=plan.sampler, rounds=2)
        for phases in ((*plan.phases, *sums.phases), (*sums.phases, *plan.phases)):
            assert {bound.method for bound in SumCost().public(phases, 1e-6, GRIDS[1:2])} == {"pld"}
        assert {bound.method for bound in SumCost().public(sums.phases, 1e-6, GRIDS[1:2])} == {"pld", "zcdp"}


def test_of_check_ins_as_few_fit_as_are_seldom_exceeded_and_no_more_than_there_are():
    for clients, rounds, delta in ((1000, 10, 1e-5), (1000, 1, 1e-5), (5, 2, 1e-5), (400_000, 266, 1e-6)):
        size, _ = largest_cohort(clients, 1 / rounds, 0.01 * delta / rounds)
        assert least_capacity(clients, rounds, delta) == min(size, clients)


@pytest.mark.parametrize("name", ["support_noise", "query_noise", "query_to_message_bound"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.inf, math.nan])
def test_a_record_layers_noises_and_ratio_are_finite_and_above_zero(name, value):
    with pytest.raises(RefusedPlan, match=rf"^{name} = {value}: expected a finite number above 0"):
        replace(LAYER, **{name: value})


@pytest.mark.parametrize("name", ["support_steps", "support_records", "query_records"])
def test_a_record_layer_counts_from_one(name):
    assert getattr(replace(LAYER, **{name: 1}), name) == 1
    for value in (0, -2):
        with pytest.raises(RefusedPlan, match=rf"^{name} = {value}: expected at least 1"):
            replace(LAYER, **{name: value})


def test_what_a_record_layer_costs_by_its_numbers():
    assert LAYER.roles() == (math.sqrt(3) / 2, 1 / 3)
    assert replace(LAYER, support_noise=None).roles() == (0.0, 1 / 3)
    assert replace(LAYER, query_noise=None).roles() == (math.sqrt(3) / 2, 0.0)
    assert LAYER.whole_client() == (2 * 5 / 3, "2 n_q / z_q")
    assert replace(LAYER, query_noise=None).whole_client() == (2 * math.sqrt(3) * 4 / 2, "2 sqrt(K) n_s / z_s")
    balanced = LAYER.with_mu(0.25)
    assert balanced == replace(LAYER, support_noise=math.sqrt(3) * 4, query_noise=4.0)
    assert balanced.roles() == (pytest.approx(0.25), 0.25)
    assert replace(LAYER, support_noise=None).with_mu(0.5) == replace(LAYER, support_noise=None, query_noise=2.0)
    assert replace(LAYER, query_noise=None).with_mu(0.5).query_noise is None
