"""Guarantees towards the public, who sees only what is released: for a client and for a record."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import epsilon_of_discrete, released_coordinates
from dpfedmeta.accounting.divergences.participation_counts import mixture_epsilon
from dpfedmeta.accounting.divergences.pld_composition import GRIDS, ComposedBy, composed
from dpfedmeta.accounting.divergences.random_allocation import Allocation, known_round_epsilon
from dpfedmeta.accounting.events.events import (
    Event,
    Phase,
    are_allocated,
    are_correlated,
    have_noise,
    neighbours_of,
    surplus,
)
from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.accounting.observers.concentrated_dp_bound import participations_bound, sampled_bound
from dpfedmeta.accounting.observers.explain_bound import (
    ALLOCATED_PAIR,
    FIXED_PAIR,
    IN_TWO_HALVES,
    REMOVED_PAIR,
    REPLACED_ALLOCATED_PAIR,
    REPLACED_PAIR,
    composition,
    folded,
    of_one_release,
    off_delta,
    rounds_seen,
)
from dpfedmeta.accounting.observers.server_observer import record_server
from dpfedmeta.accounting.participation_cost import change_of
from dpfedmeta.accounting.privacy_plan.terms import Terms


def client_public(phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS) -> Guarantee:
    """T-fold composition of the sampled Gaussian with z (z_eff in shared mode), and of what was released before."""
    phases = (*terms.before, *phases)
    bounds = _client_bounds(phases, terms.client_delta, grids)
    return Guarantee(
        unit="client",
        observer="public",
        delta=terms.client_delta,
        adjacency=neighbours_of(phases),
        bounds=tuple(bounds),
    )


def client_public_epsilon(phases: Sequence[Phase], delta: float, grids: tuple[float, ...] = GRIDS) -> float:
    """(client, public) alone, at `delta` less the probability that shared mode dropped surplus clients."""
    return min(bound.epsilon for bound in _client_bounds(phases, delta, grids))


def record_public(
    phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS, change: float = 1.0
) -> Guarantee:
    """The smaller of two bounds: the mixture over participations, and replacing a whole client; of sums a third.

    `change`: as in `record_server`; the second bound holds whatever becomes of the record.
    """
    own, phases = phases, (*terms.before, *phases)
    delta = terms.record_delta - surplus(phases)
    by_absence = terms.by_absence and are_allocated(phases)
    bounds = [_by_absence(phases, delta) if by_absence else _of_a_replaced_client(phases, delta, grids)]
    # Correlated noise has no mixture over participations: what one round adds, the next ones take back.
    if not are_correlated(phases):
        bounds = [_mixture(own, terms, delta, change), *bounds, *_of_what_else_is_seen(own, terms, delta, change)]
    return Guarantee(
        unit="record", observer="public", delta=terms.record_delta, adjacency="zero-out", bounds=tuple(bounds)
    )


def _mixture(own: Sequence[Phase], terms: Terms, delta: float, change: float) -> Bound:
    """Over how often the client takes part, each time with the smaller layer."""
    phases, earlier = (*terms.before, *own), len(terms.before)
    # What was released before knows no record-level layer, and no cap limits it.
    mus = [phase.event.noise.mu(2.0) if phase.event.noise else math.inf for phase in terms.before]
    mus += [_worse_role_mu(phase.event, terms, change) for phase in own]
    limit = "" if terms.max_participations is None else f", at most {terms.max_participations}"

    def mixed(delta: float) -> float:
        if are_allocated(phases):
            return _shown(phases, mus[0], delta)
        return mixture_epsilon(phases, mus, terms.max_participations, delta, uncapped=earlier)

    discrete = released_coordinates(phases)
    return Bound(
        method="gdp-mixture",
        epsilon=epsilon_of_discrete(mixed, delta, mixed(delta), discrete) if discrete else mixed(delta),
        event=f"in {_rounds_of_a_client(phases, limit)}, one mu-GDP release with mu = "
        + ", ".join(f"{mu:.4g}" for mu in dict.fromkeys(mus)),
        formula="E over participations of delta_mu(eps) with mu^2 summed; mu of the smaller layer, for the worse role"
        + off_delta(phases),
    )


def _of_a_replaced_client(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> Bound:
    """Changing a record is changing a client's message, within norm C."""
    pair = _pair(phases, REPLACED_PAIR, REPLACED_ALLOCATED_PAIR)
    return _composed_bound(phases, _replaced_composed(phases, delta, grids), pair, moved=2.0)


def _by_absence(phases: Sequence[Phase], delta: float) -> Bound:
    """The same for clients that chose their round, as versions before 0.2.0 bounded it."""
    return _composed_bound(phases, (Allocation.of(phases).epsilon_by_absence(delta), "pld"), IN_TWO_HALVES, moved=2.0)


def _composed_bound(phases: Sequence[Phase], composed: tuple[float, ComposedBy], pair: str, *, moved: float) -> Bound:
    """Build the bound of rounds that are composed, or of one joint release."""
    epsilon, method = composed
    one = of_one_release(phases, moved)
    return Bound(
        method=method,
        epsilon=epsilon,
        event=rounds_seen(phases),
        formula=one or composition(method, pair) + folded(phases),
        loose=one is None and method != "pld",
    )


def _of_what_else_is_seen(own: Sequence[Phase], terms: Terms, delta: float, change: float) -> list[Bound]:
    """Return further bounds on (record, public) that hold because the release is computed from what others see.

    Mini-batched steps: the bound towards the server. Sums of whole numbers: the published bound on their addends.
    """
    record, found = terms.record, []
    if record is not None and record.batch_rate < 1:
        found.append(record_server(own, terms, change).binding)
    discrete = released_coordinates((*terms.before, *own))
    if discrete and not terms.before:
        moved = change_of("record", record, change)
        found.append(participations_bound(own, discrete, moved, terms.max_participations, delta))
    return found


def _client_bounds(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> list[Bound]:
    pair = _pair(phases, REMOVED_PAIR, ALLOCATED_PAIR)
    ours = _composed_bound(phases, _client_composed(phases, delta, grids), pair, moved=1.0)
    released, left = released_coordinates(phases), delta - surplus(phases)
    if not released or len(released) < len(phases):
        return [ours]
    if neighbours_of(phases) == "replace-one":
        return [ours, participations_bound(phases, released, 2.0, None, left)]
    return [ours, sampled_bound(phases, released, left)]


def _client_composed(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> tuple[float, ComposedBy]:
    if not have_noise(phases):
        return (0.0 if not phases else math.inf), "pld"
    return composed(phases, neighbours_of(phases), delta - surplus(phases), grids)


def _replaced_composed(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> tuple[float, ComposedBy]:
    if not have_noise(phases):
        return (math.inf if phases else 0.0), "pld"
    return composed(phases, "replace-one", delta, grids)


def _worse_role_mu(event: Event, terms: Terms, change: float) -> float:
    """Mu of one participation towards the public: the smaller layer, for the worse role."""
    noise = event.noise
    whole_message = noise.mu(2.0) if noise else math.inf
    record = terms.record
    if record is None:
        return whole_message
    if record.of_sum:
        return noise.mu(change_of("record", record, change)) if noise else math.inf
    support, query = (change * mu for mu in record.roles())
    if record.query_noise is None:
        return min(support, whole_message)
    share = change / record.query_records
    if terms.noise_mode == "stacked":
        # Of a message that is rounded as a whole: two that are close may be rounded apart.
        share = min(record.query_to_message_bound * share, 2.0) if event.whole is None else 2.0
    return max(min(query, noise.mu(share) if noise else math.inf), min(support, whole_message))


def _shown(phases: Sequence[Phase], mu: float, delta: float) -> float:
    """For an observer who knows in which round the client came: once, in each copy of the run."""
    copies = len({phase.copy for phase in phases})
    share = 1.0 if copies > 1 else min(1.0, sum(p.rounds for p in phases) * phases[0].event.rate)
    return known_round_epsilon(math.sqrt(copies) * mu, share, delta)


def _rounds_of_a_client(phases: Sequence[Phase], limit: str) -> str:
    if are_allocated(phases):
        return "the one round that the client chose"
    return f"each round that the client takes part in (binomial{limit})"


def _pair(phases: Sequence[Phase], by_coins: str, allocated: str) -> str:
    if are_allocated(phases):
        return allocated
    return FIXED_PAIR if neighbours_of(phases) == "replace-one" else by_coins
