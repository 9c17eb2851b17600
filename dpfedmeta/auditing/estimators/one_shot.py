"""An estimate from one run in which all canaries take part (Andrew et al. 2023, https://arxiv.org/abs/2302.03098)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from dpfedmeta.accounting.divergences.gdp import smallest_epsilon
from dpfedmeta.auditing.clopper_pearson import least_probability, most_probability
from dpfedmeta.core.random.random_sources import FloatArray

# From here on the cosine of a random direction is normal to within a part in a thousand.
LARGE = 1000
# False positives at which the share of canaries that is found is shown.
FALSE_POSITIVES = (0.01, 0.05, 0.25)


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """Estimate of epsilon from one run; no bound.

    Attributes:
        epsilon: Between two normal laws, with the mean and deviation of the canaries' cosines and of the null's.
        canaries: m.
        mean: Mean of their cosines, over the null's deviation.
        deviation: Deviation of their cosines, likewise.
        found: At each share of false positives: (share of canaries above the null's quantile, least, most) by Clopper
            and Pearson at 95%.
    """

    epsilon: float
    canaries: int
    mean: float
    deviation: float
    found: dict[float, tuple[float, float, float]]


def one_shot(cosines: FloatArray, dimension: int, delta: float) -> OneShot:
    """Estimate epsilon from the cosine of each canary's direction with what was released.

    Args:
        cosines: Cosines of directions that were drawn uniformly, independently of all else.
        dimension: d. The null, of a direction that nobody sent, is N(0, 1/d) for large d, and exact for a smaller one.
        delta: Delta of the cell.
    """
    spread = 1.0 / math.sqrt(dimension)
    count, mean, deviation = len(cosines), float(np.mean(cosines)) / spread, float(np.std(cosines, ddof=1)) / spread
    found = {}
    for share in FALSE_POSITIVES:
        above = int(np.sum(cosines > null_quantile(share, dimension)))
        found[share] = (above / count, least_probability(above, count, 0.025), most_probability(above, count, 0.025))
    epsilon = normal_epsilon(mean, max(deviation, 1e-6), delta)
    return OneShot(epsilon=epsilon, canaries=count, mean=mean, deviation=deviation, found=found)


def null_quantile(share: float, dimension: int) -> float:
    """The cosine that a random direction exceeds with probability `share`: (1 + cos) / 2 is Beta((d-1)/2, (d-1)/2)."""
    if dimension >= LARGE:
        return float(-ndtri(share)) / math.sqrt(dimension)
    return 2.0 * float(beta.isf(share, (dimension - 1) / 2.0, (dimension - 1) / 2.0)) - 1.0


def normal_epsilon(mean: float, deviation: float, delta: float) -> float:
    """Epsilon between N(mean, deviation^2) and N(0, 1), the worse direction."""

    def lost(epsilon: float) -> float:
        return max(_divergence(mean, deviation, epsilon), _divergence(-mean / deviation, 1.0 / deviation, epsilon))

    return smallest_epsilon(lost, delta)


def _divergence(mean: float, deviation: float, epsilon: float) -> float:
    """Hockey-stick divergence of N(mean, deviation^2) from N(0, 1): the integral of the larger part, on a grid."""
    reach = 12.0 * max(deviation, 1.0) + abs(mean)
    places = np.linspace(-reach, reach, 20_001)
    one = np.exp(-0.5 * ((places - mean) / deviation) ** 2) / deviation
    other = np.exp(np.minimum(epsilon - 0.5 * places**2, 700.0))
    surplus = np.maximum(one - other, 0.0) / math.sqrt(2.0 * math.pi)
    return float(np.trapezoid(surplus, places))
