"""Binomial probabilities of scipy.stats.binom, without the half second that importing scipy.stats takes.

For X of Bin(trials, rate) and counts from 0 to the trials: pmf(k) is P(X = k), cdf(k) P(X <= k), sf(k) P(X > k);
ppf(q) is the least k with P(X <= k) >= q.
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Find what scipy.stats.binom calls; it has no public name, and where SciPy lacks it, scipy.stats is asked."""
    if name not in ("pmf", "cdf", "sf", "ppf"):
        raise AttributeError(name)
    direct = getattr(import_module("scipy.special._ufuncs"), f"_binom_{name}", None)
    return globals().setdefault(name, direct or getattr(import_module("scipy.stats").binom, name))
