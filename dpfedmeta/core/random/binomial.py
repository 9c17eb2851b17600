"""Binomial probabilities of scipy.stats.binom, without the half second that importing scipy.stats takes.

scipy.stats.binom calls functions of scipy.special, which have no public name. Where a version of SciPy lacks
them, scipy.stats.binom itself is called. For trials and rates above 0, and counts from 0 to the trials; `ppf` takes
any trials and rate.
"""

from collections.abc import Callable
from typing import Any

from scipy.special import _ufuncs

_Function = Callable[[Any, int, float], Any]


def _found(name: str) -> _Function:
    direct: _Function | None = getattr(_ufuncs, f"_binom_{name}", None)
    if direct is not None:
        return direct
    from scipy.stats import binom

    found: _Function = getattr(binom, name)
    return found


# P(X = k), P(X <= k), P(X > k), the least k with P(X > k) <= q, and the least k with P(X <= k) >= q.
pmf, cdf, sf, isf, ppf = map(_found, ("pmf", "cdf", "sf", "isf", "ppf"))


def at_most(number: int, trials: int, rate: float) -> float:
    """P(X <= number), for any number."""
    return float(number >= trials) if not 0 <= number < trials else float(cdf(number, trials, rate))


def more_than(number: int, trials: int, rate: float) -> float:
    """P(X > number), for any number."""
    return float(number < 0) if not 0 <= number < trials else float(sf(number, trials, rate))
