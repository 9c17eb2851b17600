"""Closed bounds: valid for any number of rounds, above what is computed exactly where both can be."""

import math
import time

import numpy as np
import pytest
from scipy.stats import binom

from dpfedmeta.accounting.cells import guarantees
from dpfedmeta.accounting.gaussian import gaussian_delta
from dpfedmeta.accounting.participations import mixture_epsilon, worst_participations
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.accounting.rare_events import exceeded, largest_cohort, most, most_hostile
from dpfedmeta.accounting.sampled_gaussian import closed_epsilon, composed, sampled_epsilon


def plan(rate: float, noise: float, rounds: int, **changes):
    clients = 400_000
    return PrivacyPlan(clients=clients, cohort=rate * clients, rounds=rounds, noise_multiplier=noise, **changes)


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("rate", "noise", "rounds"), [(0.001, 1.0, 50), (0.1, 3.0, 300), (1.0, 10.0, 20)])
def test_closed_bounds_lie_above_the_composition(neighbours, rate, noise, rounds):
    phases = plan(rate, noise, rounds).phases
    exact = sampled_epsilon(phases, neighbours, 1e-6)
    # At q = 1 the closed bound is exact, and the composition is rounded up to its grid.
    assert closed_epsilon(phases, neighbours, 1e-6)[0] >= exact * (1 - 1e-5)


@pytest.mark.parametrize("rounds", [10**6, 10**9, 10**12])
@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_any_plan_is_answered_at_once(rounds, sampler):
    begun = time.process_time()
    cells = guarantees(plan(0.001, 1.0, rounds, sampler=sampler))
    assert time.process_time() - begun < 5
    assert cells[0].method in ("rdp", "gdp")
    assert "closed bound" in cells[0].binding.formula
    # Without noise that grows with them, epsilon grows at least as the mean loss does.
    assert cells[0].epsilon > 1e-7 * rounds


def test_tiny_moments_are_never_taken_for_none():
    """In floats the moments of such a round are 0 or below; a thousand thousand million of them are not."""
    epsilon, _ = composed(plan(1e-8, 1.0, 10**12).phases, "add-remove", 1e-6)
    assert epsilon > 1e-8 * math.sqrt(10**12)


@pytest.mark.parametrize(("trials", "rate"), [(50, 0.3), (10_000, 0.01), (400_000, 0.00075)])
def test_a_tail_in_closed_form_lies_above_the_tail(trials, rate):
    counts = np.arange(0, min(trials, int(trials * rate * 3)))
    above = np.array([exceeded(int(count), trials, rate) for count in counts])
    assert (above >= binom.sf(counts, trials, rate) * (1 - 1e-9)).all()
    number = most(trials, rate, 1e-8)
    assert exceeded(number, trials, rate) <= 1e-8 < exceeded(number - 1, trials, rate)
    assert exceeded(trials, trials, rate) == 0


def test_many_participations_are_bounded_from_above():
    phases = plan(0.05, 1.0, 60_000).phases
    counts = np.arange(60_001)
    mass = binom.pmf(counts, 60_000, 0.05)
    worst, left = worst_participations(phases, None, 1e-6)
    assert binom.sf(worst, 60_000, 0.05) <= 1e-6 - left <= 1e-8
    assert worst <= 1.02 * binom.isf(1e-8, 60_000, 0.05)
    for cap in (None, 10, 3005):
        epsilon = mixture_epsilon(phases, [0.01], cap, 1e-6)
        taken = counts if cap is None else np.minimum(counts, cap)
        exact = float(mass @ gaussian_delta(epsilon, 0.01 * np.sqrt(taken)))
        assert 0.5e-6 < exact <= 1e-6


def test_huge_populations_are_bounded_from_above():
    size, rare = largest_cohort(10**12, 1e-6, 1e-9)
    assert 1e6 < size < 1.01e6
    assert 0 < rare <= 1e-9
    number, rare = most_hostile(10**12, 10**11, 10_000, 1e-9, fixed=True)
    assert binom.sf(number, 10_000, 0.1) <= rare <= 1e-9
