"""Number of participations of one client: the sampler draws it, and it does not depend on data."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, smallest_epsilon
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.failure_probability import RARE_SHARE, exceeded, fuller, most, upper_quantile
from dpfedmeta.core.random import binomial
from dpfedmeta.core.random.random_sources import FloatArray, IntArray

# Numbers of participations less likely than this are not followed: they count as certain failures.
_NEGLIGIBLE = 1e-18
# Where a client takes part more often, its numbers of participations are bounded in _STEPS steps, each rounded up.
_FOLLOWED, _STEPS = 2000, 512
# Distinct sums of mu^2 that are kept apart; more are merged, each rounded up.
_SUMS = 4096


def worst_participations(phases: Sequence[Phase], cap: int | None, delta: float) -> tuple[int, float]:
    """(R, delta left): the cap, or the smallest R that is exceeded with probability at most delta/100.

    Copies of a run count participations each for itself, so a cap allows as many in the rounds of each.
    """
    if cap is not None:
        rounds: Counter[int] = Counter()
        for phase in phases:
            rounds[phase.copy] += phase.rounds
        return sum(min(cap, own) for own in rounds.values()), delta
    expected, trials = sum(_expected(phase) for phase in phases), sum(phase.rounds for phase in phases)
    if expected > _FOLLOWED:
        worst = most(trials, expected / trials, RARE_SHARE * delta)
        return worst, delta - exceeded(worst, trials, expected / trials)
    mass, beyond = _numbers(phases)
    # more[r] = P(more than r participations), summed from the small end.
    more = np.append(np.cumsum(mass[:0:-1])[::-1], 0.0) + beyond
    participations = int(np.argmax(more <= RARE_SHARE * delta))
    return participations, delta - float(more[participations])


def _expected(phase: Phase) -> float:
    return phase.rounds * phase.event.rate


def _numbers(phases: Sequence[Phase]) -> tuple[FloatArray, float]:
    """(P(R = r) for r = 0, 1, ..., mass that is not followed): the sum of one binomial for each phase."""
    mass, beyond = np.ones(1), 0.0
    for phase in phases:
        counts, beyond_here = _counts(phase)
        mass = np.convolve(mass, binomial.pmf(counts, phase.rounds, phase.event.rate))
        beyond += beyond_here
    return mass, beyond


def _counts(phase: Phase) -> tuple[IntArray, float]:
    def tail(count: int) -> float:
        return fuller(count + 1, phase.rounds, phase.event.rate)

    last = upper_quantile(tail, phase.rounds, _NEGLIGIBLE)
    return np.arange(last + 1), tail(last)


def _steps(phase: Phase) -> tuple[IntArray, FloatArray, float]:
    """(numbers of participations, their mass, mass beyond): a distribution that lies above the binomial one."""
    last = most(phase.rounds, phase.event.rate, _NEGLIGIBLE)
    counts = np.unique(np.linspace(math.ceil(_expected(phase)), last, _STEPS).astype(np.int64))
    more = np.array([exceeded(int(count), phase.rounds, phase.event.rate) for count in counts])
    return counts, -np.diff(more, prepend=1.0), float(more[-1])


@dataclass(frozen=True, kw_only=True)
class _Patterns:
    """Which participation patterns there are: how many so far, the sum of their mu^2, and how likely.

    Attributes:
        taken: Participations so far, [patterns]; not followed without a cap.
        squared: Sum of mu^2 over them, [patterns].
        mass: Probability, [patterns].
        beyond: Probability of all that is not followed.
    """

    taken: IntArray
    squared: FloatArray
    mass: FloatArray
    beyond: float


def mixture_epsilon(
    phases: Sequence[Phase], mus: Sequence[float], cap: int | None, delta: float, *, uncapped: int = 0
) -> float:
    """Epsilon of a mixture over participation patterns, where one participation in phase t is mus[t]-GDP.

    delta(eps) = E over patterns tau of delta_{sqrt(sum of mu_t^2 over tau)}(eps), by joint convexity of the
    hockey-stick divergence (privacy.md section 3). With a cap the first participations count; nothing is renormalised.
    Another copy of a run counts anew: its participations are at most the cap, whatever happened in the others. The
    first `uncapped` phases are not of this run: no cap limits them.

    Guarantee:
        Holds for an observer who even knows in which rounds the client took part.
    """
    if not all(np.isfinite(mus)):
        return float("inf") if phases else 0.0
    patterns = _Patterns(taken=np.zeros(1, np.int64), squared=np.zeros(1), mass=np.ones(1), beyond=0.0)
    counting = 0
    for place, (phase, mu) in enumerate(zip(phases, mus, strict=True)):
        limit = None if place < uncapped else cap
        if phase.copy != counting:
            counting, patterns = phase.copy, replace(patterns, taken=np.zeros_like(patterns.taken))
        patterns = _merged(_with(patterns, phase, mu**2, limit))
    scales = np.sqrt(patterns.squared)

    def delta_at(epsilon: float) -> float:
        return float(patterns.mass @ gaussian_delta(epsilon, scales)) + patterns.beyond

    return smallest_epsilon(delta_at, delta)


def _with(patterns: _Patterns, phase: Phase, squared: float, cap: int | None) -> _Patterns:
    """Add the participations of one more phase to the patterns."""
    counts, mass, beyond = _numbers_of(phase, cap)
    more = np.broadcast_to(counts, (len(patterns.mass), len(counts)))
    if cap is not None:
        more = np.minimum(more, cap - patterns.taken[:, None])
    return _Patterns(
        taken=(patterns.taken[:, None] + more if cap is not None else np.zeros_like(more)).ravel(),
        squared=(patterns.squared[:, None] + more * squared).ravel(),
        mass=(patterns.mass[:, None] * mass).ravel(),
        beyond=patterns.beyond + beyond,
    )


def _numbers_of(phase: Phase, cap: int | None) -> tuple[IntArray, FloatArray, float]:
    """(numbers of participations in one phase, their mass, mass that is not followed)."""
    if _expected(phase) > _FOLLOWED:
        if cap is not None and cap <= _expected(phase):
            return np.array([cap]), np.ones(1), 0.0
        return _steps(phase)
    counts, beyond = _counts(phase)
    mass = binomial.pmf(counts, phase.rounds, phase.event.rate)
    if cap is not None and cap < len(counts):
        # More than the cap is the cap.
        counts, mass = counts[: cap + 1], mass[: cap + 1].copy()
        mass[-1], beyond = float(binomial.sf(cap - 1, phase.rounds, phase.event.rate)), 0.0
    return counts, mass, beyond


def _merged(patterns: _Patterns) -> _Patterns:
    """Patterns of the same sum together; where there are too many sums, they are rounded up to a grid first."""
    squared = patterns.squared
    if len(squared) > _SUMS and (unit := float(squared.max()) / _SUMS) > 0:
        squared = np.ceil(squared / unit) * unit
    keys, where = np.unique(np.stack([patterns.taken.astype(float), squared]), axis=1, return_inverse=True)
    mass = np.zeros(keys.shape[1])
    np.add.at(mass, where.ravel(), patterns.mass)
    return _Patterns(taken=keys[0].astype(np.int64), squared=keys[1], mass=mass, beyond=patterns.beyond)
