"""Composition of sampled rounds, through the privacy loss distributions of dp-accounting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, reduce
from typing import TYPE_CHECKING, Literal

import numpy as np

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.pld_round import (
    DISTANCES,
    composed_width,
    largest_loss,
    one_round,
    rounding_error,
    widest_composition,
)
from dpfedmeta.accounting.divergences.rdp import ORDERS, divergences, moments_of
from dpfedmeta.accounting.events.events import Phase, have_whole_numbers, neighbours_of
from dpfedmeta.accounting.events.noise_cost import Noise
from dpfedmeta.accounting.events.sampling import Neighbours, sampling_of
from dpfedmeta.core.random.random_sources import FloatArray

if TYPE_CHECKING:  # a second to import, and a loop that only goes on needs none of it
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates

ComposedBy = Literal["pld", "rdp", "gdp"]
# (sampler, q, noise, how many rounds), for each phase.
_Rounds = tuple[tuple[str, float, Noise, int], ...]
# (one round, its grid, how many rounds) -> the range of their losses.
_Width = Callable[["PrivacyLossDistribution", float, int], float]

# Widths of the privacy-loss grid. Estimates are pessimistic, so a coarse grid is looser, never wrong: it is refined
# until epsilon changes by less than _CONVERGED, or one round takes more than _POINTS points.
GRIDS = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
COARSE = GRIDS[1:2]
_CONVERGED = 2e-3
_POINTS = 400_000
# Points of a composition at most; and of one of many rounds, or of a range too wide for the coarsest of GRIDS.
_COMPOSED_POINTS, _FEWER_POINTS = 10_000_000, 1_000_000
# Of one round, to estimate the range of a composition.
_ROUGH_POINTS = 4_000
# e to this is still a float.
_LARGEST_EXPONENT = 600.0
# Beyond this loss of one round the grid would be so wide that e to its width is no float.
_LARGEST_LOSS = 2.5e6
# Rounds from which a closed bound stands beside the distribution (its grid gets coarse), and from which it stands
# alone: the rounding of one round's probabilities, 1e-16 each, would move the mean of all of them.
MANY_ROUNDS, MOST_ROUNDS = 100_000, 10_000_000
# What the rounding of the transform may add to delta in each round, and which share of delta it may be without being
# taken off.
_ROUNDING, _LOST_SHARE = 1e-15, 0.01
# What rounding may take from the moments of one round; it would count in a thousand million rounds.
_MOMENT_ROUNDING = 1e-13


def sampled_epsilon(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
) -> float:
    """Epsilon of all rounds together, at delta, when one client is added or removed, or its message replaced.

    Args:
        phases: What happened; every one has noise.
        neighbours: What the two populations differ in. A message has norm at most C before and after.
        delta: What is left for this cell.
        grids: Widths of the privacy-loss grid to try, coarse to fine; one alone gives a looser bound in less time.

    Guarantee:
        The tight composition of each round's dominating pair, rounded up to a grid. Poisson, add-remove:
        (1-q)N(0)+qN(C) and N(0). Poisson, replace-one: (1-q)N(0)+qN(C) and (1-q)N(0)+qN(-C). Fixed size, replace-one:
        see `pld_round.fixed_size_profile`, which also covers Poisson, replace-one for other noise than Gaussian: a
        cohort with the client in it is coupled to the same cohort.

    Raises:
        ValueError: Adding or removing under fixed-size sampling, which has no meaning there.
    """
    return composed(phases, neighbours, delta, grids)[0]


def composed(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
) -> tuple[float, ComposedBy]:
    """`sampled_epsilon`, and how it was found.

    The rounding of the Fourier transform is taken off delta where it might be felt. Where nothing of delta is left, or
    there are more than MOST_ROUNDS, a closed bound stands alone (`closed_epsilon`); from MANY_ROUNDS on the smaller one
    counts.
    """
    if not phases:
        return 0.0, "pld"
    if delta <= 0 or not all(phase.event.noise for phase in phases):
        return math.inf, "pld"
    count = sum(phase.rounds for phase in phases)
    exact = math.inf if count > MOST_ROUNDS else _of_distribution(phases, neighbours, delta, grids)
    if math.isfinite(exact) and count <= MANY_ROUNDS:
        return exact, "pld"
    closed = closed_epsilon(phases, neighbours, delta)
    if math.isfinite(closed[0]):
        closed = _of_discrete_closed(phases, neighbours, delta, closed)
    # Where both are infinite it is the closed one that says so: no distribution was found.
    return closed if closed[0] <= exact else (exact, "pld")


def _of_distribution(phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...]) -> float:
    """Epsilon by the privacy loss distribution; inf where rounding leaves nothing of delta."""
    rounds, discrete = _rounds(phases), _discrete(phases)
    if not discrete:
        return _epsilon(rounds, neighbours, delta, grids)
    guess = _epsilon(rounds, neighbours, delta, COARSE)
    return _with_discrete(lambda left: _epsilon(rounds, neighbours, left, grids), delta, guess, discrete)


def _discrete(phases: Sequence[Phase]) -> Sequence[Coordinates]:
    """Coordinates with discrete noise that the public sees."""
    if not have_whole_numbers(phases):
        return ()
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import released_coordinates

    return released_coordinates(phases)


def _with_discrete(at: Callable[[float], float], delta: float, guess: float, discrete: Sequence[Coordinates]) -> float:
    from dpfedmeta.accounting.divergences.discrete_gaussian_cost import epsilon_of_discrete

    return epsilon_of_discrete(at, delta, guess, discrete)


def _of_discrete_closed(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, closed: tuple[float, ComposedBy]
) -> tuple[float, ComposedBy]:
    """A closed bound, with what discrete noise costs more where there is such."""
    discrete = _discrete(phases)
    if not discrete:
        return closed
    found = _with_discrete(lambda left: closed_epsilon(phases, neighbours, left)[0], delta, closed[0], discrete)
    return found, closed[1]


def closed_epsilon(phases: Sequence[Phase], neighbours: Neighbours, delta: float) -> tuple[float, ComposedBy]:
    """An upper bound on `sampled_epsilon` in milliseconds, for any number of rounds, and which bound it is.

    Guarantee:
        The smaller of two. rdp: the moments of each round add up (Mironov 2017, https://arxiv.org/abs/1702.07476); a
        replaced client under Poisson sampling is one removed and one added, so (e, d) for either gives
        (2 e, (1 + exp(e)) d) for both. gdp: the rounds without their sampling, which only helps.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    moved = DISTANCES[neighbours]
    noises = [(phase.event.noise, phase.rounds) for phase in phases]
    squared = sum(count * noise.mu(moved) ** 2 for noise, count in noises if noise is not None)
    unsampled = gaussian_epsilon(math.sqrt(squared), delta)
    of_coins = neighbours_of(phases) == "add-remove"
    moments = moments_of(phases, ORDERS)
    if moments is None:
        return unsampled, "gdp"
    moments = moments + _MOMENT_ROUNDING * sum(phase.rounds for phase in phases)
    by_moments = (
        _replaced_by_moments(moments, delta)
        if of_coins and moved > 1
        else float(compute_epsilon(ORDERS, moments, delta)[0])
    )
    return (by_moments, "rdp") if by_moments <= unsampled else (unsampled, "gdp")


def _replaced_by_moments(moments: FloatArray, delta: float) -> float:
    """By way of the population without the client."""
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    def lost(epsilon: float) -> float:
        return (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * float(compute_delta(ORDERS, moments, epsilon)[0])

    epsilon = smallest_epsilon(lost, delta)
    return 2.0 * epsilon if epsilon < _LARGEST_EXPONENT else math.inf


def sampled_delta(phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
    """Delta of all rounds together at epsilon, rounded up to a coarse grid."""
    if not phases:
        return 0.0
    if not all(phase.event.noise for phase in phases):
        return 1.0
    rounds = _rounds(phases)
    widest = _widest(rounds)
    if widest > _LARGEST_LOSS or sum(count for *_, count in rounds) > MOST_ROUNDS:
        return 1.0
    grid = max(COARSE[0], widest / _POINTS, _span(rounds, neighbours, widest, composed_width) / _COMPOSED_POINTS)
    return float(_composed(grid, rounds, neighbours).get_delta_for_epsilon(epsilon))


def _rounds(phases: Sequence[Phase]) -> _Rounds:
    return tuple((p.event.sampler, p.event.rate, p.event.noise, p.rounds) for p in phases if p.event.noise)


@lru_cache(maxsize=2048)
def _epsilon(rounds: _Rounds, neighbours: Neighbours, delta: float, grids: tuple[float, ...]) -> float:
    widest = _widest(rounds)
    if widest > _LARGEST_LOSS:
        # Sampling only helps, so the bound without it is still one.
        distance = DISTANCES[neighbours]
        return gaussian_epsilon(math.sqrt(sum(count * noise.mu(distance) ** 2 for *_, noise, count in rounds)), delta)
    count = sum(count for *_, count in rounds)
    # The range of many rounds takes longer to find than to bound, and the bound mostly decides.
    span, most = None, _span(rounds, neighbours, widest, widest_composition)
    if count <= MANY_ROUNDS and most > grids[0] * _FEWER_POINTS:
        most = span = _span(rounds, neighbours, widest, composed_width)
    points = _COMPOSED_POINTS if count <= MANY_ROUNDS and most <= grids[0] * _FEWER_POINTS else _FEWER_POINTS
    # Rounding each round's loss to the grid adds a deviation of at most half its width.
    spread = 0.5 * math.sqrt(count)
    epsilon = math.inf
    for wanted in grids:
        grid = max(wanted, widest / _POINTS)
        if most / points > grid:
            most = span = _span(rounds, neighbours, widest, composed_width) if span is None else span
            grid = max(grid, span / points)
        before, epsilon = epsilon, min(epsilon, _epsilon_on(grid, rounds, neighbours, delta))
        if before - epsilon <= _CONVERGED * epsilon or 6.0 * spread * grid <= _CONVERGED * epsilon or grid > wanted:
            break
    return epsilon


def _widest(rounds: _Rounds) -> float:
    return max(largest_loss(sampling_of(sampler).neighbours, rate, noise) for sampler, rate, noise, _ in rounds)


def _span(rounds: _Rounds, neighbours: Neighbours, widest: float, width: _Width) -> float:
    """Range of the privacy losses of all rounds together, by a rough grid; a finer one has to fit into memory."""
    rough = max(GRIDS[0], widest / _ROUGH_POINTS)
    return sum(
        width(one_round(sampler, rate, noise, neighbours, rough), rough, count)
        for sampler, rate, noise, count in rounds
    )


def _epsilon_on(grid: float, rounds: _Rounds, neighbours: Neighbours, delta: float) -> float:
    from dpfedmeta.accounting.divergences.pld_in_arrays import epsilon_of

    together = _composed(grid, rounds, neighbours)
    lost = _ROUNDING * sum(count for *_, count in rounds)
    if lost > _LOST_SHARE * delta:
        # Two bounds: of the largest errors that the transform can make, and of those that it made.
        delta -= min(lost, rounding_error(together))
    return epsilon_of(together, delta) if delta > 0 else math.inf


def _composed(grid: float, rounds: _Rounds, neighbours: Neighbours) -> PrivacyLossDistribution:
    from dpfedmeta.accounting.divergences.pld_in_arrays import self_composed

    with np.errstate(over="ignore"):
        return reduce(
            lambda left, right: left.compose(right),
            (self_composed(one_round(s, rate, noise, neighbours, grid), count) for s, rate, noise, count in rounds),
        )


def forget() -> None:
    """Drop what was computed so far, for measurements."""
    _epsilon.cache_clear()
    one_round.cache_clear()
    divergences.cache_clear()
