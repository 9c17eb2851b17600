"""Correlated noise that is fitted to a plan: the coefficients that leave the least error for what a client moves."""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Literal

import numpy as np

from dpfedmeta.accounting.events.toeplitz_coefficients import (
    Blt,
    inverse,
    joined,
    most_participations,
    optimal_toeplitz,
)
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray

Objective = Literal["largest", "mean"]
"""Which squared error of the prefix sums a fit makes small: that of the last round, the largest, or the mean."""

# Digits of a fitted number: it is stated in a ledger, and what is stated is what is used.
_DIGITS = 8
# A fit moves logarithms no further than this, so that decays and weights round to numbers that are still allowed.
_FAR = 12.0
_PATIENCE = {"maxiter": 500, "maxfun": 1000, "ftol": 1e-13, "gtol": 1e-8}
_MOST_BUFFERS = 5


@lru_cache(maxsize=256)
def fit_blt(
    rounds: int, buffers: int, participations: int = 1, separation: int = 1, objective: Objective = "largest"
) -> Blt:
    """The buffers that make the squared error of prefix sums times the squared sensitivity least.

    In float64, from several starts, with exact gradients; cached. Its numbers are rounded to 8 digits.

    Args:
        rounds: T.
        buffers: How many; each is a vector as long as the message in the mechanism's state.
        participations: R.
        separation: b.
        objective: Which error.

    Raises:
        RefusedPlan: No such number of buffers.
    """
    if not 1 <= buffers <= _MOST_BUFFERS:
        raise RefusedPlan(
            f"server.buffers = {buffers}: server.noise = blt takes 1 to {_MOST_BUFFERS}; more gain nothing"
        )
    lags = np.arange(max(rounds - 1, 0), dtype=float)

    def coefficients(free: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        theta, shares = _sigmoid(free[:buffers]), np.exp(free[buffers:])
        # Their sum stays below 1.
        weights = shares / (1.0 + shares.sum())
        powers = theta[:, None] ** lags
        return np.concatenate([[1.0], weights @ powers]), theta, weights, powers

    def value(free: FloatArray) -> tuple[float, FloatArray]:
        c, theta, weights, powers = coefficients(free)
        found, slope = _objective(c, participations, separation, objective)
        tail = slope[1:]
        of_weights = powers @ tail
        of_theta = weights * ((lags * powers) @ tail) / theta
        softmax = weights * (of_weights - weights @ of_weights)
        return found, np.concatenate([of_theta * theta * (1.0 - theta), softmax])

    best = min((_descend(value, start) for start in _starts(buffers, rounds)), key=lambda found: found[0])[1]
    _, theta, weights, _ = coefficients(best)
    order = np.argsort(-theta)
    return Blt(
        decays=tuple(round(float(number), _DIGITS) for number in theta[order]),
        weights=tuple(float(number) for number in _down(weights[order])),
    )


@lru_cache(maxsize=64)
def fit_banded(
    rounds: int, bands: int, participations: int = 1, separation: int = 1, objective: Objective = "largest"
) -> tuple[float, ...]:
    """c_0 to c_(bands-1), not increasing, for the same objective; all later ones are 0.

    It begins at the banded square root (Kalinin, Lampert 2024). `bands` = `rounds` fits all coefficients.

    Raises:
        RefusedPlan: No such number of bands.
    """
    if not 1 <= bands <= rounds:
        raise RefusedPlan(
            f"server.noise = banded with {bands} bands (server.buffers + 1) over {rounds} rounds: expected 1 to "
            f"{rounds} bands"
        )
    if bands == 1:
        return (1.0,)

    def coefficients(free: FloatArray) -> tuple[FloatArray, FloatArray]:
        ratios = _sigmoid(free)
        c = np.zeros(rounds)
        c[:bands] = np.concatenate([[1.0], np.cumprod(ratios)])
        return c, ratios

    def value(free: FloatArray) -> tuple[float, FloatArray]:
        c, ratios = coefficients(free)
        found, slope = _objective(c, participations, separation, objective)
        # Each ratio scales its own coefficient and all later ones.
        later = np.cumsum((slope[:bands] * c[:bands])[::-1])[::-1][1:]
        return found, later * (1.0 - ratios)

    square_root = optimal_toeplitz(bands)
    ratios = square_root[1:] / square_root[:-1]
    c, _ = coefficients(_descend(value, np.log(ratios / (1.0 - ratios)))[1])
    return (1.0, *(float(number) for number in _down(c[1:bands])))


def _objective(c: FloatArray, participations: int, separation: int, objective: Objective) -> tuple[float, FloatArray]:
    """(log of squared error times squared sensitivity, its gradient by coefficient)."""
    from scipy.signal import fftconvolve

    rounds = len(c)
    count = most_participations(rounds, separation, participations)
    moved = joined(c, count, separation)
    squared = float(moved @ moved)
    of_sensitivity = np.zeros(rounds)
    for j in range(count):
        of_sensitivity[: rounds - j * separation] += moved[j * separation :]
    weights = np.ones(rounds) if objective == "largest" else np.arange(rounds, 0, -1) / rounds
    inverted = inverse(c)
    sums = np.cumsum(inverted)
    error = float(weights @ sums**2)
    # d sums_t / d c_k = -(sums * inverse)_(t-k)
    response = fftconvolve(sums, inverted)[:rounds]
    of_error = -fftconvolve((weights * sums), response[::-1])[rounds - 1 :]
    return math.log(error) + math.log(squared), 2.0 * (of_error / error + of_sensitivity / squared)


def _descend(value: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray) -> tuple[float, FloatArray]:
    # A mechanism needs the coefficients alone, and no optimiser.
    from scipy.optimize import minimize

    bounds = [(-_FAR, _FAR)] * len(start)
    found = minimize(value, start, jac=True, method="L-BFGS-B", bounds=bounds, options=_PATIENCE)
    return float(found.fun), found.x


def _starts(buffers: int, rounds: int) -> list[FloatArray]:
    """Decay times spread evenly in the logarithm from one round to all, narrowly and widely."""
    starts = []
    for widest in (0.3, 1.0, 3.0):
        times = np.geomspace(1.5, max(widest * rounds, 3.0), buffers)
        theta = np.exp(-1.0 / times)
        weights = 0.5 / np.sqrt(times)
        starts.append(np.concatenate([np.log(theta / (1.0 - theta)), np.log(weights)]))
    return starts


def _sigmoid(free: FloatArray) -> FloatArray:
    return 1.0 / (1.0 + np.exp(-free))


def _down(numbers: FloatArray) -> FloatArray:
    """Rounded down, so that sums and orders stay what they are."""
    return np.floor(np.asarray(numbers) * 10.0**_DIGITS) / 10.0**_DIGITS
