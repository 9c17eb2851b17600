"""Bounds on a probability from counts, by Clopper and Pearson (1934): never missed more often than stated."""

from __future__ import annotations

from scipy.stats import beta


def least_probability(successes: int, trials: int, miss: float) -> float:
    """A lower bound that is above the truth with probability `miss` at most."""
    return 0.0 if successes == 0 else float(beta.ppf(miss, successes, trials - successes + 1))


def most_probability(successes: int, trials: int, miss: float) -> float:
    """An upper bound that is below the truth with probability `miss` at most."""
    return 1.0 if successes == trials else float(beta.isf(miss, successes + 1, trials - successes))
