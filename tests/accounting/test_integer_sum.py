import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.stats import binom

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.failure_probability import largest_cohort as largest_of
from dpfedmeta.accounting.events.failure_probability import smallest_cohort
from dpfedmeta.accounting.events.integer_sum import rounded_length, units_of
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.plan_sizes import fewest_bits, largest_cohort
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import (
    LEAST_DEVIATION,
    SecureRounds,
    _is_fine,
    check_fine,
    is_fine,
    with_bits,
)
from dpfedmeta.analytics.secure_counts import CountGrid
from dpfedmeta.core.errors import RefusedPlan

PLAN = PrivacyPlan(
    clients=400_000,
    cohort=1500,
    rounds=60,
    noise_multiplier=1.0,
    server_sees="sum",
    secure=SecureRounds(bits=16, dimension=32_000, dropout=0.1),
)
FIXED = replace(PLAN, sampler="fixed", cohort=1000)
PARTS = RecordLayer(
    support_noise=None, query_noise=None, support_steps=1, support_records=1, query_records=5, of_sum=True
)


# ../shared/design/trust-free-server.md, section 2.
@pytest.mark.parametrize(("bits", "growth"), [(12, 1.79), (14, 1.07), (16, 1.005)])
def test_known_growth_of_the_sensitivity(bits, growth):
    units = units_of(bits, dimension=32_768, parts=1, clients=1500, noise=1.0, surplus=1.0)
    assert rounded_length(units, 32_768) / units == pytest.approx(growth, rel=0.02)


def test_no_rounded_vector_is_promised_to_be_shorter_than_can_be():
    """sqrt(d)/2 is the length of a vector of halves, whichever way it is rounded; and never below the bound itself."""
    assert rounded_length(0.0, 400) <= 20.0
    assert rounded_length(1e-9, 400) >= 10.0
    assert rounded_length(1e6, 400) >= 1e6


def test_a_client_moves_a_sum_by_all_of_its_parts():
    one = PLAN.phases[0].event.whole
    three = replace(one, parts=3)
    assert one.of_a_client >= one.units
    assert three.of_a_client == pytest.approx(3 * one.of_a_client)


def test_survivors_always_make_the_noise():
    """Whoever is invited: as few honest survivors as may be have the planned deviation between them."""
    for plan in (PLAN, FIXED):
        whole = plan.phases[0].event.whole
        for invited in range(whole.least, whole.most + 1, 7):
            fewest = whole.fewest(invited)
            assert fewest >= 0.9 * invited - 1e-6 > fewest - 1
            assert (fewest - whole.unsure) * whole.share(invited) == pytest.approx(whole.deviation**2)
            assert invited * whole.share(invited) + 4 <= whole.total * (1 + 1e-12)


def test_the_cells_of_a_sum():
    public, server, of_record, _ = guarantees(PLAN)
    capped = guarantees(replace(PLAN, max_participations=1))[1]
    assert capped.epsilon < server.epsilon < math.inf
    # Without a record layer a record moves what its client sends by as much as the client does.
    assert of_record.epsilon == pytest.approx(server.epsilon, rel=0.3)
    assert public.epsilon < 1
    one = replace(PLAN, max_participations=1, record=PARTS, secure=replace(PLAN.secure, parts=5))
    record = guarantees(one)[2]
    assert record.epsilon < capped.epsilon / 5
    assert record.relations["in-place"] > 1.9 * record.epsilon


def test_who_faces_which_noise():
    """Rounded Gaussian noise gains a twelfth; the server knows its own, and faces that of the fewest clients alone."""
    for plan in (PLAN, FIXED):
        event = plan.phases[0].event
        whole = event.whole
        for faced, variance in ((event.noise, whole.total), (event.sum_noise, whole.deviation**2)):
            gaussian = (faced.multiplier * whole.of_a_client) ** 2
            assert variance - gaussian == pytest.approx(1 / 12, abs=1e-6 * variance / 1e4)
        assert whole.total >= whole.clients_noise(whole.most) > 1.1 * whole.deviation**2


def test_a_target_towards_the_server_is_met_and_bound():
    once = replace(PLAN, max_participations=1, noise_multiplier=0.0)
    towards = Targets(client_epsilon=8.0, client_observer="server")
    found = calibrate(once, towards)
    _, server, _, _ = guarantees(found)
    assert 8 * 0.998 <= server.epsilon <= 8
    with pytest.raises(RefusedPlan, match="--aggregation secure"):
        calibrate(
            replace(once, secure=None, server_sees="messages"), Targets(client_epsilon=8, client_observer="server")
        )


def test_the_largest_cohort_begins_where_clients_can_make_the_noise():
    within = Targets(client_epsilon=1.0)
    found = largest_cohort(replace(PLAN, clients=20_000, rounds=5), within)
    assert found.cohort > 30
    assert guarantees(found)[0].epsilon <= 1.0 < guarantees(replace(found, cohort=found.cohort * 1.01))[0].epsilon


def test_a_message_that_is_rounded_as_a_whole_is_charged_as_a_whole():
    """Two messages that a record moved apart a little may be rounded apart, so its clip bound says nothing of a sum."""
    steps = RecordLayer(support_noise=60, query_noise=3, support_steps=1, support_records=25, query_records=25)
    fixed = replace(FIXED, noise_multiplier=0.6, rounds=1, cohort=1000, clients=1000)
    rounded = replace(fixed, record=steps, noise_mode="stacked")
    of_record = guarantees(rounded)[3]
    message, (noise,) = 1 / 3, {phase.event.noise for phase in rounded.phases}
    # What the query gradient itself carries, or the whole message, whichever is less; both far above 2/(25 z).
    assert of_record.epsilon >= 0.99 * gaussian_epsilon(min(message, noise.mu(2.0)), rounded.record_delta)


def test_outsiders_who_collude_know_that_they_were_not_drawn():
    """Of a fixed cohort they know that it was drawn from the others."""
    many = replace(FIXED, clients=3000, colluding=50)
    assert many.phases[0].event.rate == 1000 / 2950
    assert PLAN.phases[0].event.rate == 1500 / 400_000


def test_parts_without_noise_need_a_secure_sum():
    """A server that adds the noise itself has seen the exact sum before."""
    with pytest.raises(RefusedPlan, match=r"record\.of_sum"):
        replace(PLAN, secure=None, record=PARTS)
    exact = replace(PLAN, secure=None)
    assert guarantees(exact)[1].epsilon == math.inf


def test_more_that_is_unsure_costs_more():
    """Colluding clients know their shares: the others' must be larger, at the same promise."""
    few, many = (replace(FIXED, colluding=c).phases[0].event.whole for c in (1, 200))
    assert many.share(1000) / many.sensitivity**2 > 1.2 * few.share(1000) / few.sensitivity**2
    hostile = replace(FIXED, hostile=0.05).phases[0].event
    assert hostile.assured_noise < hostile.total_noise
    assert hostile.noise.multiplier < FIXED.phases[0].event.noise.multiplier * 1.1


def test_a_ledger_states_it_and_gives_it_back():
    event = PLAN.phases[0].event
    assert Event.from_json(event.as_json()) == event
    with_parts = replace(PLAN, record=PARTS, secure=replace(PLAN.secure, parts=5))
    for plan in (PLAN, with_parts):
        assert plan_of(constants(plan)) == plan
    plain = PrivacyPlan(clients=100, cohort=10, rounds=2, noise_multiplier=1.0)
    assert constants(plain)["secure"] is None
    assert not {"whole", "sum_noise"} & {*plain.phases[0].event.as_json()}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cohort": 2.0}, "as small as"),
        ({"colluding": 1400}, "none is left whose share counts"),
        ({"hostile": 0.1}, "fixed-size sampler"),
        ({"secure": SecureRounds(bits=16, dimension=32_000, dropout=0.05, absent=0.05)}, "would be aborted"),
        ({"secure": SecureRounds(bits=9, dimension=2**22)}, "too few"),
        ({"noise_multiplier": None}, "a clip bound"),
        ({"noise": "own:Noise"}, "independent"),
        ({"schedule": (Change(from_round=3, noise_scale=2.0),)}, "no changes between rounds"),
        ({"noise_site": "clients", "sampler": "fixed"}, "the clients add the noise anyway"),
    ],
)
def test_what_cannot_be_planned(changes, words):
    with pytest.raises(RefusedPlan, match=words):
        _ = replace(PLAN, **changes).phases


def test_silence_that_ends_a_round_is_counted_for_the_worst_cohort():
    plan = replace(PLAN, secure=replace(PLAN.secure, dropout=0.2, absent=0.135))
    event, without = plan.at(0), replace(plan, secure=replace(plan.secure, absent=0.0)).at(0)
    sizes = np.arange(event.whole.least, event.whole.most + 1)
    rare = binom.cdf([event.whole.fewest(int(size)) for size in sizes], sizes, 1 - 0.135)
    # Smaller cohorts fail more often than larger ones.
    assert 1e-12 < rare.max() <= plan.allowed
    assert rare.max() > 10 * rare[-1]
    assert event.surplus_probability - without.surplus_probability == pytest.approx(rare.max(), rel=1e-3)


def test_too_few_bits_are_refused_unless_asked_for():
    coarse = replace(PLAN, secure=replace(PLAN.secure, bits=12))
    with pytest.raises(RefusedPlan, match="give more bits"):
        check_fine(coarse)
    check_fine(PLAN)


@pytest.mark.parametrize(
    ("targets", "cohort", "bits"),
    [(Targets(), 1500, 16), (Targets(), 60, 13), (Targets(record_epsilon=2.0), 60, 16)],
)
def test_the_fewest_bits_are_the_first_that_cost_little(targets, cohort, bits):
    plan = replace(PLAN, sampler="fixed", cohort=cohort)
    found = fewest_bits(plan, targets)
    assert found.secure.bits == bits
    assert is_fine(found, 1.01)
    assert not is_fine(with_bits(found, bits - 1), 1.01)
    # Solved with these bits, and not with others.
    assert found == calibrate(with_bits(plan, bits), targets)


def test_more_bits_than_there_are_cannot_be_solved_for():
    with pytest.raises(RefusedPlan, match="even 20 bits are too few"):
        fewest_bits(replace(PLAN, secure=replace(PLAN.secure, dimension=2**40)), Targets(client_epsilon=1.0))
    with pytest.raises(RefusedPlan, match="a target that needs less noise"):
        fewest_bits(replace(PLAN, sampler="fixed"), Targets(record_epsilon=1e-9))


def test_a_rare_abort_is_charged():
    """With drop-out below what is tolerated an abort is rare, and taken off delta."""
    absent = replace(PLAN, secure=replace(PLAN.secure, absent=0.045))
    assert absent.phases[0].event.surplus_probability > PLAN.phases[0].event.surplus_probability


@pytest.mark.parametrize(("colluding", "hostile"), [(1, 0.0), (7, 0.0), (1, 0.05), (7, 0.05), (40, 0.05)])
def test_who_colludes_is_not_counted_among_the_hostile(colluding, hostile):
    """They may be other clients: neither their noise nor that of the hostile ones is counted on."""
    event = replace(FIXED, colluding=colluding, hostile=hostile).at(0)
    assert event.whole.unsure == colluding + event.hostile
    assert (event.hostile > 0) == (hostile > 0)


@pytest.mark.parametrize("most", [1, 2, 5, 40, None])
@pytest.mark.parametrize("rounds", [60, 400])
def test_a_cap_leaves_as_many_clients_as_the_largest_cohorts_of_all_rounds_do(most, rounds):
    """Exactly: whoever took part as often as allowed leaves a place empty in every later cohort."""
    plan = replace(PLAN, clients=2_000_000, rounds=rounds, max_participations=most)
    whole, rate = plan.at(0).whole, PLAN.cohort / 2_000_000
    there = 2_000_000 - (0 if most is None else math.ceil(rounds * whole.most / most))
    assert whole.most == largest_of(2_000_000, rate, plan.allowed)[0]
    assert whole.least == smallest_cohort(there, rate, plan.allowed)[0] + 1
    assert binom.cdf(whole.least - 1, there, rate) <= plan.allowed


@pytest.mark.parametrize(("bits", "longest", "noise"), [(12, 1.0, 2.0), (16, 3.0, 1.0), (20, 1000.0, 0.5)])
def test_the_largest_counts_that_a_plan_accepts_are_read_as_they_are(bits, longest, noise):
    """The sum of all that the most clients can say, with four deviations of noise, is one number modulo 2^b."""
    plan = PrivacyPlan(
        clients=10**6, cohort=4.0, rounds=1, noise_multiplier=noise, sampler="fixed", server_sees="sum",
        secure=SecureRounds(bits=bits, dimension=8, longest=longest),
    )  # fmt: skip

    def whole_of(cohort):
        try:
            return replace(plan, cohort=float(cohort)).at(0).whole
        except RefusedPlan:
            return None

    low, high = 4, 2**bits
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if whole_of(middle) else (low, middle)
    whole = whole_of(low)
    grid = CountGrid(bits=whole.bits, steps=round(whole.units / longest))
    spread = math.sqrt(whole.clients_noise(low))
    largest = np.array([sign * math.floor(low * whole.units + 4 * spread) for sign in (1, -1)], dtype=np.int64)
    assert grid.centred(largest % 2**bits).tolist() == largest.tolist()
    # And hardly less is accepted than fits.
    assert 2 * (low + 2) * whole.units + 8 * spread > 2 ** (bits - 1)


@pytest.mark.parametrize(
    ("growth", "share", "fine"),
    [
        (1.01, LEAST_DEVIATION**2, True), (1.0101, LEAST_DEVIATION**2, False),
        (1.0, 0.999 * LEAST_DEVIATION**2, False), (1.0, LEAST_DEVIATION, False),
    ],
)  # fmt: skip
def test_bits_are_enough_where_rounding_grows_little_and_each_share_is_wide(growth, share, fine):
    """A share is a variance, so it is held against the square of the least deviation."""
    assert _is_fine(SimpleNamespace(growth=growth, smallest_share=share), 1.01) is fine
