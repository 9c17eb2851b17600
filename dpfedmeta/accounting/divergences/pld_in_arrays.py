"""Privacy loss distributions of dp-accounting, computed in arrays: its numbers bit for bit, in a fraction of its time.

dp-accounting goes through tens of thousands of losses one by one, in Python. Calibration asks for hundreds of
distributions, so what takes most of its time is done here; each function names the one whose numbers it gives.
"""

import math

import numpy as np
from dp_accounting.pld.pld_pmf import DensePLDPmf, PLDPmf, SparsePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from scipy import fft
from scipy.special import log_ndtr, ndtr, ndtri

from dpfedmeta.core.random.random_sources import FloatArray

# What dp-accounting keeps as a list of single losses: no more rounds than these, and no more losses after them.
_SPARSE_ROUNDS, _SPARSE_LOSSES = 1000, 1000
# By how much a delta may rise with epsilon from rounding.
_RISE = 1e-12
# Probability that may be cut off the ends of a composition; it counts as certain failure.
_CUT = 1e-15
# Probability of outcomes beyond which all counts as the largest loss (dp-accounting's e^-50, half at either end).
_OUTSIDE = 0.5 * math.exp(-50.0)
# Orders of the Chernoff bounds that say where, over the number of losses.
_CHERNOFF_ORDERS = 20
# Losses that are added up at once.
_BLOCK = 4096
# e to this is still a float; losses below minus this one are never reached.
_LARGEST_EXPONENT = 700.0


def rounded_up(grid: float, low: int, high: int, deltas: FloatArray) -> PLDPmf:
    """The distribution whose hockey-stick divergences are these at the points of a grid, and nowhere smaller.

    As `create_pmf_pessimistic_connect_dots_fixed_gap` (Doroshenko et al. 2022, https://arxiv.org/abs/2207.04380).

    Args:
        grid: Distance between the points.
        low: First point, in units of the grid.
        high: Last point.
        deltas: Divergences at the points; they fall.

    Raises:
        ValueError: They do not.
    """
    if len(deltas) <= _SPARSE_LOSSES or (np.diff(deltas) > _RISE).any():
        return create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, deltas)
    deltas = np.minimum.accumulate(deltas)
    steps, width = np.diff(deltas), math.expm1(grid)
    probabilities = np.zeros_like(deltas)
    probabilities[0] = 1 - deltas[0] + steps[0] / width
    probabilities[1:-1] = (steps[1:] - steps[:-1] * math.exp(grid)) / width
    probabilities[-1] = steps[-1] / math.expm1(-grid)
    return DensePLDPmf(grid, low, np.maximum(0.0, probabilities), deltas[-1], True)


def replaced_gaussian(rate: float, multiplier: float, grid: float) -> PrivacyLossDistribution:
    """(1-q)N(0)+qN(C) against (1-q)N(0)+qN(-C), rounded up to a grid: `from_gaussian_mechanism` with REPLACE_ONE."""
    # dp-accounting moves the two populations apart itself: z is std/C here as everywhere (docs/guarantees.md).
    furthest = -float(ndtri(_OUTSIDE)) * multiplier
    # Seldom outcomes have the largest losses.
    most, least = _loss_at(-furthest - 1.0, rate, multiplier), _loss_at(furthest, rate, multiplier)
    low, high = math.floor(least / grid), math.ceil(most / grid)
    epsilons = np.arange(low, high + 1, dtype=np.float64) * grid
    outcomes = _outcomes_at(epsilons, rate, multiplier)
    here, before, behind = outcomes / multiplier, (outcomes + 1.0) / multiplier, (outcomes - 1.0) / multiplier
    if rate == 1.0:
        upper, log_lower = ndtr(before), log_ndtr(behind)
    else:
        upper = (1 - rate) * ndtr(here) + rate * ndtr(before)
        log_lower = np.logaddexp(np.log1p(-rate) + log_ndtr(here), np.log(rate) + log_ndtr(behind))
    deltas = upper - np.exp(epsilons + log_lower)
    return PrivacyLossDistribution(rounded_up(grid, low, high, np.clip(deltas, 0.0, 1.0)))


def _loss_at(outcome: float, rate: float, multiplier: float) -> float:
    """log((1-q) + q e^((-1/2-x)/z^2)) - log((1-q) + q e^((-1/2+x)/z^2))."""
    gains = np.array([-0.5 - outcome, -0.5 + outcome]) / multiplier**2
    if rate < 1.0:
        gains = np.logaddexp(math.log1p(-rate), math.log(rate) + gains)
    return float(gains[0] - gains[1])


def _outcomes_at(losses: FloatArray, rate: float, multiplier: float) -> FloatArray:
    """Largest outcomes at which the loss is at least so much.

    z^2 (asinh(-sinh(loss / 2) exp(1 / (2 z^2)) (1-q) / q) - loss / 2), in logarithms so that nothing overflows.
    """
    halves = np.abs(losses) / 2
    inner = np.zeros(halves.shape)
    if rate < 1.0:
        log_odds = 0.5 * (1.0 / multiplier) ** 2 + math.log1p(-rate) - math.log(rate)
        # By Python's functions, since those of arrays have other last bits. At a loss of 0 nothing is multiplied.
        logs = [half + math.log1p(-math.exp(-2 * half)) - math.log(2) if half else 0.0 for half in halves.tolist()]
        whole = log_odds + np.array(logs)
        inner = np.logaddexp(0.5 * np.logaddexp(0.0, 2 * whole), whole)
    found: FloatArray = -np.sign(losses) * multiplier**2 * (inner + halves)
    return found


def self_composed(one: PrivacyLossDistribution, rounds: int) -> PrivacyLossDistribution:
    """Compose so many equal rounds: `self_compose`.

    That one takes minutes, too, to find that a short distribution gets long by a million rounds.
    """
    remove = _self_convolved(one._pmf_remove, rounds)
    return PrivacyLossDistribution(remove, None if one._symmetric else _self_convolved(one._pmf_add, rounds))


def _self_convolved(given: PLDPmf, rounds: int) -> PLDPmf:
    if isinstance(given, SparsePLDPmf) and rounds <= _SPARSE_ROUNDS and given.size**rounds <= _SPARSE_LOSSES:
        return given.self_compose(rounds)
    one = given.to_dense_pmf()
    probabilities = np.asarray(one._probs, dtype=np.float64)
    first, last = kept(probabilities, rounds)
    length = fft.next_fast_len(max(last - first + 1, len(probabilities)))
    together = np.real(fft.ifft(fft.fft(probabilities, length) ** rounds))
    # The transform wraps around.
    together = np.roll(together, -first)[: last - first + 1]
    failure = _CUT - math.expm1(rounds * math.log1p(-one._infinity_mass))
    smallest = one._lower_loss * rounds + first
    return DensePLDPmf(one._discretization, smallest, together, failure, one._pessimistic_estimate)


def kept(probabilities: FloatArray, rounds: int) -> tuple[int, int]:
    """First and last place of a composition outside of which lies at most _CUT: `compute_self_convolve_bounds`.

    Chernoff bounds of a few orders. None is above 20 over the length, so no exponential overflows, and each is a power
    of the first.
    """
    size = len(probabilities)
    first, last = 0, (size - 1) * rounds
    if not probabilities.any():
        return first, last
    growth, room = np.exp(np.arange(size) / size), math.log(2.0 / _CUT)
    rising, falling = np.ones(size), np.ones(size)
    for step in range(1, _CHERNOFF_ORDERS + 1):
        rising, falling, order = rising * growth, falling / growth, step / size
        last = min(last, math.ceil((rounds * math.log(probabilities @ rising) + room) / order))
        first = max(first, math.floor((rounds * math.log(probabilities @ falling) + room) / -order))
    return first, last


def epsilon_of(distribution: PrivacyLossDistribution, delta: float) -> float:
    """The smallest epsilon at delta, and inf where there is none: `get_epsilon_for_delta`."""
    removed = _epsilon_of(distribution._pmf_remove, delta)
    return removed if distribution._symmetric else max(removed, _epsilon_of(distribution._pmf_add, delta))


def _epsilon_of(given: PLDPmf, delta: float) -> float:
    """From the largest loss down, until epsilon lies above all losses that are left."""
    if not isinstance(given, DensePLDPmf):
        return float(given.get_epsilon_for_delta(delta))
    if given._infinity_mass > delta:
        return math.inf
    # Of what is above: its probability in both populations.
    upper, lower = float(given._infinity_mass), 0.0
    next_loss = (given._lower_loss + given.size - 1) * given._discretization
    falling = np.flip(np.asarray(given._probs, dtype=np.float64))
    for start in range(0, given.size, _BLOCK):
        here = falling[start : start + _BLOCK]
        # Losses one from another, and exponentials by Python's function: the last bits are those of a loop.
        losses = _added(next_loss, np.full(len(here), -given._discretization))
        other = here * [math.exp(gain) for gain in np.minimum(-losses[:-1], _LARGEST_EXPONENT).tolist()]
        uppers, lowers = _added(upper, here), _added(lower, other)
        with np.errstate(all="ignore"):
            reached = np.log((uppers - delta) / lowers)[:-1] >= losses[:-1]
        ends = (uppers[:-1] > delta) & (lowers[:-1] > 0) & reached
        # A loss so large that e to minus it is 0.
        huge = (uppers[1:] >= delta) & (lowers[1:] == 0)
        stops = np.flatnonzero(ends | huge)
        place = int(stops[0]) if len(stops) else len(here)
        if place < len(here) and not ends[place]:
            return max(0.0, float(losses[place]))
        upper, lower, next_loss = float(uppers[place]), float(lowers[place]), float(losses[place])
        if place < len(here):
            break
    return 0.0 if upper <= lower + delta else math.log((upper - delta) / lower)


def _added(first: float, others: FloatArray) -> FloatArray:
    """Sums of a number and the first of others, one after the other."""
    sums: FloatArray = np.add.accumulate(np.concatenate(([first], others)))
    return sums
