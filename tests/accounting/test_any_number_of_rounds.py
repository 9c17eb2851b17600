"""Closed bounds: valid for any number of rounds, above what is computed exactly where both can be."""

import math
import time

import numpy as np
import pytest
from scipy.stats import binom

from dpfedmeta.accounting.divergences import pld_composition as composition
from dpfedmeta.accounting.divergences import rdp
from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon, worst_participations
from dpfedmeta.accounting.divergences.pld_composition import MOST_ROUNDS, closed_epsilon, composed, sampled_epsilon
from dpfedmeta.accounting.divergences.pld_in_arrays import self_composed
from dpfedmeta.accounting.divergences.pld_round import one_round, rounding_error
from dpfedmeta.accounting.events.failure_probability import exceeded, largest_cohort, most, most_hostile
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.other_accountants import dp_accounting_pld
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


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


@pytest.mark.parametrize("rounds", [pytest.param(10**6, marks=pytest.mark.slow), 10**9, 10**12])
@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_any_plan_is_answered_at_once(rounds, sampler):
    begun = time.process_time()
    cells = guarantees(plan(0.001, 1.0, rounds, sampler=sampler))
    assert time.process_time() - begun < 20
    assert (cells[0].method == "pld") == (rounds <= MOST_ROUNDS)
    assert ("closed bound" in cells[0].binding.formula) == (rounds > MOST_ROUNDS)
    # Without noise that grows with them, epsilon grows at least as the mean loss does.
    assert cells[0].epsilon > 1e-7 * rounds


@pytest.mark.parametrize(("neighbours", "moved"), [("add-remove", 1.0), ("replace-one", 2.0)])
@pytest.mark.parametrize(
    ("noise", "rounds", "delta"),
    [
        pytest.param(0.01, 1, 1e-6, marks=pytest.mark.slow),
        pytest.param(0.05, 300, 1e-5, marks=pytest.mark.slow),
        (0.2, 80, 1e-10),
        (30.0, 2000, 1e-11),
        (300.0, 10**5, 1e-10),
        pytest.param(2e4, 10**7, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_everybody_in_every_round_is_known_exactly_and_met_from_above(neighbours, moved, noise, rounds, delta):
    """However large the losses, however many the rounds, however small delta: T releases are one of mu = sqrt(T)/z."""
    exact = gaussian_epsilon(moved * math.sqrt(rounds) / noise, delta)
    found, _ = composed(plan(1.0, noise, rounds).phases, neighbours, delta)
    assert exact * (1 - 1e-5) <= found <= exact * 1.011


# dp-accounting 0.6, PLD at its own interval of 1e-4 (test_its_numbers_are_those_of_dp_accounting computes them again).
EXTREMES = [
    (10**8, 1000, 1000, 0.6, 1e-10, 0.26168),
    (10**8, 1000, 1001, 0.6, 1e-10, 0.26174),
    (400_000, 1500, 100_000, 1.0, 1e-10, 10.8724),
    (400_000, 200, 80, 0.2106, 1e-6, 27.1730),
    (400_000, 200, 80, 0.2, 1e-6, 30.8466),
    (400_000, 200, 80, 0.1, 1e-6, 149.1095),
    (400_000, 200, 80, 0.05, 1e-6, 622.3067),
    (400_000, 200, 10**6, 1.0, 1e-6, 3.0589),
]


@pytest.mark.parametrize(
    ("clients", "cohort", "rounds", "noise", "delta", "other"),
    [case if case[3] in (0.6, 0.2) else pytest.param(*case, marks=pytest.mark.slow) for case in EXTREMES],
)
def test_the_distribution_is_kept_where_another_accountant_has_it(clients, cohort, rounds, noise, delta, other):
    wide = PrivacyPlan(clients=clients, cohort=cohort, rounds=rounds, noise_multiplier=noise)
    epsilon, method = composed(wide.phases, "add-remove", delta)
    assert method == "pld"
    assert epsilon == pytest.approx(other, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(("clients", "cohort", "rounds", "noise", "delta", "other"), EXTREMES)
def test_its_numbers_are_those_of_dp_accounting(clients, cohort, rounds, noise, delta, other):
    wide = PrivacyPlan(clients=clients, cohort=cohort, rounds=rounds, noise_multiplier=noise)
    # Rounding of 100,000-fold compositions shows at 1e-10, and differs between processors: by 6e-4 on two of them.
    assert dp_accounting_pld(wide.phases, delta, width=1e-4 if noise > 0.05 else 1e-3) == pytest.approx(other, rel=2e-3)


def test_a_delta_that_rounding_leaves_nothing_of_has_the_closed_bound():
    phases = plan(0.001, 1.0, 10_000).phases
    exact, closed = composed(phases, "add-remove", 1e-10), composed(phases, "add-remove", 1e-13)
    assert exact[1] == "pld"
    assert closed == closed_epsilon(phases, "add-remove", 1e-13)
    assert closed[0] > exact[0]


def test_rounding_of_a_composition_shows_in_it_and_is_bounded():
    one = one_round("poisson", 1e-5, GaussianNoise(multiplier=0.6), "add-remove", 1e-3)
    together = self_composed(one, 1000)
    shown = rounding_error(together)
    # What it truly is at the far end, where all that stands is rounding.
    assert 0 < shown < 1e-10
    far = [0.9 * 1e-3 * together._pmf_remove.size * part for part in (0.5, 0.7, 0.9)]
    assert all(abs(delta - 1e-15) <= shown for delta in together.get_delta_for_epsilon(far))


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


@pytest.mark.parametrize("neighbours", ["add-remove", "replace-one"])
def test_moments_that_rounding_made_too_small_are_made_up_for(monkeypatch, neighbours):
    """Where there are so many rounds that it counts: a thousand million."""
    rounds, share = 10**9, 5e-14
    plan = PrivacyPlan(clients=10**8, cohort=100.0, rounds=rounds, noise_multiplier=3.0)
    monkeypatch.setattr(composition, "_MOMENT_ROUNDING", 0.0)
    exact = closed_epsilon(plan.phases, neighbours, 1e-6)
    assert exact[1] == "rdp"
    monkeypatch.undo()
    honest = rdp.moments_of
    monkeypatch.setattr(composition, "moments_of", lambda *given: honest(*given) - share * rounds)
    assert closed_epsilon(plan.phases, neighbours, 1e-6)[0] >= exact[0]
    assert share * rounds > 1e-5
