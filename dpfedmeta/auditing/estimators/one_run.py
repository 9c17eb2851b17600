"""A bound from one run with many canaries, each in it with probability 1/2.

Steinke, Nasr, Jagielski 2023 (https://arxiv.org/abs/2305.08846), and for a Gaussian trade-off curve Mahloujifar, Melis,
Chaudhuri 2024 (https://arxiv.org/abs/2410.22235).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, ndtr, ndtri
from scipy.stats import beta, binom

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon, smallest_epsilon
from dpfedmeta.auditing.audit_request import FEWEST_GUESSES
from dpfedmeta.auditing.trade_off_function import least_probability, most_probability
from dpfedmeta.core.random.random_sources import FloatArray

# Of all canaries so many parts are guessed to be in it, and as many to be out of it.
SHARES = tuple(2.0**-power for power in range(1, 10))
# From here on the cosine of a random direction is normal to within a part in a thousand.
LARGE = 1000
# False positives at which the share of canaries that is found is shown.
FALSE_POSITIVES = (0.01, 0.05, 0.25)
_MOST_EPSILON, _MOST_MU = 500.0, 60.0


@dataclass(frozen=True, kw_only=True)
class Guesses:
    """Guesses of an attack about the canaries, and how many were right.

    Attributes:
        canaries: m, those that were in the run with probability 1/2 each, by coins that no other thing depends on.
        made: r, how many of them were guessed; fixed beforehand.
        right: v, how many guesses were right.
    """

    canaries: int
    made: int
    right: int


def p_value(guesses: Guesses, epsilon: float, delta: float) -> float:
    """Bound from above the probability of so many right guesses of a program that is (epsilon, delta)-DP.

    P[X >= v] + 2 m delta max over i of (P[X >= v - i] - P[X >= v]) / i, X ~ Bin(r, e^eps / (1 + e^eps)).
    """
    v, r, rate = guesses.right, guesses.made, float(expit(epsilon))
    tail = float(binom.sf(v - 1, r, rate))
    if delta == 0 or v == 0:
        return min(tail, 1.0)
    steps = np.arange(1, v + 1)
    gain = float(np.max((binom.sf(v - steps - 1, r, rate) - tail) / steps))
    return min(1.0, tail + 2.0 * guesses.canaries * delta * max(gain, 0.0))


def epsilon_of(guesses: Guesses, delta: float, miss: float) -> float:
    """The largest epsilon that these guesses reject.

    Guarantee:
        A program that is (epsilon, delta)-DP for one canary added or removed gets more than its epsilon with
        probability `miss` at most, whatever the scores are: its guesses were fixed in number beforehand.
    """
    return _largest(lambda epsilon: p_value(guesses, epsilon, delta) <= miss, _MOST_EPSILON)


def gaussian_rejected(guesses: Guesses, mu: float, miss: float) -> bool:
    """Return whether so many right guesses are too many for a mu-GDP program: the recursion of arXiv 2410.22235."""
    right, wrong = miss * guesses.right / guesses.canaries, miss * (guesses.made - guesses.right) / guesses.canaries
    for left in range(guesses.right - 1, -1, -1):
        larger = max(wrong, float(ndtr(ndtri(right) - mu)))
        if larger == wrong:
            break
        right = min(right + left / (guesses.made - left) * (larger - wrong), 1.0)
        wrong = larger
    return right + wrong > guesses.made / guesses.canaries


def gaussian_epsilon_of(guesses: Guesses, delta: float, miss: float) -> float:
    """Epsilon at `delta` of the largest mu that is rejected.

    Guarantee:
        A program that is mu-GDP gets more than its epsilon with probability `miss` at most. It is no bound for a
        program with another trade-off curve.
    """
    if guesses.right == 0:
        return 0.0
    mu = _largest(lambda mu: gaussian_rejected(guesses, mu, miss), _MOST_MU)
    return gaussian_epsilon(mu, delta) if mu > 0 else 0.0


def _largest(rejected: Callable[[float], bool], most: float) -> float:
    """By bisection, from below."""
    if not rejected(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejected(high):
        low, high = high, 2.0 * high
        if low >= most:
            return low
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


def guesses_of(inside: FloatArray, outside: FloatArray, shares: Sequence[float] = SHARES) -> Iterator[Guesses]:
    """For each share: the most certain are guessed to be in, the least certain to be out; the rest is left open.

    Args:
        inside: Scores of canaries that were in the run; a larger score says so.
        outside: Of those that were not.
        shares: Of all canaries, in each direction; fixed beforehand.
    """
    scores = np.concatenate([inside, outside])
    was_in = np.concatenate([np.ones(len(inside), bool), np.zeros(len(outside), bool)])
    was_in = was_in[np.argsort(scores, kind="stable")]
    for share in shares:
        count = int(share * len(scores))
        if 2 * count >= FEWEST_GUESSES:
            right = int(was_in[len(scores) - count :].sum() + (~was_in[:count]).sum())
            yield Guesses(canaries=len(scores), made=2 * count, right=right)


def one_run_epsilon(
    inside: FloatArray, outside: FloatArray, delta: float, miss: float, *, gaussian: bool = False
) -> float:
    """A lower bound on epsilon from the scores of one run; the best of a grid, each point at its share of `miss`.

    Args:
        inside: Scores of canaries that were in the run.
        outside: Of those that were not.
        delta: Of the cell.
        miss: One less the confidence.
        gaussian: Whether the trade-off curve is taken to be Gaussian.

    Guarantee:
        As of `epsilon_of`, or of `gaussian_epsilon_of`: how many guesses are made is fixed before the scores are seen,
        and each number of them is tested at `miss` over how many numbers there are.
    """
    found = list(guesses_of(inside, outside))
    bound = gaussian_epsilon_of if gaussian else epsilon_of
    return max((bound(guesses, delta, miss / len(found)) for guesses in found), default=0.0)


def best_one_run_epsilon(canaries: int, delta: float, miss: float) -> float:
    """Return the largest bound that `one_run_epsilon` gives whatever the scores are: every guess is right."""
    inside = canaries // 2
    return one_run_epsilon(np.ones(inside), np.zeros(canaries - inside), delta, miss)


def best_share(inside: FloatArray, outside: FloatArray, delta: float, miss: float, *, gaussian: bool = False) -> float:
    """Choose the share of canaries to guess with the largest bound, to be used on other runs."""
    bound = gaussian_epsilon_of if gaussian else epsilon_of
    kept = [share for share in SHARES if 2 * int(share * (len(inside) + len(outside))) >= FEWEST_GUESSES]
    found = zip(kept, guesses_of(inside, outside, kept), strict=True)
    return max(found, key=lambda each: bound(each[1], delta, miss / len(kept)))[0]


def pooled(guesses: Sequence[Guesses]) -> Guesses:
    """Add up the guesses of independent runs: a canary of one is no part of another, so they are one larger run."""
    return Guesses(
        canaries=sum(each.canaries for each in guesses),
        made=sum(each.made for each in guesses),
        right=sum(each.right for each in guesses),
    )


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
