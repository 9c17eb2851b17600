"""Gaussian differential privacy in closed form.

Dong, Roth, Su 2019 (https://arxiv.org/abs/1905.02383), Corollary 2.13.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpfedmeta.core.random.random_sources import FloatArray

_LARGEST_EPSILON = 1e7
_SMALLEST_DELTA = 1e-300


def gaussian_delta(epsilon: FloatArray | float, mu: FloatArray | float) -> FloatArray:
    """Delta of mu-GDP at epsilon: Phi(-e/mu + mu/2) - e^e Phi(-e/mu - mu/2); 0 where mu is 0.

    The second term is formed in logarithms, so that e^epsilon does not overflow.
    """
    scale = np.asarray(mu, dtype=np.float64)
    safe = np.where(scale > 0, scale, 1.0)
    first = ndtr(-epsilon / safe + safe / 2)
    second = np.exp(epsilon + log_ndtr(-epsilon / safe - safe / 2))
    return np.where(scale > 0, np.maximum(first - second, 0.0), 0.0)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon of mu-GDP at delta, from above; inf where delta or mu leaves none."""
    if mu == 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    return smallest_epsilon(lambda epsilon: _delta(epsilon, mu), delta)


def _delta(epsilon: float, mu: float) -> float:
    """`gaussian_delta` of two numbers: the same bits, without the arrays that take most of its time."""
    first = ndtr(-epsilon / mu + mu / 2)
    second = np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2))
    return max(float(first - second), 0.0)


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Largest mu, from below, with delta_mu(epsilon) <= delta: the inverse of gaussian_epsilon."""
    low, high = 0.0, 1.0
    while _delta(epsilon, high) <= delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if _delta(epsilon, middle) <= delta else (low, middle)
    return low


def smallest_epsilon(delta_at: Callable[[float], float], delta: float) -> float:
    """Invert a decreasing delta(epsilon); the result satisfies delta_at(result) <= delta.

    Returns inf where delta <= 0 or no epsilon up to 10^7 is enough.
    """
    if delta <= 0:
        return math.inf
    if delta_at(0.0) <= delta:
        return 0.0
    high = 1.0
    while delta_at(high) > delta:
        high *= 2
        if high > _LARGEST_EPSILON:
            return math.inf
    low = 0.0
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if delta_at(middle) <= delta else (middle, high)
        if high - low <= 1e-12 * high:
            break
    return high


def epsilon_below(delta_at: Callable[[float], float], known: float, delta: float, within: float) -> float:
    """Invert a decreasing delta(epsilon) that is costly, in few evaluations, starting below a known bound.

    Args:
        delta_at: At most `delta` at the result, unless that is `known`.
        known: An upper bound by other means; the result is never larger.
        delta: To be reached.
        within: How far above the smallest epsilon the result may be, relative to itself.
    """

    def excess(epsilon: float) -> float:
        return math.log(max(delta_at(epsilon), _SMALLEST_DELTA) / delta)

    if not 0 < known < math.inf or (below := excess(known)) > 0:
        return known
    # Delta is 1 at most; what it is at 0 is asked only where epsilon may be 0.
    low, high, above, asked = 0.0, known, -math.log(delta), False
    slope, share = (above - below) / high, 0.2
    while high - low > within * high and -below > 0.5 * slope * within * high:
        # A little above where a line through both ends crosses delta, since only what is above may be the result.
        middle = high + below / slope + share * within * high
        middle = min(max(middle, low + 0.02 * (high - low)), high - 0.02 * (high - low))
        value = excess(middle)
        if value <= 0:
            high, below = middle, value
        else:
            low, above = middle, value
        if low == 0 and high < 0.5 * known and not asked:
            above, asked = excess(0.0), True
            if above <= 0:
                return 0.0
        slope = (above - below) / (high - low)
    return high
