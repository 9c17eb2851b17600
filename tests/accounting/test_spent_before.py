"""What other ledgers charge the same clients with is composed with a plan's own rounds, in every cell."""

import itertools
import json
import math
from dataclasses import replace

import pytest

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences.gdp import gaussian_mu
from dpfedmeta.accounting.events.events import Earlier, Phase, neighbours_of
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees, record_public
from dpfedmeta.accounting.observers.server_observer import poisson_steps_epsilon, record_server, replaced_steps_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.errors import RefusedPlan

PLAN = PrivacyPlan(clients=2000, cohort=100, rounds=6, noise_multiplier=4.0)
LAYER = RecordLayer(support_noise=2.0, query_noise=1.6, support_steps=1, support_records=25, query_records=25)


def before(plan, run="a"):
    return Earlier(run=run, head="0", phases=plan.phases)


def epsilons(plan):
    return [cell.epsilon for cell in guarantees(plan)]


COUNTS = PrivacyPlan(
    clients=100, cohort=100.0, rounds=1, noise_multiplier=12.0, server_sees="sum",
    secure=SecureRounds(bits=31, dimension=10, longest=1.0),
)  # fmt: skip
NAMES = PrivacyPlan(clients=100, cohort=100.0, rounds=1, noise_multiplier=9.0, server_sees="sum", missed=1e-8)


def test_rounds_before_cost_what_they_would_cost_as_rounds():
    split = replace(PLAN, rounds=4, earlier=(before(replace(PLAN, rounds=2)),))
    assert epsilons(split) == pytest.approx(epsilons(PLAN), rel=1e-9)
    assert guarantees(split)[0].epsilon > guarantees(replace(PLAN, rounds=4))[0].epsilon * 1.05


def test_all_that_was_before_counts_however_many_ledgers_charge_it():
    two = replace(PLAN, rounds=2)
    split = replace(two, earlier=(before(two, "a"), before(two, "b")))
    assert epsilons(split) == pytest.approx(epsilons(PLAN), rel=1e-9)


def test_the_server_composes_the_sums_that_it_saw_before():
    twice = replace(COUNTS, rounds=2)
    split = replace(COUNTS, earlier=(before(COUNTS),))
    own, other = guarantees(split), guarantees(twice)
    for place in (1, 2):
        # The published bound is there as well for rounds of one plan alone. Noise on whole numbers costs 1e-4 more.
        assert own[place].bounds[0].epsilon == pytest.approx(other[place].bounds[0].epsilon, rel=1e-6)
        assert own[place].epsilon > 1.3 * guarantees(COUNTS)[place].epsilon
    assert guarantees(replace(COUNTS, earlier=(before(NAMES),)))[1].epsilon == math.inf


def test_a_record_that_said_more_before_is_charged_for_both():
    layered = replace(PLAN, record=LAYER, max_participations=1)
    alone, both = epsilons(layered), epsilons(replace(layered, earlier=(before(COUNTS),)))
    assert all(after > without for after, without in zip(both, alone, strict=True))
    # (record, server): in squares, and never more than the sum.
    assert both[2] < alone[2] + guarantees(COUNTS)[2].epsilon
    names = guarantees(replace(layered, earlier=(before(NAMES),)))
    assert names[2].epsilon == math.inf
    assert math.isfinite(names[3].epsilon)


@pytest.mark.parametrize("mode", ["shared", "stacked"])
def test_what_was_before_had_no_noise_for_records(mode):
    """A run that costs next to nothing leaves a record what the analysis before costs it."""
    quiet = replace(LAYER, support_noise=1e4, query_noise=1e4)
    plan = replace(PLAN, record=quiet, rounds=1, max_participations=1, noise_multiplier=1e4, noise_mode=mode)
    alone, after = epsilons(COUNTS), epsilons(replace(plan, earlier=(before(COUNTS),)))
    for place, found in enumerate(after):
        assert found >= 0.99 * alone[place]


def test_no_cap_of_the_run_limits_what_was_before():
    capped = replace(PLAN, record=LAYER, max_participations=1)
    many = replace(COUNTS, rounds=5, noise_multiplier=20.0)
    mixtures = [
        record_public(capped.phases, replace(Terms.of(capped), before=replace(many, rounds=rounds).phases))
        for rounds in (1, 5)
    ]
    assert mixtures[1].bounds[0].epsilon > 1.02 * mixtures[0].bounds[0].epsilon


def test_mini_batched_steps_count_it_too():
    local = RecordLayer(
        support_noise=1.0, query_noise=None, support_steps=10, support_records=500, query_records=1, batch_rate=0.1
    )
    plan = replace(PLAN, record=local, noise_mode="stacked", noise_multiplier=4.0)
    alone, both = (guarantees(each)[2].epsilon for each in (plan, replace(plan, earlier=(before(COUNTS),))))
    assert alone + guarantees(COUNTS)[2].epsilon * 0.9 < both < math.inf


def test_fixed_cohorts_replace_a_client_in_what_was_before_too():
    fixed = replace(PLAN, sampler="fixed", earlier=(before(COUNTS),))
    cell = guarantees(fixed)[0]
    assert cell.adjacency == "replace-one"
    assert cell.epsilon > guarantees(replace(fixed, earlier=()))[0].epsilon
    # Replacing costs more than adding: about twice the release before.
    assert guarantees(replace(fixed, rounds=1, noise_multiplier=1e3))[0].epsilon > 1.5 * guarantees(COUNTS)[0].epsilon


def test_whichever_rounds_replace_a_client_all_do():
    """In any order, of one plan, of several, and of what was before."""
    kinds = {name: replace(PLAN, sampler=name, rounds=1).phases for name in ("poisson", "fixed")}
    for names in itertools.product(kinds, repeat=3):
        phases = [phase for name in names for phase in kinds[name]]
        assert neighbours_of(phases) == ("replace-one" if "fixed" in names else "add-remove")
    assert neighbours_of([]) == "add-remove"


def test_noise_is_solved_for_all_together():
    target = Targets(client_epsilon=2.0)
    all_of_them = replace(PLAN, cohort=2000, rounds=1, noise_multiplier=1.0, earlier=(before(COUNTS),))
    plan = calibrate(all_of_them, target)
    assert 2.0 * 0.99 < guarantees(plan)[0].epsilon <= 2.0
    # In squares: z^-2 of both together is what mu^2 of (2, 1e-6) allows.
    assert plan.noise_multiplier**-2 + 12.0**-2 == pytest.approx(gaussian_mu(2.0, 1e-6) ** 2, rel=0.01)
    layered = replace(all_of_them, record=LAYER, max_participations=1)
    record = calibrate(layered, Targets(record_epsilon=4.0))
    assert 4.0 * 0.99 < guarantees(record)[2].epsilon <= 4.0


def test_noise_is_found_wherever_the_tight_bound_leaves_some():
    # 3,000 of 400,000 were asked for 0.5: by moments, which are loose for one release, that alone is above 1.5.
    asked = PrivacyPlan(clients=400_000, cohort=3000, rounds=1, noise_multiplier=0.8602)
    run = PrivacyPlan(clients=400_000, cohort=200, rounds=4, noise_multiplier=1.0, earlier=(before(asked),))
    assert guarantees(asked)[0].epsilon == pytest.approx(0.5, rel=0.01)
    plan = calibrate(run, Targets(client_epsilon=1.5))
    assert 1.5 * 0.99 < guarantees(plan)[0].epsilon <= 1.5


def test_what_is_spent_already_is_said():
    with pytest.raises(RefusedPlan, match="spent already"):
        calibrate(replace(PLAN, earlier=(before(COUNTS),)), Targets(client_epsilon=0.1))
    with pytest.raises(RefusedPlan, match="every ledger once"):
        replace(PLAN, earlier=(before(COUNTS), before(COUNTS)))


@pytest.mark.parametrize("plan", [COUNTS, NAMES], ids=["counts", "names"])
def test_the_first_line_of_a_ledger_keeps_it(plan):
    later = replace(PLAN, earlier=(before(plan),))
    stated = json.loads(json.dumps(constants(later)))
    assert plan_of(stated) == later
    assert plan_of(json.loads(json.dumps(constants(plan)))) == plan
    assert [constants(PLAN)[name] for name in ("earlier", "missed", "secure")] == [[], None, None]


def test_before_the_first_round_it_is_what_is_spent():
    later = replace(PLAN, earlier=(before(COUNTS),))
    assert guarantees(later, rounds=0)[0].epsilon == pytest.approx(guarantees(COUNTS)[0].bounds[0].epsilon)
    assert Phase(event=COUNTS.at(0), rounds=1) in later.before


# Kinds of plans whose cells say something, and what was before under fixed cohorts: no rare event of its own.
EXACT = replace(COUNTS, sampler="fixed")
BATCHES = RecordLayer(
    support_noise=1.0, query_noise=None, support_steps=10, support_records=500, query_records=1, batch_rate=0.1
)
SUMMED = RecordLayer(
    support_noise=None, query_noise=None, support_steps=1, support_records=1, query_records=8, of_sum=True
)
BY_SUMS = replace(
    PLAN, clients=200, cohort=50.0, sampler="fixed", server_sees="sum", secure=SecureRounds(bits=18, dimension=64)
)
BESIDE = {
    "record steps": replace(PLAN, record=LAYER, max_participations=1),
    "mini-batches": replace(PLAN, record=BATCHES, noise_mode="stacked", max_participations=1),
    "sums": BY_SUMS,
    "records under sums": replace(BY_SUMS, record=SUMMED, secure=replace(BY_SUMS.secure, parts=8)),
}


@pytest.mark.parametrize("kind", BESIDE)
def test_rare_events_of_what_was_before_are_off_every_delta(kind):
    """So likely that nothing is left of either delta: there is no promise then."""
    plan = BESIDE[kind]
    exact, likely = (
        replace(plan, earlier=(Earlier(run="a", head="0", phases=(Phase(event=event, rounds=1),)),))
        for event in (EXACT.at(0), replace(EXACT.at(0), surplus_probability=2e-5))
    )
    assert sum(map(math.isfinite, epsilons(exact))) >= 2
    for cell in guarantees(likely):
        assert cell.epsilon == math.inf, cell.name


@pytest.mark.parametrize("kind", ["sums", "records under sums"])
def test_no_bound_on_a_sum_forgets_what_was_before(kind):
    """Each of a cell's bounds counts it, or is not there: the smallest of them is what is promised."""
    plan = BESIDE[kind]
    for alone, after in zip(guarantees(plan), guarantees(replace(plan, earlier=(before(EXACT),))), strict=True):
        without = {bound.method: bound.epsilon for bound in alone.bounds}
        for bound in after.bounds:
            assert bound.epsilon > 1.001 * without.get(bound.method, 0.0) or bound.epsilon == math.inf, after.name


@pytest.mark.parametrize("relation", ["zero-out", "in-place"])
def test_local_steps_and_what_was_before_have_half_of_delta_each(relation):
    """Two bounds of different kinds: their epsilons are added, each at half of delta."""
    plan = replace(BESIDE["mini-batches"], earlier=(before(EXACT),))
    half, terms = plan.record_delta / 2, replace(Terms.of(plan), relation=relation)
    own = replaced_steps_epsilon(0.1, 1.0, 10, half)
    if relation == "zero-out":
        own = poisson_steps_epsilon(0.1, 1.0, 10, half, "pld")
    earlier = guarantees(replace(EXACT, record_delta=half))[2].bounds[0].epsilon
    found = record_server(plan.phases, terms).epsilon
    assert found == pytest.approx(own + earlier, rel=1e-6)


def test_towards_the_public_a_replaced_record_of_mini_batches_is_bounded_as_towards_the_server():
    plan = BESIDE["mini-batches"]
    removed = Terms.of(plan)
    replaced = replace(removed, relation="in-place")
    for terms in (removed, replaced):
        assert record_server(plan.phases, terms).binding in record_public(plan.phases, terms).bounds
    assert record_server(plan.phases, replaced).epsilon > 1.1 * record_server(plan.phases, removed).epsilon


def test_each_bound_counts_rounds_before_as_rounds():
    """The larger ones too: which of them is the smallest depends on the plan."""
    split = replace(PLAN, rounds=4, earlier=(before(replace(PLAN, rounds=2)),))
    for cell, whole in zip(guarantees(split), guarantees(PLAN), strict=True):
        bounds = [[bound.epsilon for bound in each.bounds] for each in (cell, whole)]
        assert bounds[0] == pytest.approx(bounds[1], rel=1e-6)
