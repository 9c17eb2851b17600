"""The longest release of honest clients: an upper bound of its quantile, and not far above it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom, chi2, ncx2

from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.honest_norm import CHANCE, honest_norm, longest_release, most_messages, planned_deviation
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.samplers import sampler_of

SIZES = [(1, 0.0), (1, 3.0), (5, 1.0), (400, 0.0), (400, 20.0), (400, 200.0), (100_000, 50.0)]


@pytest.mark.parametrize("chance", [1e-9, 1e-3, 0.3])
@pytest.mark.parametrize(("dimension", "length"), SIZES)
def test_it_is_above_the_quantile_of_normal_noise_and_close_to_it(dimension, length, chance):
    """The squared length over sigma^2 is noncentral chi-squared."""
    sigma = 0.7
    found = longest_release(longest_sum=sigma * length, deviation=sigma, dimension=dimension, chance=chance)
    exact = ncx2(dimension, length**2) if length else chi2(dimension)
    quantile = sigma * math.sqrt(float(exact.isf(chance)))
    assert quantile <= found <= (2.5 if dimension < 10 else 1.05) * quantile


@pytest.mark.parametrize("dimension", [1, 400, 100_000])
def test_where_the_sum_follows_the_noise_lengths_are_added(dimension):
    """Clients who know the noise may all point its way."""
    found = longest_release(longest_sum=5.0, deviation=2.0, dimension=dimension, chance=1e-6, depends_on_noise=True)
    assert 5.0 + 2.0 * math.sqrt(chi2(dimension).isf(1e-6)) <= found


def test_without_noise_it_is_the_sum():
    assert longest_release(longest_sum=3.0, deviation=0.0, dimension=10, chance=1e-9) == pytest.approx(3.0)


def test_discrete_noise_is_no_longer():
    """Of as few steps as a client's share may have, in a sum that is as long as it may be."""
    chance, dimension, tries = 0.02, 30, 4000
    generator = KeyedSource(3).generator(Purpose.SERVER_NOISE, 0)
    noise = generator.discrete_normal(1.5**2, dimension * tries).reshape(tries, dimension).astype(float)
    sums = np.full(dimension, 3.0)
    most = longest_release(longest_sum=float(np.linalg.norm(sums)), deviation=1.5, dimension=dimension, chance=chance)
    longer = (np.linalg.norm(sums + noise, axis=1) > most).mean()
    assert longer <= chance
    assert (np.linalg.norm(sums + noise, axis=1) > 0.8 * most).mean() > 0.02


def plan_of(**given):
    return PrivacyPlan(**{"clients": 3000, "cohort": 60.0, "rounds": 40, "noise_multiplier": 2.0} | given)


@pytest.mark.parametrize(
    ("given", "joining"),
    [
        ({}, (3000, 0.02)),
        ({"sampler": "check-ins", "rounds": 50, "capacity": 200, "max_participations": 1}, (3000, 0.02)),
    ],
)
@pytest.mark.parametrize("chance", [1e-9, 0.05])
def test_messages_are_a_quantile_of_the_cohort(given, joining, chance):
    found = most_messages(plan_of(**given).at(0), chance)
    assert binom(*joining).sf(found) <= chance
    assert binom(*joining).sf(found - 2) > chance


def test_cohorts_of_a_fixed_size_and_limited_ones_are_no_larger():
    assert most_messages(plan_of(sampler="fixed").at(0), 1e-9) == 60
    full = plan_of(sampler="check-ins", rounds=50, capacity=115, max_participations=1).at(0)
    assert most_messages(full, 1e-15) == 115 < most_messages(plan_of().at(0), 1e-15)


@pytest.mark.parametrize(
    "given", [{}, {"sampler": "check-ins", "rounds": 50, "capacity": 200, "max_participations": 1}]
)
def test_drawn_cohorts_are_rarely_larger(given):
    """By the samplers that runs draw with."""
    plan, chance = plan_of(**given), 0.2
    sampler, most = sampler_of(plan.at(0), plan.max_participations), most_messages(plan.at(0), chance)
    sizes = [len(sampler.draw(0, {}, KeyedSource(seed).generator(Purpose.COHORT, 0)).clients) for seed in range(300)]
    assert sum(size > most for size in sizes) <= binom(300, chance).isf(1e-6)
    assert max(sizes) > most


def test_what_bounds_nothing_has_no_longest_release():
    plan, known = plan_of(), {"deviation": 0.1, "dimension": 10, "own_noise": False}
    assert honest_norm(plan.at(0), moved=math.inf, **known) is None
    assert honest_norm(plan_of(noise_multiplier=None).at(0), moved=1.0, **known) is None
    counted = plan_of(server_sees="sum", missed=1e-9)
    assert isinstance(counted.at(0).noise, ThresholdedNoise)
    assert honest_norm(counted.at(0), moved=1.0, **known) is None


def test_it_counts_with_cohort_rounding_and_whose_noise_it_is():
    known = {"deviation": 0.0, "dimension": 10, "own_noise": False}
    assert honest_norm(plan_of(sampler="fixed").at(0), moved=0.3, **known) == pytest.approx(0.3, rel=1e-3)
    most = most_messages(plan_of().at(0), CHANCE / 2)
    assert honest_norm(plan_of().at(0), moved=0.3, **known) == pytest.approx(0.3 * most / 60, rel=1e-3)
    whole = plan_of(sampler="fixed", server_sees="sum", secure=SecureRounds(bits=12, dropout=0.1, dimension=32_768)).at(
        0
    )
    assert whole.whole.growth > 1.01
    assert honest_norm(whole, moved=0.3, **known) == pytest.approx(0.3 * whole.whole.growth, rel=1e-3)
    noisy = {"deviation": 0.2, "dimension": 100}
    ours, own = (honest_norm(plan_of().at(0), moved=1.0, own_noise=own, **noisy) for own in (False, True))
    assert own > 1.2 * ours


FITTED = {"noise": "banded", "correlation": Correlation(separation=5, numbers=(1.0, 0.6, 0.3))}
KINDS = {
    "poisson": plan_of(),
    "fixed": plan_of(sampler="fixed"),
    "counts": plan_of(sampler="fixed", server_sees="sum", secure=SecureRounds(bits=12, dropout=0.1, dimension=32_768)),
    "correlated": plan_of(clients=600, rounds=40, **FITTED),
}


@pytest.mark.parametrize("own_noise", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_each_half_of_the_chance_goes_to_one_of_the_two(kind, own_noise):
    """How many messages there are, and how long the noise is: one number put together from both."""
    event, chance = KINDS[kind].at(0), 1e-3
    growth = event.whole.growth if event.whole else 1.0
    due = longest_release(
        longest_sum=most_messages(event, chance / 2) * 0.7 * growth / event.cohort,
        deviation=0.3,
        dimension=50,
        chance=chance / 2,
        depends_on_noise=own_noise or kind == "correlated",
    )
    found = honest_norm(event, moved=0.7, deviation=0.3, dimension=50, own_noise=own_noise, chance=chance)
    assert due < found <= due * (1 + 2e-4)
    assert most_messages(event, chance / 2) >= most_messages(event, chance)


def test_half_of_a_chance_allows_one_message_more():
    event = plan_of().at(0)
    edges = [c for c in np.geomspace(1e-6, 0.3, 40) if most_messages(event, c / 2) > most_messages(event, c)]
    chance = float(edges[0])
    found = honest_norm(event, moved=1.0, deviation=0.0, dimension=1, own_noise=False, chance=chance)
    assert found == pytest.approx(most_messages(event, chance / 2) / 60, rel=2e-4)
    assert found > 1.001 * (1 + 1e-4) * most_messages(event, chance) / 60


class Unsteady(GaussianNoise):
    """Noise whose deviation follows what it is added to."""

    steady = False


def test_the_planned_deviation_of_a_round_follows_from_the_kind_of_its_noise():
    plain, counts, correlated = KINDS["poisson"], KINDS["counts"], KINDS["correlated"]
    assert planned_deviation(plan_of(noise_multiplier=None).at(0), 3) == 0.0
    assert planned_deviation(plan_of(noise_multiplier=0.0).at(0), 3) == 0.0
    assert planned_deviation(plain.at(0), 3) == 2.0
    whole = counts.at(0).whole
    assert whole.growth > 1.01
    # All noise of the sum over its sensitivity, and the sensitivity is that much longer than the clip bound.
    assert planned_deviation(counts.at(0), 3) == pytest.approx(math.sqrt(whole.total) / whole.parts / whole.units)
    shared = plan_of(noise_multiplier=0.1, record=RecordLayer(
        support_noise=None, query_noise=3.0, support_steps=1, support_records=1, query_records=2
    ))  # fmt: skip
    assert planned_deviation(shared.at(0), 3) == shared.at(0).total_noise > shared.at(0).noise.multiplier
    noise = correlated.at(0).noise
    deviations = noise_deviations(noise.coefficients(40))
    assert len({round(float(d), 9) for d in deviations[:3]}) == 3
    assert [planned_deviation(correlated.at(0), t) for t in range(40)] == pytest.approx((2.0 * deviations).tolist())
    assert planned_deviation(replace(plain.at(0), noise=Unsteady(multiplier=2.0)), 3) is None
    assert planned_deviation(replace(plain.at(0), total_noise=None), 3) is None


@pytest.mark.parametrize("sampler", ["poisson", "cyclic", "check-ins"])
def test_no_more_messages_than_clients_and_than_a_round_takes(sampler):
    """Whatever the chance: of few clients that are all likely, and of a round with a limit."""
    given = {
        "poisson": {"clients": 7, "cohort": 6.9},
        "cyclic": {"clients": 40, "cohort": 7.9, "noise": "banded", "correlation": Correlation(separation=5)},
        "check-ins": {"clients": 80, "cohort": 8.0, "rounds": 10, "capacity": 40, "max_participations": 1},
    }[sampler]
    event = plan_of(sampler=sampler, **given).at(0)
    there = {"poisson": 7, "cyclic": 8, "check-ins": 40}[sampler]
    assert most_messages(event, 1e-90) == there
    for limit in (3, 5):
        assert most_messages(replace(event, largest_cohort=limit), 1e-90) == limit
    assert most_messages(replace(event, largest_cohort=1000), 1e-90) == (80 if sampler == "check-ins" else there)
