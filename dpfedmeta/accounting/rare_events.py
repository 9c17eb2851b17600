"""Rare events of a round that no data can cause: their probability is taken off delta."""

from __future__ import annotations

from scipy.stats import binom, hypergeom

# Part of delta that each rare event may take: more than M messages or too few of them, more than H hostile ones, more
# than R participations.
RARE_SHARE = 0.01
# A sum of whole numbers (privacy.whole_numbers) holds so many messages.
MOST_MESSAGES = 2**27


def largest_cohort(clients: int, rate: float, allowed: float) -> tuple[int, float]:
    """(M, P(Bin(N, q) >= M)) for the smallest M with a probability of at most `allowed`, under Poisson sampling."""
    size = int(binom.isf(allowed, clients, rate))
    while float(binom.sf(size - 1, clients, rate)) > allowed:
        size += 1
    return max(size, 1), float(binom.sf(max(size, 1) - 1, clients, rate))


def smallest_cohort(clients: int, rate: float, allowed: float) -> tuple[int, float]:
    """(m, P(Bin(N, q) <= m)) for the largest m with a probability of at most `allowed`, under Poisson sampling.

    A cohort of m that one client more would make larger than m is such an event too. m = -1: there is none.
    """
    size = int(binom.ppf(allowed, clients, rate))
    while size >= 0 and float(binom.cdf(size, clients, rate)) > allowed:
        size -= 1
    return size, float(binom.cdf(size, clients, rate)) if size >= 0 else 0.0


def most_hostile(clients: int, hostile: int, cohort: float, allowed: float, *, fixed: bool) -> tuple[int, float]:
    """(H, P(more than H of the hostile clients are in a cohort)) for the smallest such H.

    Hostile clients do not choose when they are drawn: Bin(hostile, q), or hypergeometric where a cohort has a `fixed`
    size.
    """
    if not hostile:
        return 0, 0.0
    drawn = hypergeom(clients, hostile, int(cohort)) if fixed else binom(hostile, cohort / clients)
    most = int(drawn.isf(allowed))
    while float(drawn.sf(most)) > allowed:
        most += 1
    return most, float(drawn.sf(most))
