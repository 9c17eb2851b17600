"""Random allocation: each client takes part in one of t rounds, which it drew for itself and told nobody.

A client that is added moves the sum of one round, of t that are equally likely, by C at most. Beside noise of z C the
worst that anybody sees of it is

    P = 1/t sum_j N(e_j, z^2 I)   against   Q = N(0, z^2 I)   in t dimensions

whose likelihood ratio is the mean of t independent log-normal factors l_j = exp((y_j - 1/2) / z^2), with mean 1 under
Q. So one distribution on a line gives both orders of the two populations exactly:

    removed: H_a(P || Q) = E (L - a)+        added: H_a(Q || P) = E (1 - a L)+,      L = (l_1 + ... + l_t) / t.

The scheme is that of Balle et al. 2020 (https://arxiv.org/abs/2007.06605); that of Feldman, Shenfeld 2025
(https://arxiv.org/abs/2502.08202) bounds it in closed form (`closed_bounds`), which is the second opinion here.

Guarantee:
    *Adaptive rounds.* What a round does may depend on all releases before it: its bound C_j, the model, and which
    message x_j, of norm at most C_j, the client would send. Given y_1, ..., y_t of the pair above, whoever plays the
    server can make the releases one after the other: round j adds to the sum of the others, which the client does not
    touch, y_j along x_j / C_j times |x_j| / C_j, and fresh Gaussian noise for what is missing of z^2 I: under either
    population that is the release of round j, given those before. So the releases are post-processing of the pair, and
    no hockey-stick divergence of theirs is larger. Noise that is not Gaussian has no such proof here and is refused.
    *Some of the rounds.* After r of t rounds the client came with probability r/t: L is (1 - r/t) + r/t L_r.
    *Copies of a run.* A client comes once in each of c copies. Were it in the same slot of all, each slot would hold c
    releases, of 1/z each: a mean of t factors of noise z / sqrt(c). Slots that differ from copy to copy, and slots that
    copies share or never reach, are no worse: the ratio is then the mean over matchings of the slots of such means,
    and a convex function of a mean of alike variables is at most that of one of them.
    *Again.* A round that is done again has nobody in it (check_ins_sampler).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr

from dpfedmeta.accounting.divergences.convex_bounds import Spread, between, joined
from dpfedmeta.accounting.divergences.gdp import epsilon_below, gaussian_delta, gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.replaced_allocation import (
    LARGEST_EPSILON,
    NEGLIGIBLE,
    NEXT_TO_NEVER,
    delta_of_opposites,
)
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.events import Phase

# Points of a grid: of a promise, and of a search. Fewer are looser, never wrong (see `convex_bounds.Spread`).
FINE, QUICK = 1200, 300
# Deviations out to which a factor is followed; what lies beyond counts as a certain failure.
_OUT = 9.5
# Minus the logarithm of how much mass the lower end of a grid may leave below it.
_RARE = 46.0
# With less noise factors leave the range of floats; with more nothing is left to amplify. Then the bound of a client
# that shows its slot stands.
_LEAST_NOISE, _MOST_NOISE = 0.05, 1e4
# Sums of positive numbers are wrong by their rounding alone.
_ROUNDED = 1.0 + 1e-9
# How far above its smallest value an epsilon may stop, relative to itself.
_WITHIN = 1e-5
# Shares of delta that the first half of a replacement may take.
_SHARES = (0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98)


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """Privacy accounting for a client that takes part in one of t rounds (random allocation).

    Attributes:
        noise: z towards the observer.
        slots: t, rounds among which each client chose one.
        done: r, rounds that were released, at most t.
    """

    noise: float
    slots: int
    done: int

    @classmethod
    def of(cls, phases: Sequence[Phase]) -> Allocation:
        """Build the allocation from rounds of one plan, in any number of copies of the run.

        Further attempts at a round have no clients and count nothing.

        Raises:
            RefusedPlan: They are not rounds of one allocation with Gaussian noise, or there are more than slots.
        """
        event = phases[0].event
        if event.slots is None or any(phase.event != event for phase in phases):
            raise RefusedPlan(
                "client-chosen rounds (check-ins) cannot be added up with rounds of another plan: no joint guarantee "
                "is known"
            )
        if not isinstance(event.noise, GaussianNoise):
            raise RefusedPlan(
                "client-chosen rounds (check-ins) are only supported with independent Gaussian noise; use "
                "--server.noise independent"
            )
        rounds: Counter[int] = Counter()
        for phase in phases:
            rounds[phase.copy] += 0 if phase.again else phase.rounds
        done = max(rounds.values())
        if done > event.slots:
            raise RefusedPlan(
                f"client-chosen rounds (check-ins): {done} rounds are charged, but clients chose among {event.slots}; "
                "rounds of several runs cannot be added up"
            )
        copies = len(rounds)
        return cls(
            noise=event.noise.multiplier / math.sqrt(copies),
            slots=event.slots,
            done=event.slots if copies > 1 else max(done, 1),
        )

    @property
    def share(self) -> float:
        """Probability r/t that the client has taken part so far."""
        return self.done / self.slots

    def removed(self, epsilon: float, points: int = FINE) -> float:
        """H of (the population with the client, the one without it) at epsilon, from above."""
        mean = _mean(self.noise, self.done, points)
        ratio = (1.0 - self.share) + self.share * mean.points
        beyond = np.maximum(ratio - _exponential(epsilon), 0.0)
        return float(mean.mass @ beyond) * _ROUNDED + mean.mean_lost + mean.lost

    def added(self, epsilon: float, points: int = FINE) -> float:
        """H of (the population without the client, the one with it) at epsilon, from above."""
        mean = _mean(self.noise, self.done, points)
        ratio = (1.0 - self.share) + self.share * mean.points
        with np.errstate(over="ignore"):
            beyond = np.maximum(1.0 - _exponential(epsilon) * ratio, 0.0)
        return float(mean.mass @ beyond) * _ROUNDED + mean.lost

    def delta(self, epsilon: float, points: int = FINE) -> float:
        """For a client that is added or removed: the larger of both, at epsilon, from above."""
        shown = self.share * float(gaussian_delta(epsilon, 1.0 / self.noise))
        if not self.is_followed:
            return shown
        return min(shown, max(self.removed(epsilon, points), self.added(epsilon, points)))

    def epsilon(self, delta: float, points: int = FINE) -> float:
        """For a client that is added or removed: the larger of both."""
        return max(self.epsilon_removed(delta, points), self.epsilon_added(delta, points))

    def epsilon_removed(self, delta: float, points: int = FINE) -> float:
        """Epsilon at `delta` for a client that is removed, from above."""
        shown = known_round_epsilon(1.0 / self.noise, self.share, delta)
        return min(shown, smallest_epsilon(lambda e: self.removed(e, points), delta)) if self.is_followed else shown

    def epsilon_added(self, delta: float, points: int = FINE) -> float:
        """Epsilon at `delta` for a client that is added, from above."""
        shown = known_round_epsilon(1.0 / self.noise, self.share, delta)
        return min(shown, smallest_epsilon(lambda e: self.added(e, points), delta)) if self.is_followed else shown

    def delta_replaced(self, epsilon: float, points: int = FINE) -> float:
        """For a client whose message is another one, at epsilon, from above."""
        shown = self.share * float(gaussian_delta(epsilon, 2.0 / self.noise))
        if not self.is_followed or epsilon > LARGEST_EPSILON:
            return shown
        return min(shown, self.of_opposites(points, NEXT_TO_NEVER)(epsilon))

    def epsilon_replaced(self, delta: float, points: int = FINE) -> float:
        """For a client whose message is another one, in its slot or in one that it draws anew."""
        return _replaced(self, delta, points)

    def of_opposites(self, points: int, rare: float) -> Callable[[float], float]:
        """Delta at each epsilon for a client whose messages become their opposites, exactly but for the grid."""
        return partial(delta_of_opposites, noise=self.noise, done=self.done, share=self.share, points=points, rare=rare)

    def epsilon_by_absence(self, delta: float, points: int = FINE) -> float:
        """`epsilon_replaced` in a looser way: the client is removed, and then added with the other message.

        Guarantee:
            P(A) <= e^a Q(A) + d and Q(A) <= e^b P'(A) + d' give P(A) <= e^(a + b) P'(A) + d + e^a d'.
        """
        found = known_round_epsilon(2.0 / self.noise, self.share, delta)
        for share in _SHARES:
            first = self.epsilon_removed(share * delta, points)
            if first < found:
                left = (1.0 - share) * delta * math.exp(-first)
                found = min(found, first + self.epsilon_added(left, points))
        return found

    @property
    def is_followed(self) -> bool:
        """Tell whether noise is in the range of floats, and anything is left to amplify."""
        return _LEAST_NOISE <= self.noise <= _MOST_NOISE


@lru_cache(maxsize=256)
def _replaced(came: Allocation, delta: float, points: int) -> float:
    """Tables ask for it twice: of a record that is taken away, and of one that is replaced."""
    bound = came.epsilon_by_absence(delta, min(QUICK, points))
    if not came.is_followed or bound > LARGEST_EPSILON:
        return came.epsilon_by_absence(delta, points)
    # A few points first, since they say where to look with many.
    for count in sorted({min(QUICK, points), points}):
        bound = epsilon_below(came.of_opposites(count, NEGLIGIBLE * delta), bound, delta, _WITHIN)
    return bound


def _exponential(epsilon: float) -> float:
    """e^epsilon, or less of it where that is no float: divergences only grow by it."""
    return math.exp(min(epsilon, LARGEST_EPSILON))


def known_round_epsilon(mu: float, share: float, delta: float) -> float:
    """Epsilon towards an observer who even knows the client's slot: it has come with probability `share`, mu-GDP."""
    if not math.isfinite(mu):
        return math.inf
    return smallest_epsilon(lambda epsilon: share * float(gaussian_delta(epsilon, mu)), delta)


def closed_bounds(noise: float, slots: int, delta: float) -> tuple[float, float]:
    """(removed, added) in the closed form of Feldman, Shenfeld 2025, after all slots: looser, and of other people.

    Removed: by a client that comes by a coin of 1/t in each round, given that it comes at all (their theorem 4.1):
    ln(1 + (e^(epsilon_Poisson(lambda delta)) - 1) / lambda), lambda = 1 - (1 - 1/t)^t, the epsilon by dp-accounting.
    Added: a mean is at least the geometric one, so ln L >= sum_j (y_j - 1/2) / (t z^2): the loss of Gaussian noise of
    z sqrt(t), and (1 - 1/t) / (2 z^2) more.
    """
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.pld import PLDAccountant

    came = -math.expm1(slots * math.log1p(-1.0 / slots)) if slots > 1 else 1.0
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(1.0 / slots, GaussianDpEvent(noise)), slots)
    of_coins = float(accountant.get_epsilon(came * delta))
    without = gaussian_epsilon(1.0 / (noise * math.sqrt(slots)), delta) + (1.0 - 1.0 / slots) / (2.0 * noise**2)
    return math.log1p(math.expm1(of_coins) / came), without


@lru_cache(maxsize=256)
def _mean(noise: float, count: int, points: int) -> Spread:
    """Distribution of the mean of `count` factors; halves are cached and shared between counts."""
    if count == 1:
        return _factor(noise, points)
    half = 1 << (count.bit_length() - 1)
    if half == count:
        one = _mean(noise, count // 2, points)
        return joined(one, one, 0.5, _grid(noise, count, points))
    left, right = _mean(noise, half, points), _mean(noise, count - half, points)
    return joined(left, right, half / count, _grid(noise, count, points))


def _width(noise: float, count: int) -> float:
    """About the deviation of the logarithm of the mean."""
    scale = 1.0 / noise
    return min(math.sqrt(math.expm1(min(scale**2, 700.0)) / count), scale)


def _grid(noise: float, count: int, points: int) -> FloatArray:
    """0, and points dense around 1, from where next to no mass is below to where next to no mean is above."""
    scale, width = 1.0 / noise, _width(noise, count)
    # The mean of non-negative variables: P(L <= 1 - x) <= exp(-count x^2 / (2 E l^2)).
    under = 1.0 - math.sqrt(2.0 * _RARE * math.exp(min(scale**2, 700.0)) / count)
    low = max(under, math.exp(-_OUT * scale - scale**2 / 2))
    # One factor far out, or all of them by a normal deviation.
    far = (math.exp(_OUT * scale + scale**2 / 2) + count - 1) / count
    high = far * (1.0 + _OUT * math.sqrt(math.expm1(min(scale**2, 1.0)) / count))
    first, last = (math.asinh(math.log(end) / width) for end in (low, high))
    return np.append(0.0, np.exp(width * np.sinh(np.linspace(first, last, points))))


def _factor(noise: float, points: int) -> Spread:
    scale, grid = 1.0 / noise, _grid(noise, 1, points)
    with np.errstate(divide="ignore"):
        place = np.log(grid) / scale
    under_q, under_p = place + scale / 2, place - scale / 2
    mass, mean = between(under_q), between(under_p)
    upper = np.clip((mean - mass * grid[:-1]) / np.diff(grid), 0.0, mass)
    return Spread(
        points=grid,
        mass=np.append(mass - upper, 0.0) + np.append(0.0, upper),
        lost=float(ndtr(-under_q[-1])),
        mean_lost=float(ndtr(-under_p[-1])),
    )
