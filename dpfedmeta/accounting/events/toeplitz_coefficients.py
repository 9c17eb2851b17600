"""Correlated noise in numbers: coefficients, what one client moves them by, and the error that is left.

The release of round t is x_t + (C^-1 Z)_t with independent Z, and C lower triangular with the coefficients c_0 = 1,
c_1, ... along its diagonals (Toeplitz; Kairouz et al. 2021, https://arxiv.org/abs/2103.00039; Denisov et al. 2022,
https://arxiv.org/abs/2202.08312). Everything is in units of the clip bound and of one deviation of Z.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray


@dataclass(frozen=True, kw_only=True)
class Blt:
    """Buffered linear Toeplitz: c_k = sum of w_i theta_i^(k-1) (McMahan, Xu, Zhang 2024, https://arxiv.org/abs/2408.08868).

    Attributes:
        decays: theta_i, each above 0 and below 1.
        weights: w_i, each above 0; their sum, c_1, is at most 1.

    Raises:
        RefusedPlan: Other numbers: coefficients would grow, or change their sign.
    """

    decays: tuple[float, ...]
    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        fits = len(self.decays) == len(self.weights) > 0 and all(0 < theta < 1 for theta in self.decays)
        if not (fits and all(w > 0 for w in self.weights) and math.fsum(self.weights) <= 1):
            raise RefusedPlan(
                f"blt: decays {list(self.decays)} and weights {list(self.weights)}: expected as many decays as "
                "weights, decays above 0 and below 1, and weights above 0 that sum to at most 1"
            )

    def coefficients(self, rounds: int) -> FloatArray:
        """The first `rounds` coefficients."""
        powers = np.asarray(self.decays)[:, None] ** np.arange(max(rounds - 1, 0))
        return np.concatenate([[1.0], np.asarray(self.weights) @ powers])[:rounds]


def optimal_toeplitz(rounds: int) -> FloatArray:
    """c_k = c_(k-1) (2k-1)/(2k): the least largest error of prefix sums, for one participation.

    Fichtenberger, Henzinger, Upadhyay 2023 (https://arxiv.org/abs/2202.11205).
    """
    steps = np.arange(1, rounds, dtype=float)
    return np.concatenate([[1.0], np.cumprod((2.0 * steps - 1.0) / (2.0 * steps))])[:rounds]


def check_coefficients(coefficients: FloatArray) -> None:
    """Refuse coefficients for which the sensitivity is not known exactly.

    Raises:
        RefusedPlan: The first is not 1, or one is negative, larger than the one before it, or no number.
    """
    c = np.asarray(coefficients)
    if not len(c) or c[0] != 1.0:
        raise RefusedPlan("correlated noise: its first coefficient is not 1")
    grown = ~(np.diff(c) <= 0)
    if grown.any() or not c[-1] >= 0:
        worst = int(np.argmax(grown)) + 1 if grown.any() else len(c) - 1
        raise RefusedPlan(
            f"correlated noise: coefficient {worst} is {c[worst]:.6g} after {c[worst - 1]:.6g}; the "
            "sensitivity to a client that takes part several times is only known for coefficients that do not increase "
            "and are not negative"
        )


def most_participations(rounds: int, separation: int, most: int | None = None) -> int:
    """k: rounds that a client can join of `rounds`, any two at least `separation` apart, and at most `most` of them."""
    room = -(-rounds // max(separation, 1))
    return room if most is None else min(room, most)


def sensitivity(coefficients: FloatArray, participations: int = 1, separation: int = 1) -> float:
    """Largest L2 length of C x, over one client's contributions x of length 1 at most.

    Args:
        coefficients: c_0, c_1, ..., as many as there are rounds; they do not increase and are not negative.
        participations: Rounds that the client joins, at most.
        separation: b: any two of them are at least so many rounds apart.

    Guarantee:
        Exact: || sum_(j<k) c shifted by j b || (Kalinin, Lampert 2024, https://arxiv.org/abs/2405.13763, theorem 2).
        With no negative coefficient the contributions that point the same way are worst, and with none that increases
        the earliest rounds, as close together as allowed.

    Raises:
        RefusedPlan: Coefficients that increase or are negative.
    """
    c = np.asarray(coefficients, dtype=float)
    check_coefficients(c)
    return float(np.linalg.norm(joined(c, most_participations(len(c), separation, participations), separation)))


def largest_row(coefficients: FloatArray, participations: int = 1, separation: int = 1) -> float:
    """Largest value of one round's (C x)_t: what a release can move by that a further attempt at it made useless."""
    c = np.asarray(coefficients, dtype=float)
    check_coefficients(c)
    return float(c[:: max(separation, 1)][: most_participations(len(c), separation, participations)].sum())


def joined(c: FloatArray, count: int, separation: int) -> FloatArray:
    """Sum of the columns of C for `count` participations, each `separation` rounds after the one before."""
    total = np.zeros_like(c)
    for j in range(count):
        total[j * separation :] += c[: len(c) - j * separation]
    return total


def inverse(coefficients: FloatArray) -> FloatArray:
    """The first column of C^-1: the noise of round t is sum_k inverse_k Z_(t-k)."""
    from scipy.signal import lfilter

    c = np.asarray(coefficients, dtype=float)
    impulse = np.zeros(len(c))
    impulse[:1] = 1.0
    found: FloatArray = lfilter([1.0], c, impulse)
    return found


def noise_deviations(coefficients: FloatArray) -> FloatArray:
    """Deviation of the noise of each round alone, over that of Z."""
    return np.sqrt(np.cumsum(inverse(coefficients) ** 2))


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Root mean square errors per coordinate, for Z of deviation 1 and clip bounds of 1.

    Attributes:
        last: After the last round.
        largest: After the worst one.
        mean: The root of the mean of the squares over all rounds.
    """

    last: float
    largest: float
    mean: float


def prefix_errors(coefficients: FloatArray) -> Errors:
    """Errors of the sums of the first t releases."""
    return _errors(_prefix_squares(inverse(coefficients)))


def sums_over_independent(coefficients: FloatArray) -> FloatArray:
    """Deviation of the noise of the sum of the first t releases, over that of independent noise of their deviations."""
    own = inverse(coefficients)
    return np.sqrt(_prefix_squares(own) / np.cumsum(np.cumsum(own**2)))


def _prefix_squares(own: FloatArray) -> FloatArray:
    """Variance of the sums of the first t releases, from the first column of C^-1."""
    return np.cumsum(np.cumsum(own) ** 2)


def _errors(squared: FloatArray) -> Errors:
    return Errors(
        last=math.sqrt(squared[-1]), largest=math.sqrt(squared.max()), mean=math.sqrt(math.fsum(squared) / len(squared))
    )
