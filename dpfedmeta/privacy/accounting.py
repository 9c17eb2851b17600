"""The layered accountant: one guarantee for each unit (client, record) and observer (server, public)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import binom

from dpfedmeta.privacy.gaussian import gaussian_delta, gaussian_epsilon, smallest_epsilon
from dpfedmeta.privacy.plan import RARE_SHARE, PrivacyPlan, RecordLayer
from dpfedmeta.privacy.sampled_gaussian import FINE, add_remove_epsilon, replace_epsilon

UnitName = Literal["client", "record"]
Observer = Literal["server", "public"]
Adjacency = Literal["add-remove", "replace-one", "zero-out"]
Method = Literal["pld", "gdp", "gdp-mixture", "none"]


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-DP for one unit towards one observer.

    Attributes:
        unit: Whose data changes.
        observer: Who looks: the honest-but-curious server, or everybody who sees the releases.
        epsilon: inf where the cell holds nothing.
        delta: The probability that the bound fails.
        adjacency: What "changes" means.
        method: How epsilon was computed.
        bounds: All bounds that were computed for the cell, by method; epsilon is the smallest.
    """

    unit: UnitName
    observer: Observer
    epsilon: float
    delta: float
    adjacency: Adjacency
    method: Method
    bounds: tuple[tuple[Method, float], ...] = ()

    def as_json(self) -> dict[str, object]:
        """The form of summary.json; an infinite epsilon is null."""
        return {
            "unit": self.unit,
            "observer": self.observer,
            "epsilon": _finite(self.epsilon),
            "delta": self.delta,
            "adjacency": self.adjacency,
            "method": self.method,
            "bounds": {method: _finite(value) for method, value in self.bounds},
        }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def guarantees(plan: PrivacyPlan, rounds: int | None = None, grid: float = FINE) -> tuple[Guarantee, ...]:
    """The four cells after `rounds` rounds (default: all T of the plan).

    A coarser `grid` is faster and gives looser upper bounds.

    Order: (client, public), (client, server), (record, server), (record, public). A cell that holds nothing
    is part of the answer, with epsilon = inf.

    Raises:
        RefusedPlan: A promised cell would have no noise.
    """
    done = plan.rounds if rounds is None else rounds
    return (
        _client_public(plan, done, grid),
        _client_server(plan, done),
        _record_server(plan, done),
        _record_public(plan, done, grid),
    )


def _client_public(plan: PrivacyPlan, rounds: int, grid: float) -> Guarantee:
    """T-fold composition of the Poisson-sampled Gaussian with z (z_eff in shared mode)."""
    noise = plan.effective_noise
    epsilon = math.inf
    if noise:
        delta = plan.client_delta - plan.surplus_probability
        epsilon = add_remove_epsilon(plan.rate, noise, rounds, delta, grid)
    return _guarantee("client", "public", plan.client_delta, "add-remove", ("pld", epsilon))


def _client_server(plan: PrivacyPlan, rounds: int) -> Guarantee:
    """Every message may change as a whole; only its own record-level noise is in the way."""
    epsilon = math.inf
    if plan.record is not None:
        record = plan.record
        if record.message == "query":
            mu = _ratio(2.0 * record.query_records, record.query_noise)
        else:
            mu = _ratio(2.0 * math.sqrt(record.support_steps) * record.support_records, record.support_noise)
        epsilon = _after_participations(plan, rounds, mu, plan.client_delta)
    return _guarantee("client", "server", plan.client_delta, "replace-one", ("gdp", epsilon))


def _record_server(plan: PrivacyPlan, rounds: int) -> Guarantee:
    """The server knows who took part: nothing is amplified, the worst number of participations counts."""
    epsilon = math.inf
    if plan.record is not None:
        epsilon = _after_participations(plan, rounds, max(_local_mu(plan.record)), plan.record_delta)
    return _guarantee("record", "server", plan.record_delta, "zero-out", ("gdp", epsilon))


def _record_public(plan: PrivacyPlan, rounds: int, grid: float) -> Guarantee:
    """The smaller of two bounds: the mixture over participations, and replacing a whole client."""
    delta = plan.record_delta - plan.surplus_probability
    noise = plan.effective_noise
    mixture = _mixture_epsilon(plan, rounds, _worse_role_mu(plan), delta)
    replaced = replace_epsilon(plan.rate, noise, rounds, delta, grid) if noise else math.inf
    return _guarantee("record", "public", plan.record_delta, "zero-out", ("gdp-mixture", mixture), ("pld", replaced))


def _guarantee(
    unit: UnitName, observer: Observer, delta: float, adjacency: Adjacency, *bounds: tuple[Method, float]
) -> Guarantee:
    method, epsilon = min(bounds, key=lambda bound: bound[1])
    return Guarantee(
        unit=unit,
        observer=observer,
        epsilon=epsilon,
        delta=delta,
        adjacency=adjacency,
        method=method if math.isfinite(epsilon) else "none",
        bounds=bounds,
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else math.inf


def _local_mu(record: RecordLayer) -> tuple[float, float]:
    """(mu_s, mu_q) of one participation towards the server; Reptile has no query release."""
    support = _ratio(math.sqrt(record.support_steps), record.support_noise)
    query = _ratio(1.0, record.query_noise) if record.message == "query" else 0.0
    return support, query


def _worse_role_mu(plan: PrivacyPlan) -> float:
    """Mu of one participation towards the public: the smaller layer, for the worse role."""
    noise = plan.effective_noise or 0.0
    whole_message = _ratio(2.0, noise)
    record = plan.record
    if record is None:
        return whole_message
    local_support, local_query = _local_mu(record)
    if record.message == "update":
        return min(local_support, whole_message)
    if plan.noise_mode == "shared":
        server_query = _ratio(1.0 / record.query_records, noise)
    else:
        server_query = _ratio(min(record.query_to_message_bound / record.query_records, 2.0), noise)
    return max(min(local_query, server_query), min(local_support, whole_message))


def worst_participations(plan: PrivacyPlan, rounds: int, delta: float) -> tuple[int, float]:
    """(R, delta left): the cap, or the smallest R that is exceeded with probability <= delta/100."""
    if plan.max_participations is not None:
        return min(plan.max_participations, rounds), delta
    allowed = RARE_SHARE * delta
    participations = int(binom.isf(allowed, rounds, plan.rate)) if rounds else 0
    while float(binom.sf(participations, rounds, plan.rate)) > allowed:
        participations += 1
    return participations, delta - float(binom.sf(participations, rounds, plan.rate))


def _after_participations(plan: PrivacyPlan, rounds: int, mu: float, delta: float) -> float:
    participations, left = worst_participations(plan, rounds, delta)
    if participations == 0:
        return 0.0
    return gaussian_epsilon(math.sqrt(participations) * mu, left)


def _mixture_epsilon(plan: PrivacyPlan, rounds: int, mu: float, delta: float) -> float:
    """delta(eps) = sum_r P(R = r) delta_{sqrt(r) mu}(eps), R = min(Binomial(T, q), cap).

    Joint convexity of the hockey-stick divergence; mass above the cap moves to the cap. Participations
    beyond the last term that is kept count as a certain failure, so nothing is renormalised.
    """
    if rounds == 0:
        return 0.0
    if not math.isfinite(mu):
        return math.inf
    cap = rounds if plan.max_participations is None else min(plan.max_participations, rounds)
    last = min(cap, int(binom.isf(1e-18, rounds, plan.rate)) + 1)
    counts = np.arange(1, last + 1)
    mass = binom.pmf(counts, rounds, plan.rate)
    beyond = float(binom.sf(last, rounds, plan.rate))
    if last == cap:
        mass[-1] += beyond
        beyond = 0.0
    return smallest_epsilon(lambda epsilon: float(mass @ gaussian_delta(epsilon, np.sqrt(counts) * mu)) + beyond, delta)
