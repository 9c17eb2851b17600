"""Epsilon of one audited run as jax-privacy counts it, for the comparison in docs/auditing.md."""

from __future__ import annotations

import math

import numpy as np

from dpfedmeta.auditing.estimators.one_run import Guesses, epsilon_of, p_value
from dpfedmeta.core.random.random_sources import FloatArray


def hull_epsilon(inside: FloatArray, outside: FloatArray, delta: float, miss: float) -> tuple[float, int]:
    """(Epsilon, how many thresholds): the best threshold of those on the hull of the ROC, for comparison alone.

    It counts as jax-privacy does: guesses are that a canary was in, and `miss` is divided by the vertices of the hull.

    Guarantee:
        None: which thresholds are tried depends on the scores.
    """
    counts = _hull(inside, outside)
    best, each = 0.0, miss / len(counts)
    for taken, wrong in counts:
        guesses = Guesses(canaries=len(inside) + len(outside), made=taken + wrong, right=taken)
        # Only what beats the best so far is solved for, and a part of the sum tells of most that they do not.
        if guesses.made and p_value(guesses, best, 0.0) <= each and p_value(guesses, best, delta) <= each:
            best = max(best, epsilon_of(guesses, delta, each))
    return best, len(counts)


def _hull(inside: FloatArray, outside: FloatArray) -> list[tuple[int, int]]:
    """(In and guessed so, out and guessed to be in) at the vertices of the upper hull of the ROC."""
    thresholds = np.append(np.union1d(inside, outside), math.inf)
    taken = len(inside) - np.searchsorted(np.sort(inside), thresholds)
    wrong = len(outside) - np.searchsorted(np.sort(outside), thresholds)
    found: list[tuple[int, int]] = []
    for point in sorted(set(zip(taken.tolist(), wrong.tolist(), strict=True)), key=lambda each: (each[1], each[0])):
        while len(found) > 1 and _below(found[-2], found[-1], point):
            found.pop()
        found.append(point)
    return found


def _below(first: tuple[int, int], middle: tuple[int, int], last: tuple[int, int]) -> bool:
    """Return whether the middle point is on or below the line between the others."""
    rise, run = last[0] - first[0], last[1] - first[1]
    return (middle[0] - first[0]) * run <= rise * (middle[1] - first[1])
