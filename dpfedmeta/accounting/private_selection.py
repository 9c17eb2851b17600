"""The price of choosing: the guarantee of the best of a random number of runs.

Papernot, Steinke 2022, Hyperparameter tuning with Renyi differential privacy (https://arxiv.org/abs/2110.03620).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import islice

import numpy as np

from dpfedmeta.accounting.divergences.gdp import smallest_epsilon
from dpfedmeta.accounting.divergences.rdp import ORDERS, moments_of
from dpfedmeta.accounting.events.events import Phase, have_whole_numbers, neighbours_of, surplus
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import cost_of, released
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray

# Sums of the law are of this many digits, and K is drawn from this many bits. What is drawn then differs from the law
# with less than this probability, which counts as a cap would: beside e to any epsilon in use it is nothing.
_DIGITS, DRAWN_BITS, _NEVER = 80, 192, 1e-45
_MOST_MEAN, _MOST_RUNS = 1000.0, 10**6
# e to this is still a float.
_LARGEST_EXPONENT = 600.0


@dataclass(frozen=True, kw_only=True)
class RunCount:
    """Law of the number K >= 1 of runs: the truncated negative binomial D(eta, gamma), section 3 of the paper.

    Attributes:
        mean: E[K].
        eta: Shape: 0 is the logarithmic law, 1 the geometric one. The smaller, the cheaper, and the more often K is 1.
        cap: The most runs that are done; None: no limit.
    """

    mean: float
    eta: float = 0.0
    cap: int | None = None

    def __post_init__(self) -> None:
        if not 1.0 < self.mean <= _MOST_MEAN:
            raise InputError(f"{self.mean:g} runs in expectation: expected a number above 1 and at most {_MOST_MEAN:g}")
        if not 0.0 <= self.eta <= 10.0:
            raise InputError(f"eta = {self.eta:g}: expected a number from 0 to 10")
        if self.cap is not None and not self.mean <= self.cap <= _MOST_RUNS:
            raise InputError(f"a cap of {self.cap} runs: expected at least the mean, {self.mean:g}")

    @property
    def gamma(self) -> float:
        """The parameter with this mean."""
        low, high = 0.0, 1.0  # of -log(gamma) / 60; the mean falls as gamma rises
        for _ in range(200):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if _mean(self.eta, math.exp(-60.0 * middle)) > self.mean else (middle, high)
        return math.exp(-60.0 * high)

    def tail(self, most: int) -> float:
        """P(K > most), from above."""
        with localcontext(prec=_DIGITS):
            return float(max(Decimal(0), 1 - sum(islice(self.probabilities(), most), Decimal(0)))) * (1 + 1e-9) + _NEVER

    def of(self, uniform: Fraction) -> int:
        """The number of runs for a uniform number in [0, 1): K, or the cap if that is less."""
        most = min(self.cap or _MOST_RUNS, _MOST_RUNS)
        with localcontext(prec=_DIGITS):
            left = Decimal(uniform.numerator) / Decimal(uniform.denominator)
            for count, probability in enumerate(islice(self.probabilities(), most), start=1):
                left -= probability
                if left < 0:
                    return count
        return most

    def probabilities(self) -> Iterator[Decimal]:
        """P(K = 1), P(K = 2), ..., without the cap, to as many digits as the context has."""
        gamma, eta = Decimal(self.gamma), Decimal(self.eta)
        one = (1 - gamma) / -gamma.ln() if eta == 0 else eta * (1 - gamma) / ((-eta * gamma.ln()).exp() - 1)
        for count in range(1, _MOST_RUNS + 1):
            yield one
            one *= (1 - gamma) * (count + eta) / (count + 1)


def _mean(eta: float, gamma: float) -> float:
    if eta == 0:
        return (1.0 / gamma - 1.0) / -math.log(gamma)
    return eta * (1.0 - gamma) / (gamma * -math.expm1(eta * math.log(gamma)))


def selected_divergences(orders: Sequence[float], divergences: FloatArray, count: RunCount) -> FloatArray:
    """Renyi divergences of the best run, by order, from those of one run.

    Guarantee:
        Theorem 2 of the paper: for any two orders l > 1 and m >= 1 of a run with divergences e(l) and e(m), the best of
        K runs has e(l) + (1 + eta)(1 - 1/m) e(m) + (1 + eta) log(1/gamma)/m + log(E[K])/(l - 1). The least over m is
        taken. Every run is of one law, so settings are drawn anew for each, with replacement, from a list that is
        fixed; the largest divergence over the list is that of a run whose setting is drawn (joint quasi-convexity).
    """
    of, eta = np.asarray(orders, dtype=np.float64), count.eta
    beside = (1.0 + eta) * ((1.0 - 1.0 / of) * divergences + math.log(1.0 / count.gamma) / of)
    found = divergences + float(np.min(beside)) + math.log(count.mean) / (of - 1.0)
    # A divergence of a higher order is no smaller, so what bounds it bounds those of lower orders too.
    return np.minimum.accumulate(found[::-1])[::-1]


def largest_divergences(plans: Sequence[PrivacyPlan], orders: tuple[int, ...] = ORDERS) -> FloatArray:
    """Largest Renyi divergence, by order, of a run under any of these plans.

    Raises:
        RefusedPlan: A run has none, or the plans differ in what one guarantee needs them to share.
    """
    for name in ("clients", "sampler", "client_delta"):
        if len({getattr(plan, name) for plan in plans}) > 1:
            raise RefusedPlan(f"the settings differ in {name}, so there is no one guarantee for whichever is chosen")
    largest: FloatArray = np.max([_divergences(plan, orders) for plan in dict.fromkeys(plans)], axis=0)
    return largest


def _divergences(plan: PrivacyPlan, orders: tuple[int, ...]) -> FloatArray:
    phases = plan.phases
    if plan.earlier:
        raise RefusedPlan(
            "a run begins with what was spent before (privacy.spent_before, clip.start), which is not counted here"
        )
    if surplus(phases):
        raise RefusedPlan("a run counts with rare events (unusual cohorts), so it has no plain Renyi divergence")
    if have_whole_numbers(phases):
        raise RefusedPlan("sums of whole numbers have discrete noise, of which no plain Renyi divergence is known here")
    try:
        of_each = moments_of(released(phases), orders) if _each_alone(phases) else None
    except RefusedPlan:
        of_each = None
    if of_each is None or not np.isfinite(of_each[0]):
        raise RefusedPlan(
            f"sampler {plan.sampler} with {plan.noise} noise has no plain Renyi divergence here; a private sweep and a "
            "register need independent noise with poisson or fixed sampling"
        )
    return of_each


def _each_alone(phases: Sequence[Phase]) -> bool:
    """Return whether all that was released are Gaussian sums, each accounted for by itself."""
    cost = cost_of(phases)
    return not cost.joint and all(isinstance(phase.event.noise, GaussianNoise) for phase in released(phases))


@dataclass(frozen=True, kw_only=True)
class SelectionCost:
    """The (client, public) guarantee of what a private sweep releases.

    Attributes:
        epsilon: Of the best run.
        delta: Its delta, with what the cap costs.
        adjacency: What neighbours differ in.
        single: Epsilon of one run, by the same moments.
        settings: How many there are to choose from.
        mean: E[K].
        eta: Shape of the law of K.
        cap: The most runs, or None.
        beyond: P(K > cap), with what is drawn otherwise than the law says.
    """

    epsilon: float
    delta: float
    adjacency: str
    single: float
    settings: int
    mean: float
    eta: float
    cap: int | None
    beyond: float


def selection_cost(plans: Sequence[PrivacyPlan], count: RunCount) -> SelectionCost:
    """The price of the best of K runs, whose settings are drawn from this list.

    Guarantee:
        (client, public), for whoever sees the chosen run and nothing of the others: not K, no times, no other result.
        With a cap, min(K, cap) runs are done: that differs from K runs with probability b = P(K > cap) under either of
        two neighbours, so (e, d) becomes (e, d + (1 + exp(e)) b). Nothing is bought towards the server, which sees all
        runs, nor for a record beyond its client.

    Raises:
        RefusedPlan: The list cannot be chosen from privately.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_delta

    one, delta = largest_divergences(plans), plans[0].client_delta
    chosen = selected_divergences(ORDERS, one, count)
    beyond = _NEVER if count.cap is None else count.tail(count.cap)

    def lost(divergences: FloatArray, rare: float, epsilon: float) -> float:
        beside = (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT))) * rare
        return float(compute_delta(ORDERS, divergences, epsilon)[0]) + beside

    single = smallest_epsilon(lambda epsilon: lost(one, 0.0, epsilon), delta)
    # With a cap, what is lost falls and then rises: the least epsilon is looked for before it rises.
    epsilon = _first(lambda epsilon: lost(chosen, beyond, epsilon), delta)
    if not math.isfinite(epsilon):
        cause = (
            f"{count.mean:g} runs of epsilon = {rounded_up(single, 4)} each are too many for it: take more "
            "noise, or fewer runs"
            if count.cap is None
            else f"P(K > {count.cap}) = {rounded_up(beyond, 2)} is too much of it: raise the cap"
        )
        raise RefusedPlan(f"no epsilon holds at delta = {asked(delta)}; {cause}")
    return SelectionCost(
        epsilon=epsilon,
        delta=delta,
        adjacency=neighbours_of(plans[0].phases),
        single=single,
        settings=len(plans),
        mean=count.mean,
        eta=count.eta,
        cap=count.cap,
        beyond=beyond,
    )


def _first(lost: Callable[[float], float], delta: float) -> float:
    """The smallest epsilon of a fine list at which no more than delta is lost; refined downwards."""
    grid = np.geomspace(1e-3, 500.0, 800).tolist()
    for low, high in zip([0.0, *grid], grid, strict=False):
        if lost(high) <= delta:
            for _ in range(40):
                middle = 0.5 * (low + high)
                low, high = (low, middle) if lost(middle) <= delta else (middle, high)
            return float(high)
    return math.inf
