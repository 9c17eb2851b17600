"""Random allocation of a client whose messages are replaced: how far two populations can be told apart, exactly.

Both populations hold the client, which draws its slot without a look at its data, so by the same law. In one it sends
messages x_j, in the other x'_j, all of norm at most C_j. The worst are opposite messages of full length:

    P = 1/t sum_j N(e_j, z^2 I)   against   Q = 1/t sum_j N(-e_j, z^2 I)   in t dimensions.

With l_j = exp((y_j - 1/2) / z^2) and l'_j = exp((-y_j - 1/2) / z^2), y from N(0, z^2 I), and a = e^epsilon

    H_a(P || Q) = H_a(Q || P) = E (X_1 + ... + X_t)+ / t,      X_j = l_j - a l'_j:

for each epsilon one distribution on a line, the mean of independent factors, computed as `allocation` does.

Guarantee:
    *No other messages are worse, also where they follow earlier releases.* Let S be the set of rounds in which the
    client takes part, of any law that is the same in both populations (one slot of t; also r of t released rounds, or
    several copies of a run). Over releases of noise alone the likelihood of all releases is
    L = sum_S P(S) prod_(j in S) l_j with x, and L' likewise with x': each grows with each of its factors, and is linear
    in it. The divergence is E (L - a L')+. Replace one round after the other, the last one first, by opposite messages
    of full length. What is inside is then, given all earlier releases and the noise of the later rounds,
    b l_j - b' l'_j - c with b, b' >= 0 and a real c, so it is enough that no messages make

        E (b l - b' l' - c)+ = max over A of  b N_x(A) - b' N_x'(A) - c N_0(A)

    larger than opposite ones do. For c >= 0 let p = N_x(A). By Neyman and Pearson N_x'(A) >= Phi(Phi^-1(p) - 2/z) and
    N_0(A) >= Phi(Phi^-1(p) - 1/z), since |x - x'| <= 2 and |x| <= 1 in units of C_j; both are equalities for opposite
    messages and a half-line A. For c < 0 take the complement B of A: what is left to maximise is
    b' N_x'(B) - b N_x(B) - |c| N_0(B), the same with both populations exchanged. So adaptive messages, of whatever
    direction and length, are never above the pair, and clients that send opposite messages are exactly at it.
    *Poisson sampling and cohorts of any other law that does not depend on data* follow by the same lines; that pair of
    one round is in `pld_round`.
    *Copies of a run.* See `allocation`: the mean over matchings of the slots is there of variables L - a L' that are
    alike, so slots that are the same in all copies, z / sqrt(c), are the worst of these.

The general theory of random allocation is that of Feldman, Shenfeld 2025 and 2026 (https://arxiv.org/abs/2502.08202,
https://arxiv.org/abs/2602.17284), for a client that is added or removed.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri

from dpfedmeta.accounting.divergences.convex_bounds import Spread, between, joined
from dpfedmeta.core.random.random_sources import FloatArray

# e to this times the largest factor that is followed is a float.
LARGEST_EPSILON = 600.0
# How likely a factor beyond the grid is, under the population that makes it likely: in parts of delta, and for itself.
NEGLIGIBLE, NEXT_TO_NEVER = 1e-4, 1e-21
# Points of a grid beyond which delta shrinks by no more than half a percent.
_MOST_POINTS = 700
# Share of a grid's points that are dense around 0; the others are dense around the mean.
_AROUND_ZERO = 0.4
# A mean of all factors that one part makes lower than this, in units of -a, hardly becomes positive again: such parts
# lie on the lowest point.
_HOPELESS = 5.0
# Deviations within which L' is usually found.
_USUAL = 4.0
# Numbers are moved up by this share of themselves after each step, and masses may be wrong by it: more than rounding.
_RAISED, _MASS = 1e-13, 1e-12


def delta_of_opposites(epsilon: float, *, noise: float, done: int, share: float, points: int, rare: float) -> float:
    """H at epsilon of both messages of a client, in either order, from above.

    Args:
        epsilon: At most LARGEST_EPSILON.
        noise: z.
        done: Rounds that were released.
        share: How likely the client was in one of them.
        points: Of a grid; fewer are looser, never wrong.
        rare: How likely what lies beyond the grid may be; counted as a certain failure.
    """
    larger, out = math.exp(epsilon), -float(ndtri(rare))
    # Where the client has not come yet, both populations look alike.
    apart = (1.0 - share) * (1.0 - larger)
    zero = -apart / share
    grid = _Grid(noise=noise, done=done, larger=larger, out=out, zero=zero, points=min(points, _MOST_POINTS))
    mean = _mean(done, grid, {})
    positive = float(mean.mass @ np.maximum(share * mean.points + apart, 0.0))
    return positive * math.exp(_MASS * (1000 + done)) + share * mean.mean_lost


@dataclass(frozen=True, kw_only=True)
class _Grid:
    """Grid on which the mean of some of the factors is followed.

    Attributes:
        noise: z.
        done: All factors.
        larger: a.
        out: Deviations out to which a factor is followed.
        zero: The mean of all factors that counts as zero.
        points: How many.
    """

    noise: float
    done: int
    larger: float
    out: float
    zero: float
    points: int

    def of(self, count: int) -> FloatArray:
        """For the mean of `count` factors: dense around 0 and around the expected mean, 1 - a."""
        scale, larger, expected = 1.0 / self.noise, self.larger, 1.0 - self.larger
        varied = math.expm1(min(scale**2, 700.0))
        # One factor far out, or all of them by a normal deviation.
        far = (math.exp(self.out * scale + scale**2 / 2) + count - 1) / count
        high = far * (1.0 + self.out * math.sqrt(math.expm1(min(scale**2, 1.0)) / count))
        low = -larger * min(high, _HOPELESS * self.done / count)
        usual = max(1.0 - _USUAL * math.sqrt((varied + 1.0) / self.done), math.exp(-_USUAL * scale - scale**2 / 2))
        width = min(math.sqrt(varied / count) * math.hypot(1.0, larger), larger + 1.0)
        around_zero = round(_AROUND_ZERO * self.points)
        return np.unique(
            np.concatenate(
                [
                    [0.0, self.zero],
                    _dense(0.0, larger * usual, low, high, around_zero),
                    _dense(expected, width, low, high, self.points - around_zero),
                ]
            )
        )

    def factor(self) -> Spread:
        """Distribution of one factor, l - a l', which grows with the outcome y."""
        scale, grid = 1.0 / self.noise, self.of(1)
        # l - a l' = 2 sqrt(a) exp(-1/(2 z^2)) sinh(y/z^2 - ln(a)/2).
        inner = grid * math.exp(scale**2 / 2) / (2.0 * math.sqrt(self.larger))
        none = self.noise * (math.log(self.larger) / 2 + np.arcsinh(inner))
        one, other = none - scale, none + scale
        mass, of_one, of_other = between(none), between(one), self.larger * between(other)
        start, width = grid[:-1], np.diff(grid)
        upper = of_one - of_other - mass * start + _MASS * (of_one + of_other + mass * np.abs(start))
        upper = np.clip(upper / width, 0.0, mass)
        weights = np.append(mass - upper, 0.0) + np.append(0.0, upper)
        weights[0] += ndtr(none[0])
        return Spread(points=grid, mass=weights, lost=float(ndtr(-none[-1])), mean_lost=float(ndtr(-one[-1])))


def _dense(middle: float, width: float, low: float, high: float, points: int) -> FloatArray:
    """Points from low to high: even within a width of the middle, by equal ratios further out."""
    first, last = (math.asinh((end - middle) / width) for end in (low, high))
    ends: FloatArray = middle + width * np.sinh(np.linspace(first, last, points))
    return ends


def _mean(count: int, grid: _Grid, known: dict[int, Spread]) -> Spread:
    """Distribution of the mean of `count` factors; halves are cached and shared between counts."""
    if count not in known:
        half = 1 << (count - 1).bit_length() >> 1
        if count == 1:
            found = grid.factor()
        else:
            left, right = (_mean(each, grid, known) for each in (half, count - half))
            found = joined(left, right, half / count, grid.of(count))
        known[count] = replace(found, points=found.points + _RAISED * np.abs(found.points))
    return known[count]
