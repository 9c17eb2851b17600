"""Distributions of means of independent factors on few points, of which every convex function is bounded from above."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from dpfedmeta.core.random.random_sources import FloatArray

# Pairs of points that are joined at once.
_AT_ONCE = 8192


@dataclass(frozen=True, kw_only=True, eq=False)
class Spread:
    """A distribution above that of a mean of factors in the convex order, on few points.

    Divergences are expectations of convex functions of the mean. Mass that lies between two points of a grid is
    split between them so that its mean stays: a convex function only grows by that, so every step errs upwards. Mass
    below the lowest point goes to that point, which errs upwards where the function also grows with the mean.

    Attributes:
        points: Where there is mass, ascending.
        mass: Under Q, of each point.
        lost: Mass under Q that is followed no more.
        mean_lost: Its part of the mean of what is positive: mass under P that is followed no more.
    """

    points: FloatArray
    mass: FloatArray
    lost: float
    mean_lost: float


def between(ends: FloatArray) -> FloatArray:
    """Normal probability between neighbours, from the side on which nothing cancels."""
    below, above = ndtr(ends), ndtr(-ends)
    found: FloatArray = np.where(ends[1:] <= 0, np.diff(below), -np.diff(above))
    return found


def joined(left: Spread, right: Spread, share: float, grid: FloatArray) -> Spread:
    """The mean of all factors from those of two parts, of which the left one holds `share` of the factors."""
    mass, lost, mean_lost = np.zeros(len(grid)), 0.0, 0.0
    width, rows = np.diff(grid), max(1, _AT_ONCE // len(right.points))
    for start in range(0, len(left.points), rows):
        place, density = _pairs(left, right, share, start, start + rows)
        beyond = place >= grid[-1]
        if beyond.any():
            lost += float(density[beyond].sum())
            mean_lost += float(density[beyond] @ place[beyond])
            place, density = place[~beyond], density[~beyond]
        cell = np.maximum(np.searchsorted(grid, place, side="right") - 1, 0)
        upper = np.maximum((place - grid[cell]) / width[cell], 0.0) * density
        mass += np.bincount(cell, density - upper, len(grid)) + np.bincount(cell + 1, upper, len(grid))
    # Where one part is lost, the mean of the other one is 1.
    mean_lost += share * left.mean_lost + (1 - share) * right.mean_lost + share * right.lost + (1 - share) * left.lost
    return Spread(points=grid, mass=mass, lost=lost + left.lost + right.lost, mean_lost=mean_lost)


def _pairs(left: Spread, right: Spread, share: float, start: int, end: int) -> tuple[FloatArray, FloatArray]:
    """Means, and their masses, of some points of the left part with those of the right one."""
    twins = left is right
    # Two parts that are alike: each pair once, and twice its mass.
    first = start if twins else 0
    place = np.add.outer(share * left.points[start:end], (1.0 - share) * right.points[first:])
    density = np.multiply.outer(left.mass[start:end], right.mass[first:])
    if twins:
        density *= 2.0
        inside = density[:, : len(density)]
        inside *= _once(len(density))
    there = density > 0
    return place[there], density[there]


@lru_cache(maxsize=4)
def _once(points: int) -> FloatArray:
    """Weight of each pair of so many points: above the diagonal 1, on it a half, below it nothing."""
    found: FloatArray = np.triu(np.ones((points, points))) - 0.5 * np.eye(points)
    return found
