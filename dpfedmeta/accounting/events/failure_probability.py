"""Rare events of a round that no data can cause: their probability is taken off delta."""

import math
import warnings
from collections.abc import Callable
from importlib import import_module

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random import binomial

# Part of delta that each rare event may take: more than M messages or too few of them, more than H hostile ones, more
# than R participations.
RARE_SHARE = 0.01
# A sum of whole numbers (fixed_point) holds so many messages.
MOST_MESSAGES = 2**27
# SciPy's quantiles go through all numbers up to so many, which takes long beyond.
MOST_TRIALS = 2_000_000


def exceeded(count: int, trials: int, rate: float) -> float:
    """P(Bin(trials, rate) > count), bounded from above in closed form, for any number of trials.

    Chernoff's bound exp(-n KL(k/n, q)) at k = count + 1. By Hoeffding (1963, theorems 1 and 4) it also holds for coins
    of different rates, at their mean, and for draws without replacement.
    """
    if count >= trials:
        return 0.0
    share = (count + 1) / trials
    if share <= rate:
        return 1.0
    # Written so that nothing is lost where the share is close to the rate; what rounding leaves is given up.
    rest = 0.0 if share >= 1 else (1.0 - share) * math.log1p((rate - share) / (1.0 - rate))
    exponent = trials * (share * math.log1p((share - rate) / rate) + rest)
    return min(1.0, math.exp(1e-3 - exponent * (1.0 - 1e-3)))


def most(trials: int, rate: float, allowed: float) -> int:
    """The smallest number that by `exceeded` is exceeded with probability at most `allowed`."""
    return upper_quantile(lambda count: exceeded(count, trials, rate), trials, allowed)


def upper_quantile(tail: Callable[[int], float], largest: int, allowed: float) -> int:
    """The smallest number k with tail(k) = P(X > k) at most `allowed`; SciPy's `isf` has none below 1.1e-16."""
    low, high = -1, largest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if tail(middle) <= allowed else (middle, high)
    return high


def largest_cohort(clients: int, rate: float, allowed: float) -> tuple[int, float]:
    """(M, P(Bin(N, q) >= M)) for the smallest M with a probability of at most `allowed`, under Poisson sampling."""
    size = upper_quantile(lambda count: fuller(count + 1, clients, rate), clients, allowed) + 1
    return size, fuller(size, clients, rate)


def least_capacity(clients: int, rounds: int, delta: float) -> int:
    """The fewest that a round may take where each client comes in one of `rounds`: fewer are full too often."""
    most, _ = largest_cohort(clients, 1.0 / rounds, RARE_SHARE * delta / rounds)
    return min(most, clients)


def fuller(size: int, clients: int, rate: float) -> float:
    """P(Bin(clients, rate) >= size): that there are as many, so one client more might be one too many."""
    if clients > MOST_TRIALS:
        return exceeded(size - 1, clients, rate)
    return 1.0 if size <= 0 else float(binomial.sf(min(size - 1, clients), clients, rate))


def smallest_cohort(clients: int, rate: float, allowed: float) -> tuple[int, float]:
    """(m, P) for the largest m with P <= `allowed`, under Poisson sampling; m = -1: there is none.

    P bounds two events: that a cohort has m clients or fewer, and that it has m without one client that may be in it
    besides. One client more then makes it larger than m; where nearly all clients are drawn, so that few stay away,
    this is the likelier one, and where all are it is certain for m = N - 1. A cohort of nobody (m = 0) is no such
    event: one client more moves its sum by its own message.
    """
    if clients > MOST_TRIALS:
        # As many stay away as by `most` and no more. That the others are m or fewer holds both events.
        absent = most(clients - 1, 1.0 - rate, allowed)
        return clients - absent - 2, exceeded(absent, clients - 1, 1.0 - rate)

    def rare(size: int) -> float:
        decided_by_one = float(binomial.pmf(size, clients - 1, rate)) if 0 < size < clients else 0.0
        return max(float(binomial.cdf(size, clients, rate)), decided_by_one)

    size = int(binomial.ppf(allowed, clients, rate)) if allowed > 0 else -1
    while size >= 0 and rare(size) > allowed:
        size -= 1
    return size, rare(size) if size >= 0 else 0.0


def most_hostile(clients: int, hostile: int, cohort: float, allowed: float, *, fixed: bool) -> tuple[int, float]:
    """(H, P(more than H of the hostile clients are in a cohort)) for the smallest such H.

    They do not choose when they are drawn: Bin(hostile, q), or hypergeometric where a cohort has a `fixed` size.
    """
    if not hostile:
        return 0, 0.0
    if clients > MOST_TRIALS:
        trials, rate = (int(cohort), hostile / clients) if fixed else (hostile, cohort / clients)
        number = most(trials, rate, allowed)
        return number, exceeded(number, trials, rate)
    law, form = binomial, [hostile, cohort / clients]
    if fixed:  # a second to import, and few plans need it
        law, form = import_module("scipy.stats").hypergeom, [clients, hostile, int(cohort)]
    number = upper_quantile(lambda count: law.sf(count, *form), hostile, allowed)
    return number, float(law.sf(number, *form))


def check_population(clients: int, cohort: float, delta: float | None, *, of: tuple[str, str] = ("", "")) -> None:
    """Refuse a cohort that the population or an exact sum cannot hold; warn of a delta that allows to expose a client.

    Args:
        clients: N.
        cohort: L.
        delta: Of the client cells; None where there is no client-level guarantee.
        of: What stands before the names of the cohort and of delta in messages.

    Raises:
        InputError: The cohort is too large.
    """
    name, delta_name = f"{of[0]}cohort", f"{of[1]}delta"
    if cohort > clients:
        raise InputError(f"{name} = {cohort:g} is more than {of[0]}clients = {clients}; use {name} = {clients} or less")
    if cohort > MOST_MESSAGES / 2:
        raise InputError(
            f"{name} = {cohort:g}: a sum holds {MOST_MESSAGES:,} messages; lower the expected cohort to at most half "
            "of that"
        )
    if delta is not None and delta >= 1 / clients:
        warnings.warn(
            f"{delta_name} = {delta!r} is not below 1/N = {1 / clients:g}: such a guarantee allows "
            f"{math.ceil(delta * clients):,} of the {clients:,} clients to be exposed entirely",
            stacklevel=2,
        )
