import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.accounting.divergences import participation_counts
from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon, worst_participations
from dpfedmeta.accounting.events.failure_probability import exceeded
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan


def plan(rounds=20, schedule=(), **changes):
    return PrivacyPlan(
        **{"clients": 100, "cohort": 10.0, "rounds": rounds, "noise_multiplier": 1.0, "schedule": schedule, **changes}
    )


TWO = plan(rounds=6, schedule=(Change(from_round=2, cohort_scale=3.0),)).phases


def patterns(phases, mus, cap):
    """Every pattern of coin flips, one by one: (probability, sum of mu^2 over the first `cap` participations)."""
    rates = [s.event.rate for s in phases for _ in range(s.rounds)]
    squares = [mu**2 for s, mu in zip(phases, mus, strict=True) for _ in range(s.rounds)]
    for flips in itertools.product((0, 1), repeat=len(rates)):
        probability = math.prod(q if flip else 1 - q for q, flip in zip(rates, flips, strict=True))
        taken = [square for square, flip in zip(squares, flips, strict=True) if flip]
        yield probability, sum(taken if cap is None else taken[:cap])


@pytest.mark.parametrize("cap", [None, 1, 2, 3])
@pytest.mark.parametrize("mus", [(1.0, 1.0), (0.4, 1.7), (2.0, 0.1)])
def test_the_mixture_is_the_sum_over_every_pattern(cap, mus):
    epsilon = mixture_epsilon(TWO, mus, cap, 1e-3)
    exact = sum(p * float(gaussian_delta(epsilon, math.sqrt(s))) for p, s in patterns(TWO, mus, cap) if s)
    assert exact == pytest.approx(1e-3, rel=1e-6)


@pytest.mark.parametrize("delta", [1e-3, 1e-7])
def test_the_worst_number_is_that_of_a_sum_of_binomials(delta):
    worst, left = worst_participations(TWO, None, delta)
    exact = np.convolve(stats.binom.pmf(range(3), 2, 0.1), stats.binom.pmf(range(5), 4, 0.3))
    assert exact[worst + 1 :].sum() <= delta / 100 < exact[worst:].sum()
    assert left == pytest.approx(delta - exact[worst + 1 :].sum())


def test_a_large_cap_is_no_cap():
    assert mixture_epsilon(TWO, (1.0, 0.5), 6, 1e-4) == pytest.approx(mixture_epsilon(TWO, (1.0, 0.5), None, 1e-4))


def test_more_rounds_and_a_larger_cap_cost_more():
    values = [mixture_epsilon(plan(rounds=n).phases, [0.5], 2, 1e-5) for n in (5, 50, 500)]
    assert values == sorted(values)
    assert values[-1] <= gaussian_epsilon(math.sqrt(2) * 0.5, 1e-5)
    caps = [mixture_epsilon(plan(rounds=200).phases, [0.5], cap, 1e-5) for cap in (1, 2, 5, None)]
    assert caps == sorted(caps)


def test_many_sums_are_merged_upwards_by_less_than_one_percent(monkeypatch):
    schedule = tuple(Change(from_round=10 * k, noise_scale=1.0 + 0.1 * k) for k in range(1, 4))
    phases = plan(rounds=40, schedule=schedule).phases
    mus = [0.9, 0.8, 0.7, 0.61]
    exact = mixture_epsilon(phases, mus, None, 1e-5)
    monkeypatch.setattr("dpfedmeta.accounting.divergences.participation_counts._SUMS", 400)
    merged = mixture_epsilon(phases, mus, None, 1e-5)
    assert exact <= merged <= 1.01 * exact


def test_numbers_that_never_come_are_not_followed():
    phase = plan(clients=400_000, cohort=1500.0, rounds=10_000).phases[0]
    counts, beyond = participation_counts._counts(phase)
    law = stats.binom(phase.rounds, phase.event.rate)
    assert beyond == law.sf(counts[-1]) <= 1e-18 < law.sf(counts[-1] - 1)
    assert list(counts) == list(range(int(counts[-1]) + 1))
    assert counts[-1] < 150


def test_nobody_and_nothing():
    assert mixture_epsilon((), (), None, 1e-5) == 0.0
    assert mixture_epsilon(TWO, (1.0, math.inf), None, 1e-5) == math.inf
    assert mixture_epsilon(TWO, (0.0, 0.0), None, 1e-5) == 0.0
    assert worst_participations((), None, 1e-5)[0] == 0


def test_very_long_plans_are_fast_and_finite():
    long = PrivacyPlan(clients=400_000, cohort=1500, rounds=100_000, noise_multiplier=1.0)
    assert 0 < mixture_epsilon(long.phases, [0.1], None, 1e-5) < 100
    worst, _ = worst_participations(long.phases, None, 1e-5)
    assert stats.binom.sf(worst, 100_000, 0.00375) <= 1e-7


COPIES = (replace(TWO[0], copy=0), replace(TWO[1], copy=0), replace(TWO[0], copy=1), replace(TWO[0], copy=2))


@pytest.mark.parametrize(("cap", "worst"), [(1, 3), (2, 6), (3, 7), (20, 10)])
def test_each_copy_of_a_run_allows_the_cap_again(cap, worst):
    # 6, 2 and 2 rounds.
    assert worst_participations(COPIES, cap, 1e-5) == (worst, 1e-5)


@pytest.mark.parametrize("cap", [None, 1, 2])
def test_the_mixture_over_copies_is_the_sum_over_every_pattern(cap):
    mus = (1.0, 0.7, 1.3, 0.4)
    epsilon = mixture_epsilon(COPIES, mus, cap, 1e-3)
    parts = [list(patterns(COPIES[:2], mus[:2], cap))]
    parts += [list(patterns([s], [mu], cap)) for s, mu in zip(COPIES[2:], mus[2:], strict=True)]
    exact = sum(
        math.prod(p for p, _ in each) * float(gaussian_delta(epsilon, math.sqrt(sum(s for _, s in each))))
        for each in itertools.product(*parts)
        if any(s for _, s in each)
    )
    assert exact == pytest.approx(1e-3, rel=1e-6)


def test_what_is_exceeded_is_off_delta_also_where_numbers_are_bounded_in_closed_form(monkeypatch):
    """Beyond so many expected ones; with a rare share that takes most of delta, what is not taken off shows."""
    monkeypatch.setattr(participation_counts, "RARE_SHARE", 0.97)
    long = plan(rounds=60_000, cohort=5.0).phases
    expected = 60_000 * 0.05
    assert expected > participation_counts._FOLLOWED
    worst, left = worst_participations(long, None, 1e-5)
    assert left == pytest.approx(1e-5 - exceeded(worst, 60_000, 0.05), rel=1e-12)
    assert exceeded(worst, 60_000, 0.05) <= 0.97e-5 < exceeded(worst - 1, 60_000, 0.05)
    assert left < 0.5e-5
    # Of several phases: their coins together, at their mean.
    both = (*long, *plan(rounds=20_000, cohort=20.0).phases)
    worst, left = worst_participations(both, None, 1e-5)
    assert left == pytest.approx(1e-5 - exceeded(worst, 80_000, 7000 / 80_000), rel=1e-12)


@pytest.mark.parametrize("cap", [1, 2, 3])
@pytest.mark.parametrize("uncapped", [0, 1, 2])
def test_phases_of_before_are_limited_by_no_cap_and_use_none_of_it_up(cap, uncapped):
    phases, mus = (*TWO, replace(TWO[0], rounds=3)), (0.7, 1.1, 0.4)
    epsilon = mixture_epsilon(phases, mus, cap, 1e-3, uncapped=uncapped)
    before = list(patterns(phases[:uncapped], mus[:uncapped], None)) if uncapped else [(1.0, 0.0)]
    own = list(patterns(phases[uncapped:], mus[uncapped:], cap))
    exact = sum(
        p * q * float(gaussian_delta(epsilon, math.sqrt(s + t))) for p, s in before for q, t in own if s + t > 0
    )
    assert exact == pytest.approx(1e-3, rel=1e-6)


def test_where_a_cap_is_reached_for_sure_it_is_the_cap():
    """Of so many expected participations; a cap above them is followed in steps, each rounded up."""
    long = plan(rounds=60_000, cohort=5.0).phases
    at_most = [mixture_epsilon(long, [0.02], cap, 1e-5) for cap in (2999, 3000, 3001, 3200, None)]
    assert at_most[0] == pytest.approx(gaussian_epsilon(0.02 * math.sqrt(2999), 1e-5), rel=1e-9)
    assert at_most[1] == pytest.approx(gaussian_epsilon(0.02 * math.sqrt(3000), 1e-5), rel=1e-9)
    assert at_most == sorted(at_most)
    assert at_most[3] <= gaussian_epsilon(0.02 * math.sqrt(3200), 1e-5)


def test_a_phase_without_rounds_or_chances_adds_nothing():
    none = (replace(TWO[0], rounds=0), *TWO)
    assert worst_participations(none, None, 1e-3) == worst_participations(TWO, None, 1e-3)
    assert mixture_epsilon(none, (5.0, 1.0, 0.5), None, 1e-4) == mixture_epsilon(TWO, (1.0, 0.5), None, 1e-4)
