import math
import warnings

import numpy as np
import pytest
from scipy.stats import binom, hypergeom

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events import failure_probability
from dpfedmeta.accounting.events.failure_probability import (
    MOST_TRIALS,
    RARE_SHARE,
    check_population,
    exceeded,
    fuller,
    largest_cohort,
    most_hostile,
    smallest_cohort,
)
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import RefusedPlan


def exact_tail(weights, above):
    """Sum of the probabilities beyond a number, from whole numbers (no scipy)."""
    return sum(weights[above + 1 :]) / sum(weights)


def poisson_weights(clients, rate):
    top, bottom = rate
    return [math.comb(clients, k) * top**k * (bottom - top) ** (clients - k) for k in range(clients + 1)]


@pytest.mark.parametrize("allowed", [1e-3, 1e-8, 1e-12])
def test_the_limit_is_the_smallest_that_is_hardly_ever_reached(allowed):
    size, beyond = largest_cohort(200, 10 / 200, allowed)
    weights = poisson_weights(200, (1, 20))
    assert beyond == pytest.approx(exact_tail(weights, size - 1), rel=1e-9)
    assert beyond <= allowed < exact_tail(weights, size - 2)


@pytest.mark.parametrize("allowed", [1e-14, 3e-17, 1e-20, 1e-100])
def test_what_is_rarer_than_a_float_beside_1_has_its_limit_too(allowed):
    """SciPy's quantiles of it are the whole population."""
    size, beyond = largest_cohort(400_000, 0.00375, allowed)
    assert 1600 < size < 3000
    assert beyond == binom.sf(size - 1, 400_000, 0.00375) <= allowed < binom.sf(size - 2, 400_000, 0.00375)
    for law, fixed in ((hypergeom(400_000, 900, 1500), True), (binom(900, 1500 / 400_000), False)):
        number, rare = most_hostile(400_000, 900, 1500, allowed, fixed=fixed)
        assert 5 < number < 200
        assert rare == law.sf(number) <= allowed < law.sf(number - 1)


@pytest.mark.parametrize("rate", [(1, 20), (1, 2), (9, 10), (99, 100), (1, 1)])
@pytest.mark.parametrize("allowed", [1e-3, 1e-8])
def test_one_client_hardly_ever_decides_whether_a_cohort_is_too_small(rate, allowed):
    clients = 200
    size, rare = smallest_cohort(clients, rate[0] / rate[1], allowed)
    weights, others = poisson_weights(clients, rate), poisson_weights(clients - 1, rate)
    few, by_one = sum(weights[: size + 1]) / sum(weights), others[max(size, 0)] / sum(others) if size > 0 else 0.0
    assert rare == pytest.approx(max(few, by_one), rel=1e-9)
    assert rare <= allowed
    # Beyond the largest of them, one of the two is not rare.
    assert max(sum(weights[: size + 2]) / sum(weights), others[size + 1] / sum(others)) > allowed


@pytest.mark.parametrize("cohort", [30, 400, 20_000])
@pytest.mark.parametrize("allowed", [1e-3, 1e-8])
def test_of_very_many_clients_neither_event_is_likelier_than_is_said(cohort, allowed):
    clients = MOST_TRIALS + 1
    rate = cohort / clients
    size, rare = smallest_cohort(clients, rate, allowed)
    exact = max(binom.cdf(size, clients, rate), binom.pmf(size, clients - 1, rate))
    assert exact <= rare <= allowed
    # That `size` or fewer of the others are drawn is that more than so many of them stay away.
    assert rare == exceeded(clients - 1 - size - 1, clients - 1, 1 - rate)
    assert exceeded(clients - 1 - size - 2, clients - 1, 1 - rate) > allowed


@pytest.mark.parametrize("clients", [1000, MOST_TRIALS + 1])
@pytest.mark.parametrize("share", [1.0, 1.3, 2.0])
def test_a_full_round_is_never_likelier_than_is_said(clients, share):
    rate = 300 / clients
    size = round(300 * share)
    exact = binom.sf(size - 1, clients, rate)
    said = fuller(size, clients, rate)
    # Beyond the most trials a bound takes its place.
    above = 50 if clients > MOST_TRIALS else 1 + 1e-9
    assert exact * (1 - 1e-9) <= said <= exact * above
    assert clients <= MOST_TRIALS or said == exceeded(size - 1, clients, rate)


@pytest.mark.parametrize("allowed", [1e-3, 1e-8])
@pytest.mark.parametrize("fixed", [False, True])
def test_hostile_clients_are_counted_up_to_the_smallest_number_that_is_hardly_ever_exceeded(fixed, allowed):
    most, beyond = most_hostile(200, 30, 20, allowed, fixed=fixed)
    drawn = [math.comb(30, k) * math.comb(170, 20 - k) for k in range(21)] if fixed else poisson_weights(30, (1, 10))
    assert beyond == pytest.approx(exact_tail(drawn, most), rel=1e-9)
    assert beyond <= allowed < exact_tail(drawn, most - 1)


def test_nobody_hostile_costs_nothing():
    assert most_hostile(200, 0, 20, 1e-8, fixed=False) == (0, 0.0)


def micro(hostile, **changes):
    layer = RecordLayer(
        support_noise=None,
        query_noise=1.634,
        support_steps=1,
        support_records=1,
        query_records=25,
        parts="micro-episodes",
    )
    return PrivacyPlan(
        **{
            "clients": 400_000, "cohort": 1500.0, "rounds": 266, "noise_multiplier": 0.755, "record": layer,
            "max_participations": 1, "hostile": hostile, **changes,
        }
    )  # fmt: skip


def test_the_published_numbers_hold_where_every_message_is_counted_on():
    constants = micro(0.0).at(0)
    assert constants.largest_cohort == 1759
    assert constants.total_noise == constants.assured_noise == pytest.approx(2.741, rel=1e-3)
    assert guarantees(micro(0.0))[0].epsilon == pytest.approx(0.087, rel=0.01)


def test_what_hostile_clients_leave_out_is_not_counted():
    plan, own = micro(0.1), 1.634 / 25
    constants = plan.at(0)
    assert constants.largest_cohort == 1759
    # 150 of the 40,000 hostile ones are expected.
    assert 200 < constants.hostile < 260
    assert constants.assured_noise == pytest.approx(own * math.sqrt(1759 - constants.hostile))
    assert constants.total_noise == pytest.approx(own * math.sqrt(1759))
    assert constants.noise.multiplier == pytest.approx(own * math.sqrt(1759 - constants.hostile - 1))
    more = [guarantees(micro(share))[0].epsilon for share in (0.0, 0.01, 0.1, 0.3, 0.9)]
    assert more == sorted(more)
    assert more[0] < more[-1]
    # Towards the server a client has its own noise alone, whatever others do.
    assert [cell.epsilon for cell in guarantees(plan)[1:3]] == [cell.epsilon for cell in guarantees(micro(0.0))[1:3]]


def test_where_the_server_adds_more_the_clients_noise_is_not_what_counts():
    plan = micro(0.1, noise_multiplier=5.0, cohort=20.0)
    constants, own = plan.at(0), (1.634 / 25) ** 2
    assert constants.assured_noise == pytest.approx(math.sqrt(25.0 + own))
    assert constants.noise.multiplier == pytest.approx(5.0)
    assert constants.total_noise == pytest.approx(math.sqrt(25.0 + own + constants.hostile * own))


def test_both_rare_events_are_taken_off_delta():
    """In one place each, and together at most a fiftieth of it."""
    for delta in (1e-5, 1e-3):
        changes = {"client_delta": delta, "record_delta": delta, "clients": 2000, "cohort": 40.0, "rounds": 50}
        without, both = (micro(share, **changes).at(0).surplus_probability for share in (0.0, 0.2))
        assert 0 < without < both <= 2 * RARE_SHARE * delta / 50


def split(hostile, **changes):
    return PrivacyPlan(
        **{"clients": 10_000, "cohort": 100.0, "rounds": 10, "noise_multiplier": 2.0, "sampler": "fixed",
           "noise_site": "clients", "client_delta": 1e-5, "hostile": hostile, **changes}
    )  # fmt: skip


def test_under_split_noise_the_honest_clients_make_all_of_it():
    constants = split(0.1).at(0)
    honest = 100 - constants.hostile
    assert 20 < constants.hostile < 40
    drawn = [math.comb(1000, k) * math.comb(9000, 100 - k) for k in range(101)]
    assert constants.surplus_probability == pytest.approx(exact_tail(drawn, constants.hostile), rel=1e-6)
    assert constants.message_noise == pytest.approx(2.0 / math.sqrt(honest))
    assert constants.assured_noise == pytest.approx(2.0)
    assert constants.total_noise == pytest.approx(2.0 * math.sqrt(100 / honest))
    assert constants.noise.multiplier == pytest.approx(2.0 * math.sqrt(1 - 1 / honest))
    # A larger share towards the server as well.
    server = guarantees(split(0.1))[1].epsilon
    mu = 2.0 * math.sqrt(honest) / 2.0
    worst = next(r for r in range(11) if exact_tail(poisson_weights(10, (1, 100)), r) <= 1e-7)
    assert server == pytest.approx(gaussian_epsilon(math.sqrt(worst) * mu, 1e-5), rel=0.02)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(RefusedPlan, match="hostile"):
        micro(share)


def test_a_cohort_of_hostile_clients_alone_cannot_split_the_noise():
    with pytest.raises(RefusedPlan, match="none is sure to add its share"):
        _ = split(0.5, clients=200, cohort=10.0).phases


def test_the_tail_is_stable_for_many_clients():
    size, beyond = largest_cohort(10**9, 1e-5, 1e-14)
    assert 10_000 < size < 10_900
    assert 0 < beyond <= 1e-14
    most, rest = most_hostile(10**9, 10**8, 10_000, 1e-14, fixed=False)
    assert 1000 < most < 1300
    assert 0 < rest <= 1e-14
    assert np.isfinite(most)


def test_a_share_never_rounds_to_fewer_clients():
    """0.29 times 100 is 28.999999999999996."""
    plan = micro(0.29, clients=100, cohort=100.0, rounds=1, client_delta=1e-3, record_delta=1e-3)
    assert plan.at(0).hostile == 29


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize(("clients", "hostile", "cohort"), [(3000, 30, 60), (3000, 300, 60), (50_000, 5, 900)])
def test_beyond_the_most_trials_hostile_clients_are_counted_as_below_them(monkeypatch, clients, hostile, cohort, fixed):
    """Never fewer than exactly, and about as many: draws with replacement spread a little further."""
    exact, _ = most_hostile(clients, hostile, cohort, 1e-9, fixed=fixed)
    monkeypatch.setattr(failure_probability, "MOST_TRIALS", 10)
    found, left = most_hostile(clients, hostile, cohort, 1e-9, fixed=fixed)
    assert exact <= found <= exact + 2 + 0.1 * exact
    assert left <= 1e-9


@pytest.mark.parametrize("clients", [3, 49, 1000, 400_000])
def test_a_delta_that_exposes_one_client_of_the_population_is_warned_of_to_the_last_digit(clients):
    with pytest.warns(UserWarning, match="not below 1/N"):
        check_population(clients, 1.0, 1 / clients)
    with warnings.catch_warnings(action="error"):
        check_population(clients, 1.0, math.nextafter(1 / clients, 0.0))


def _rare(size, clients, rate):
    """Of smallest_cohort, by scipy.stats."""
    by_one = binom.pmf(size, clients - 1, rate) if size > 0 else 0.0
    return max(float(binom.cdf(size, clients, rate)), float(by_one))


@pytest.mark.parametrize("clients", [1, 2, 10, 2000, 400_000])
@pytest.mark.parametrize("rate", [1e-9, 1e-3, 0.3, 0.97, 1.0])
def test_sizes_are_those_of_scipys_public_functions(clients, rate):
    for allowed in (0.0, 1e-300, 1e-8, 0.01, 0.5):
        size, beyond = largest_cohort(clients, rate, allowed)
        assert beyond == binom.sf(size - 1, clients, rate) <= allowed
        assert allowed < 1e-8 or size == 1 or binom.sf(size - 2, clients, rate) > allowed
        size, within = smallest_cohort(clients, rate, allowed)
        assert size < 0 or within == _rare(size, clients, rate) <= allowed
        assert allowed < 1e-8 or size == clients or _rare(size + 1, clients, rate) > allowed
    for size in (-1, 0, 1, clients - 1, clients, clients + 1, clients + 5):
        assert fuller(size, clients, rate) == binom.sf(size - 1, clients, rate)
