"""Bounds with known answers, and how often they are wrong."""

import math
from dataclasses import asdict

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom, binomtest, norm

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.auditing.estimators.one_run import (
    Guesses,
    best_one_run_epsilon,
    epsilon_of,
    gaussian_epsilon_of,
    gaussian_rejected,
    guesses_of,
    normal_epsilon,
    null_quantile,
    one_run_epsilon,
    one_shot,
    p_value,
    pooled,
)
from dpfedmeta.auditing.trade_off_function import (
    GaussianCurve,
    SampledCurve,
    epsilon_of_counts,
    epsilon_of_curve,
    least_probability,
    most_probability,
)

QUANTILES = ndtri((np.arange(10_000) + 0.5) / 10_000)
DELTA, MISS = 1e-6, 0.05


def test_a_fixed_grid_is_a_certificate_and_shows_more():
    found = one_run_epsilon(QUANTILES + 2.0, QUANTILES, DELTA, MISS)
    assert found == pytest.approx(4.5307, abs=1e-3)
    normal = one_run_epsilon(QUANTILES + 2.0, QUANTILES, DELTA, MISS, gaussian=True)
    assert found < normal < gaussian_epsilon(2.0, DELTA)


def test_the_p_value_is_the_published_sum():
    guesses, epsilon, delta = Guesses(canaries=50, made=20, right=17), 0.7, 1e-3
    rate = math.exp(epsilon) / (1 + math.exp(epsilon))
    tail = sum(binom.pmf(v, 20, rate) for v in range(17, 21))
    gains = [sum(binom.pmf(v, 20, rate) for v in range(17 - i, 17)) / i for i in range(1, 18)]
    assert p_value(guesses, epsilon, delta) == pytest.approx(tail + 2 * 50 * delta * max(gains))
    assert p_value(guesses, epsilon, 0.0) == pytest.approx(tail)


@pytest.mark.parametrize("bound", [epsilon_of, gaussian_epsilon_of])
def test_more_right_guesses_show_more_and_none_show_nothing(bound):
    found = [bound(Guesses(canaries=200, made=100, right=right), 1e-5, MISS) for right in (0, 50, 75, 90, 100)]
    assert found == sorted(found)
    assert found[:2] == [0.0, 0.0]
    assert found[-1] > 1.0


def test_ties_in_the_scores_favour_nobody():
    same = np.zeros(500)
    assert all(abs(each.right / each.made - 0.5) <= 0.5 for each in guesses_of(same, same))
    assert one_run_epsilon(np.array([]), np.array([]), DELTA, MISS) == 0.0


def wrong(flags, rate):
    """More of them than chance explains, once in ten thousand."""
    return sum(flags) > binom.isf(1e-4, len(flags), rate)


def test_two_hundred_audits_of_a_mechanism_that_keeps_its_promise():
    """Each bound may be above the promise in 5% of the audits, but for chance."""
    generator, mu = np.random.default_rng(7), 1.0
    promised, curve = gaussian_epsilon(mu, DELTA), GaussianCurve(mu=mu, delta=DELTA)
    by_curve, by_counts, by_run, by_gaussian = [], [], [], []
    for _ in range(200):
        one, other = generator.normal(mu**2 / 2, mu, 500), generator.normal(-(mu**2) / 2, mu, 500)
        right = int((one > 0).sum() + (other <= 0).sum())
        by_curve.append(epsilon_of_curve(right, 1000, curve, MISS) > promised)
        by_counts.append(epsilon_of_counts(one, other, DELTA, MISS) > promised)
        tried = list(guesses_of(one, other))
        # Above the promise is where the promise itself is rejected.
        by_run.append(any(p_value(each, promised, DELTA) <= MISS / len(tried) for each in tried))
        by_gaussian.append(any(gaussian_rejected(each, mu, MISS / len(tried)) for each in tried))
    assert not any(wrong(flags, MISS) for flags in (by_curve, by_counts, by_run, by_gaussian))
    # The tightest of them is wrong now and then: the test would see one that is wrong twice as often as it says.
    assert sum(by_curve) > 0


def test_half_the_noise_is_seen():
    curve, promised = GaussianCurve(mu=1.0, delta=DELTA), gaussian_epsilon(1.0, DELTA)
    right = round(10_000 * ndtr(1.0))
    assert epsilon_of_curve(right, 10_000, curve, MISS) > 1.5 * promised
    assert epsilon_of_curve(right, 10_000, curve, MISS) < gaussian_epsilon(2.0, DELTA)
    assert epsilon_of_curve(5000, 10_000, curve, MISS) == 0.0


@pytest.mark.parametrize("mu", [1.0, 2.0, 20**0.5])
def test_ten_thousand_runs_come_within_a_tenth(mu):
    curve = GaussianCurve(mu=mu, delta=DELTA)
    right = round(10_000 * ndtr(mu / 2))
    assert epsilon_of_curve(right, 10_000, curve, MISS) >= 0.9 * curve.epsilon(1.0)


def test_the_curve_of_sampled_rounds_is_that_of_their_mixture():
    plan = PrivacyPlan(clients=10, cohort=1, rounds=1, noise_multiplier=0.8, client_delta=DELTA)
    sampled = SampledCurve(phases=plan.phases, neighbours="add-remove", delta=DELTA)
    # One sampled round: a tenth of the total variation of one that is not.
    assert sampled.total_variation(1.0) == pytest.approx(0.1 * (2 * ndtr(0.5 / 0.8) - 1), rel=1e-3)
    assert sampled.total_variation(2.0) < sampled.total_variation(1.0)
    assert sampled.epsilon(2.0) < sampled.epsilon(1.0)


def test_clopper_and_pearson():
    assert least_probability(0, 10, MISS) == 0.0
    assert most_probability(10, 10, MISS) == 1.0
    assert binom.sf(6, 10, least_probability(7, 10, MISS)) == pytest.approx(MISS)
    assert binom.cdf(7, 10, most_probability(7, 10, MISS)) == pytest.approx(MISS)


def test_the_estimate_of_one_shot():
    assert normal_epsilon(1.0, 1.0, DELTA) == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=1e-4)
    # By integration, in the worse direction: of a narrower law it is the other one than of a wider law.
    x = np.linspace(-60.0, 60.0, 400_001)
    for mean, deviation in ((2.0, 0.8), (2.0, 1.25), (0.5, 0.9)):
        with_it, without = norm.pdf(x, mean, deviation), norm.pdf(x)
        epsilon = normal_epsilon(mean, deviation, DELTA)
        deltas = [
            float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum() * (x[1] - x[0]))
            for one, other in ((with_it, without), (without, with_it))
        ]
        assert max(deltas) == pytest.approx(DELTA, rel=1e-3)
    cosines = np.random.default_rng(0).normal(1.0, 1.0, 4000) / math.sqrt(5000)
    found = one_shot(cosines, 5000, DELTA)
    assert found.epsilon == pytest.approx(gaussian_epsilon(1.0, DELTA), rel=0.15)
    _, least, most = found.found[0.05]
    assert least < 1 - ndtr(ndtri(0.95) - 1.0) < most
    for share, least, most in found.found.values():
        exact = binomtest(round(4000 * share), 4000).proportion_ci(0.95, "exact")
        assert (least, most) == pytest.approx((exact.low, exact.high), rel=1e-9)


def test_the_null_is_exact_in_few_dimensions():
    drawn = np.random.default_rng(1).normal(size=(200_000, 3))
    cosines = drawn[:, 0] / np.linalg.norm(drawn, axis=1)
    # In three dimensions it is uniform.
    assert null_quantile(0.05, 3) == pytest.approx(0.9)
    assert (cosines > null_quantile(0.05, 3)).mean() == pytest.approx(0.05, abs=0.002)
    assert null_quantile(0.01, 999) == pytest.approx(null_quantile(0.01, 1000), rel=2e-3)


def test_thresholds_share_the_miss_between_them_and_between_their_probabilities():
    """Of sixteen tests, each with two probabilities, all are right at once but with probability `MISS`."""
    one, other = QUANTILES[::20] + 0.8, QUANTILES[::20] - 0.8

    def proportion(sample, value):
        sure = binomtest(int((sample > value).sum()), len(sample)).proportion_ci(1 - 2 * MISS / 16 / 2, method="exact")
        return sure.low, sure.high

    bounds = [
        math.log((proportion(more, value)[0] - DELTA) / proportion(less, value)[1])
        for more, less in ((one, other), (-other, -one))
        for value in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
        if proportion(more, value)[0] > DELTA
    ]
    assert epsilon_of_counts(one, other, DELTA, MISS) == pytest.approx(max(bounds))


def test_guesses_of_several_runs_are_about_the_canaries_of_all_of_them():
    """With a small delta as many of them are right by chance as there are canaries."""
    runs = [Guesses(canaries=100 + place, made=20 + place, right=15 + place) for place in range(4)]
    together = asdict(pooled(runs))
    assert together == {name: sum(asdict(run)[name] for run in runs) for name in together}
    one = Guesses(canaries=400, made=80, right=60)
    quarter = Guesses(canaries=100, made=20, right=15)
    assert p_value(pooled([quarter] * 4), 0.3, 1e-3) == p_value(one, 0.3, 1e-3)


@pytest.mark.parametrize("canaries", [16, 17, 31, 100, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-3])
def test_the_largest_bound_of_one_run_is_the_bound_of_right_guesses(canaries, delta):
    """And no scores of as many canaries, split in any way, give more."""
    most = best_one_run_epsilon(canaries, delta, 0.05)
    for inside in {canaries // 2, canaries - canaries // 2, canaries // 4, canaries - 3}:
        found = one_run_epsilon(np.full(inside, 2.0), np.full(canaries - inside, -1.0), delta, 0.05)
        assert found <= most
    made = 2 * (canaries // 2)
    shares = sum(2 * int(canaries / 2**power) >= 8 for power in range(1, 10))
    assert most >= epsilon_of(Guesses(canaries=canaries, made=made, right=made), delta, 0.05 / shares) > 0
