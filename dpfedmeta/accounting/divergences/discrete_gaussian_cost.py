"""Extra privacy cost of discrete over Gaussian noise: a change of measure between the two, over all coordinates.

The proof is in docs/guarantees.md. In short: for whole numbers, adding N(0, sigma^2 - 1/12) and rounding is
post-processing of the Gaussian mechanism. The log-ratio of that noise (P) and of the discrete Gaussian (Q) depends on
no data, so its sum over all coordinates of all rounds is bounded once, by a, but for probabilities beta. Then whatever
is (epsilon, delta) with P is (epsilon + 2a, e^a delta + beta_Q + e^(epsilon + a) beta_P) with Q.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.integer_sum import SURE_OWN_VARIANCE
from dpfedmeta.core.random.random_sources import FloatArray

# A log-ratio is computed in float64 with 40 nodes; both errors together are below this (tests compare with mpmath).
_SLACK = 2e-14
# Above so many whole numbers the log-ratio follows from its series alone.
_MOST_TABULATED = 200_000
# Part of delta that the probabilities of the change of measure may take.
_SHARE = 1e-6


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """So many coordinates with noise of one law.

    Attributes:
        count: d times the rounds.
        variance: Of the noise, in squared units of the grid.
        blended: Largest log-ratio of a coordinate between the sum of the shares and one discrete Gaussian.
    """

    count: float
    variance: float
    blended: float


def released_coordinates(phases: Sequence[Phase]) -> list[Coordinates]:
    """Coordinates that the public sees: sums whose noise the server topped up."""
    found = []
    for phase in phases:
        whole, noise = phase.event.whole, phase.event.noise
        if whole is not None and noise is not None:
            # The multiplier is that of the Gaussian noise that was compared with.
            variance = (whole.of_a_client / noise.mu(1.0)) ** 2 + 1.0 / 12.0
            ratio = blended(whole.smallest_share, whole.most, SURE_OWN_VARIANCE)
            count = float(phase.rounds * whole.dimension)
            found.append(Coordinates(count=count, variance=variance, blended=ratio))
    return found


def summed_coordinates(phases: Sequence[Phase]) -> list[Coordinates]:
    """Coordinates that a server sees: sums with the noise of the clients alone."""
    found = []
    for phase in phases:
        if (whole := phase.event.whole) is not None:
            ratio = blended(whole.smallest_share, whole.most, 0.0)
            count = float(phase.rounds * whole.dimension)
            found.append(Coordinates(count=count, variance=whole.deviation**2, blended=ratio))
    return found


def blended(shares: float, clients: int, own: float) -> float:
    """Log-ratio between a sum of discrete Gaussians and one of the same variance, at most, whatever the value.

    Kairouz, Liu, Steinke 2021: two of variances u and v, each at least 1/4, blend within
    5 exp(-2 pi^2 / (1/u + 1/v)); one after the other.

    Args:
        shares: Variance of each client's.
        clients: How many at most.
        own: Variance of the server's, at least; 0: none.
    """
    if shares < 0.25:
        return math.inf
    before = np.arange(1, max(clients, 1), dtype=float)
    ratio = 5.0 * float(np.exp(-2.0 * math.pi**2 * shares * before / (before + 1.0)).sum())
    # What is there before the server's is at least one share.
    return ratio + (5.0 * math.exp(-2.0 * math.pi**2 / (1.0 / shares + 1.0 / own)) if own else 0.0)


def epsilon_of_discrete(
    epsilon_at: Callable[[float], float], delta: float, guess: float, coordinates: Sequence[Coordinates]
) -> float:
    """Epsilon at `delta` with discrete noise.

    Args:
        epsilon_at: The same with Gaussian noise of the variance less 1/12, at any delta.
        delta: What is promised.
        guess: About that epsilon, better above than below; it decides how much of delta the tails may take.
        coordinates: All that an observer sees, by their noise.
    """
    if not coordinates or not math.isfinite(guess):
        return epsilon_at(delta) if not coordinates else math.inf
    for room in (2.0, 20.0, 200.0):
        beta = _SHARE * delta * math.exp(-min(guess + room, 600.0)) / len(coordinates)
        a = sum(log_ratio(own, beta) for own in coordinates)
        if not math.isfinite(a):
            return math.inf
        tails = len(coordinates) * beta
        left = (delta - tails - _SHARE * delta) * math.exp(-a)
        epsilon = epsilon_at(left) if left > 0 else math.inf
        if not math.isfinite(epsilon):
            return math.inf
        if epsilon + a < 600.0 and math.exp(epsilon + a) * tails <= _SHARE * delta:
            return epsilon + 2.0 * a
    return math.inf


def delta_of_discrete(delta_at: Callable[[float], float], epsilon: float, coordinates: Sequence[Coordinates]) -> float:
    """Delta at `epsilon` with discrete noise, at most; `delta_at` is that with Gaussian noise, as above."""
    if not coordinates:
        return delta_at(epsilon)
    # Nothing beside any delta in use, with its factor e^(epsilon - a) too.
    tails = 1e-18 * math.exp(-min(epsilon, 600.0))
    a = sum(log_ratio(own, tails / len(coordinates)) for own in coordinates)
    if not 2.0 * a <= epsilon <= 600.0:
        return 1.0
    return min(1.0, math.exp(a) * delta_at(epsilon - 2.0 * a) + tails + math.exp(epsilon - a) * tails)


def log_ratio(coordinates: Coordinates, beta: float) -> float:
    """a: the log-ratio of all coordinates together exceeds it with probability `beta` at most, under either law.

    Half of beta is for coordinates far out, half for the sum of the others (Bernstein's inequality).
    """
    count, variance = coordinates.count, coordinates.variance
    if not (count > 0 and math.isfinite(coordinates.blended) and beta > count * 1e-300):  # below it reach overflows
        return 0.0 if count == 0 else math.inf
    # Both laws: P(|X| > r sigma) <= 2 exp(-r^2 / 2), and once more for the half that rounding moves.
    reach = math.sqrt(2.0 * math.log(4.0 * count / beta)) + 1.0 / math.sqrt(variance)
    largest, second = _moments(variance, reach)
    tail = 2.0 * math.exp(-((reach - 1.0 / math.sqrt(variance)) ** 2) / 2.0)
    mean = math.exp(largest) * second / 2.0 + tail
    rare = math.log(2.0 / beta)
    linear = 2.0 * largest * rare / 3.0
    spread = linear + math.sqrt(linear**2 + 2.0 * count * math.exp(largest) * second * rare)
    concentrated = count * (mean + _SLACK) + spread
    return min(concentrated, count * (largest + _SLACK)) + count * coordinates.blended


@lru_cache(maxsize=512)
def _moments(variance: float, reach: float) -> tuple[float, float]:
    """(largest |log-ratio| within `reach` deviations, its second moment under the discrete law)."""
    deviation = math.sqrt(variance)
    last = math.ceil(reach * deviation)
    if last > _MOST_TABULATED:
        largest = _of_the_series(variance, reach + 1.0 / deviation)
        return largest, largest**2
    values = np.arange(0, last + 1, dtype=float)
    ratios = np.abs(pointwise(values, variance))
    weights = np.exp(-(values**2) / (2.0 * variance))
    weights[1:] *= 2.0
    return float(ratios.max()), float(weights @ ratios**2 / weights.sum())


def pointwise(values: FloatArray, variance: float) -> FloatArray:
    """log(P/Q) at whole numbers: rounded N(0, variance - 1/12) against the discrete Gaussian of this variance.

    With v = variance - 1/12 and U uniform on [-1/2, 1/2] it is
    log(sigma / sqrt(v)) + log(theta) - x^2/(2v) * (1/12)/sigma^2 + log E exp(-x U / v - U^2 / (2v)),
    where theta = sum exp(-2 pi^2 sigma^2 k^2) normalises Q.
    """
    v = variance - 1.0 / 12.0
    nodes, weights = np.polynomial.legendre.leggauss(40)
    places, mass = nodes / 2.0, weights / 2.0
    tilted = np.expm1(-values[:, None] * places / v - places**2 / (2.0 * v)) @ mass
    theta = 2.0 * math.exp(-2.0 * math.pi**2 * variance)
    own: FloatArray = (
        0.5 * math.log1p(1.0 / (12.0 * v)) + math.log1p(theta) - values**2 / (24.0 * v * variance) + np.log1p(tilted)
    )
    return own


def _of_the_series(variance: float, reach: float) -> float:
    """A bound on |log(P/Q)| within `reach` deviations, from its series in 1/variance.

    The two first terms of log E exp(-W), W = x U/v + U^2/(2v), cancel or add up to the leading term; Cauchy's estimate
    on a circle on which |W| <= 0.6 bounds all others.
    """
    v = variance - 1.0 / 12.0
    slope, bend = reach * math.sqrt(variance) / v, 1.0 / (2.0 * v)
    # slope / 2 * root + bend / 4 * root^2 = 0.6
    root = 1.2 / (slope / 2.0 + math.sqrt(slope**2 / 4.0 + 0.6 * bend))
    radius = root**2
    if radius <= 2.0:
        return math.inf
    rest = 1.73 * radius**-3.0 / (1.0 - 1.0 / radius)
    second = slope**4 / 2880.0 + slope**2 * bend / 180.0 + bend**2 / 360.0
    left = 1.0 / (500.0 * v**2) + reach**2 / (280.0 * v**2)
    return float(second + left + rest)
