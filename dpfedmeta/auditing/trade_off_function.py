"""Trade-off curve of a promise, and the bounds on epsilon that the right guesses of the best attack give.

A program is run in one of two neighbouring worlds, by the toss of a coin, and the attack says which one it was. Of the
mechanism that is promised the best attack is known (Neyman, Pearson), and so is how often it can be right:
(1 + TV) / 2, TV the total variation of the two worlds. More right guesses than that refute the promise.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from scipy.special import betainccinv, betaincinv, ndtr

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon, gaussian_mu
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.accounting.release_costs import composed_delta, composed_epsilon
from dpfedmeta.core.random.random_sources import FloatArray

# Of the noise that is promised.
_LEAST_NOISE, _MOST_NOISE = 1.0 / 64.0, 64.0
# Thresholds of the bound that assumes no curve, in log-likelihood ratios; fixed beforehand.
_THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class TradeOff(Protocol):
    """The trade-off curve of a promise, and of the same mechanism with another noise."""

    def total_variation(self, noise: float) -> float:
        """Bound from above the total variation of the two worlds, where all noise is `noise` times what is promised."""
        ...

    def epsilon(self, noise: float) -> float:
        """At the delta of the promise, likewise."""
        ...


@dataclass(frozen=True, kw_only=True)
class GaussianCurve:
    """mu-GDP (Dong, Roth, Su 2019, https://arxiv.org/abs/1905.02383).

    Attributes:
        mu: As promised.
        delta: Of the cell.
    """

    mu: float
    delta: float

    def total_variation(self, noise: float) -> float:
        """2 Phi(mu / 2) - 1."""
        return 2.0 * float(ndtr(self.mu / (2.0 * noise))) - 1.0

    def epsilon(self, noise: float) -> float:
        """In closed form."""
        return gaussian_epsilon(self.mu / noise, self.delta)


def normal_curve(cell: Guarantee) -> GaussianCurve:
    """The normal trade-off curve with the promised epsilon."""
    return GaussianCurve(mu=gaussian_mu(cell.epsilon, cell.delta), delta=cell.delta)


@dataclass(frozen=True, kw_only=True)
class SampledCurve:
    """Rounds of a plan with Gaussian noise, whose curve is that of their own mixtures.

    Attributes:
        phases: The rounds.
        neighbours: What the worlds differ in.
        delta: Of the cell, less what the plan takes off it.
    """

    phases: tuple[Phase, ...]
    neighbours: Neighbours
    delta: float

    def total_variation(self, noise: float) -> float:
        """The hockey-stick divergence at epsilon = 0, which dp-accounting rounds up."""
        return composed_delta(self._with(noise), self.neighbours, 0.0)

    def epsilon(self, noise: float) -> float:
        """Return epsilon at `delta`, computed as for every promise."""
        return composed_epsilon(self._with(noise), self.neighbours, self.delta)

    def _with(self, noise: float) -> Sequence[Phase]:
        return [
            replace(phase, event=replace(phase.event, noise=_scaled(phase.event.noise, noise))) for phase in self.phases
        ]


def _scaled(noise: object, factor: float) -> GaussianNoise:
    if not isinstance(noise, GaussianNoise):
        raise TypeError(f"the trade-off curve of {noise} is not known for other amounts of noise")
    return GaussianNoise(multiplier=noise.multiplier * factor)


def epsilon_of_curve(right: int, runs: int, curve: TradeOff, miss: float) -> float:
    """A lower bound on epsilon from the right guesses of independent runs.

    Args:
        right: Runs in which the attack named the world.
        runs: All of them; each was in either world with probability 1/2.
        curve: Of the promise.
        miss: One less the confidence.

    Guarantee:
        Where the program is no less private than the promised curve, the bound is above the promised epsilon with
        probability `miss` at most, whatever the attack does. In between it reads "the same mechanism with less noise".
    """
    variation = 2.0 * least_probability(right, runs, miss) - 1.0
    if variation <= 0 or curve.total_variation(_MOST_NOISE) >= variation:
        return 0.0 if variation <= 0 else curve.epsilon(_MOST_NOISE)
    low, high = _LEAST_NOISE, _MOST_NOISE  # the variation is larger than this at `low`, or there is no more to say
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if curve.total_variation(middle) > variation else (low, middle)
    # At `high` the variation is what was seen, or less: no program with more noise does as well.
    return curve.epsilon(high)


@dataclass(frozen=True, kw_only=True)
class ThresholdTest:
    """A single test of the bound that assumes no curve.

    Attributes:
        value: Log-likelihood ratio from which the attack says which world it was.
        inside: Whether it says so of the first world; otherwise of the second, with the sign turned.
    """

    value: float
    inside: bool

    def epsilon(self, ratios_in: FloatArray, ratios_out: FloatArray, delta: float, miss: float) -> float:
        """Bound epsilon from below by log((p - delta) / p'), each probability at half of `miss`."""
        more, less = (ratios_in, ratios_out) if self.inside else (-ratios_out, -ratios_in)
        return _one_threshold(more, less, self.value, delta, miss / 2)


_GRID = tuple(ThresholdTest(value=value, inside=inside) for inside in (True, False) for value in _THRESHOLDS)


def best_threshold(ratios_in: FloatArray, ratios_out: FloatArray, delta: float, miss: float) -> ThresholdTest:
    """Choose the threshold of a fixed grid with the largest bound, to be used on another sample."""
    return max(_GRID, key=lambda each: each.epsilon(ratios_in, ratios_out, delta, miss / len(_GRID)))


def epsilon_of_counts(ratios_in: FloatArray, ratios_out: FloatArray, delta: float, miss: float) -> float:
    """A lower bound on epsilon that assumes no curve (Jagielski, Ullman, Oprea 2020, https://arxiv.org/abs/2006.07709).

    Args:
        ratios_in: Log-likelihood ratios of the runs in the one world.
        ratios_out: Of those in the other.
        delta: Of the cell.
        miss: One less the confidence.

    Guarantee:
        Above the epsilon of an (epsilon, delta)-DP program with probability `miss` at most: log((p - delta) / p') for
        each threshold of a fixed grid and either world, each probability by Clopper and Pearson.
    """
    if not len(ratios_in) or not len(ratios_out):
        return 0.0
    return max(each.epsilon(ratios_in, ratios_out, delta, miss / len(_GRID)) for each in _GRID)


def _one_threshold(more: FloatArray, less: FloatArray, threshold: float, delta: float, miss: float) -> float:
    least = least_probability(int(np.sum(more > threshold)), len(more), miss)
    return _log_ratio(least, most_probability(int(np.sum(less > threshold)), len(less), miss), delta)


def _log_ratio(least: float, most: float, delta: float) -> float:
    return max(math.log((least - delta) / most), 0.0) if least > delta else 0.0


def most_epsilon(runs: int, delta: float, miss: float) -> float:
    """Return what a `ThresholdTest` shows of so many runs of either world if it is always right."""
    return _log_ratio(least_probability(runs, runs, miss / 2), most_probability(0, runs, miss / 2), delta)


def least_probability(successes: int, trials: int, miss: float) -> float:
    """A lower bound that is above the truth with probability `miss` at most."""
    return 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, miss))


def most_probability(successes: int, trials: int, miss: float) -> float:
    """An upper bound that is below the truth with probability `miss` at most."""
    return 1.0 if successes == trials else float(betainccinv(successes + 1, trials - successes, miss))
