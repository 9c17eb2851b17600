"""The layered accountant: one guarantee for each unit (client, record) and observer (server, public)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dpfedmeta.accounting.allocation import known_round_epsilon
from dpfedmeta.accounting.bound_words import (
    ALLOCATED_PAIR,
    FIXED_PAIR,
    REMOVED_PAIR,
    REPLACED_ALLOCATED_PAIR,
    REPLACED_PAIR,
    composition,
    folded,
    of_one_release,
    off_delta,
    rounds_seen,
)
from dpfedmeta.accounting.earlier import seen_before
from dpfedmeta.accounting.events import Event, Phase, as_released, surplus
from dpfedmeta.accounting.gaussian import gaussian_epsilon
from dpfedmeta.accounting.guarantee import Adjacency, Bound, Guarantee, Observer, UnitName
from dpfedmeta.accounting.participations import mixture_epsilon, worst_participations
from dpfedmeta.accounting.plan import NoiseMode, PrivacyPlan, ServerSees
from dpfedmeta.accounting.published_sums import participations_bound, sampled_bound
from dpfedmeta.accounting.record_layer import RecordLayer
from dpfedmeta.accounting.sampled_gaussian import (
    GRIDS,
    ComposedBy,
    Neighbours,
    composed,
    neighbours_of_a_client,
    poisson_steps_epsilon,
    quick_grid,
    replaced_steps_epsilon,
)
from dpfedmeta.accounting.whole_noise import (
    Coordinates,
    epsilon_of_discrete,
    released_coordinates,
    summed_coordinates,
)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What the four cells depend on besides the rounds themselves.

    Attributes:
        record: The record-level layer, or None.
        noise_mode: How the server treats messages that carry record-level noise.
        server_sees: Every message, or only their sum.
        max_participations: R, or None.
        client_delta: delta of the client cells.
        record_delta: delta of the record cells.
        before: Releases about the same clients that other ledgers charge, made before these rounds.
    """

    record: RecordLayer | None
    noise_mode: NoiseMode
    server_sees: ServerSees
    max_participations: int | None
    client_delta: float
    record_delta: float
    before: tuple[Phase, ...] = ()

    @classmethod
    def of(cls, plan: PrivacyPlan) -> Terms:
        """The terms of a plan."""
        return cls(
            record=plan.record,
            noise_mode=plan.noise_mode,
            server_sees=plan.server_sees,
            max_participations=plan.max_participations,
            client_delta=plan.client_delta,
            record_delta=plan.record_delta,
            before=plan.before,
        )


def guarantees(plan: PrivacyPlan, rounds: int | None = None, grids: tuple[float, ...] = GRIDS) -> tuple[Guarantee, ...]:
    """The four cells after `rounds` rounds of a plan (default: all of them).

    `grids` are the widths of the privacy-loss grid to try (see sampled_gaussian); leave them alone for a promise.

    Order: (client, public), (client, server), (record, server), (record, public). A cell that holds nothing
    is part of the answer, with epsilon = inf.

    Raises:
        RefusedPlan: Colluding clients would know all the noise that the public faces.
    """
    phases = plan.phases if rounds is None else plan.first(rounds)
    return stated(phases, Terms.of(plan), grids)


def epsilon_curve(plan: PrivacyPlan, points: int = 40) -> tuple[list[int], dict[str, list[float]]]:
    """(numbers of rounds, epsilon of each cell after them), at most `points` of them, evenly in the logarithm."""
    steps = range(points)
    rounds = sorted({max(1, round(plan.rounds ** (step / max(points - 1, 1)))) for step in steps} | {plan.rounds})
    after = [four_cells(plan.first(count), Terms.of(plan)) for count in rounds]
    return rounds, {cells[0].name: [cell.epsilon for cell in cells] for cells in zip(*after, strict=True)}


def running_grid(plan: PrivacyPlan) -> float:
    """A grid for the many epsilons along the way: within 1% of this plan's own."""
    phases = (*plan.before, *plan.phases)
    if not _has_noise(phases):
        return GRIDS[0]
    neighbours = {_neighbours(phases), "replace-one"}
    return min(quick_grid(phases, each, min(plan.client_delta, plan.record_delta)) for each in neighbours)


def four_cells(phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS) -> tuple[Guarantee, ...]:
    """The four cells of any rounds in a row: those of a plan, or those that a ledger holds."""
    return (
        client_public(phases, terms, grids),
        client_server(phases, terms),
        record_server(phases, terms),
        record_public(phases, terms, grids),
    )


def stated(phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS) -> tuple[Guarantee, ...]:
    """The four cells, and for the records what they are under replace-one: the form in which they are shown.

    A record that is replaced by any other one moves a clipped sum by twice what a null record does.
    """
    *clients, of_server, of_public = four_cells(phases, terms, grids)
    server = record_server(phases, terms, change=2.0).epsilon
    public = record_public(phases, terms, grids, change=2.0).epsilon
    return *clients, replace(of_server, replaced=server), replace(of_public, replaced=public)


def client_public_epsilon(phases: Sequence[Phase], delta: float, grids: tuple[float, ...] = GRIDS) -> float:
    """(client, public) alone, at `delta` less the probability that shared mode dropped surplus clients."""
    return min(bound.epsilon for bound in _client_bounds(phases, delta, grids))


def _client_composed(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> tuple[float, ComposedBy]:
    if not _has_noise(phases):
        return (0.0 if not phases else math.inf), "pld"
    return composed(phases, _neighbours(phases), delta - surplus(phases), grids)


def _replaced_composed(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> tuple[float, ComposedBy]:
    """Changing a record is changing a client's message, within norm C."""
    if not _has_noise(phases):
        return (math.inf if phases else 0.0), "pld"
    return composed(phases, "replace-one", delta, grids)


def client_public(phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS) -> Guarantee:
    """T-fold composition of the sampled Gaussian with z (z_eff in shared mode), and of what was released before."""
    phases = (*terms.before, *phases)
    adjacency: Adjacency = "replace-one" if _fixed(phases) else "add-remove"
    bounds = _client_bounds(phases, terms.client_delta, grids)
    return _guarantee("client", "public", terms.client_delta, adjacency, *bounds)


def _client_bounds(phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> list[Bound]:
    fixed = _fixed(phases)
    epsilon, method = _client_composed(phases, delta, grids)
    ours = Bound(
        method=method,
        epsilon=epsilon,
        event=rounds_seen(phases),
        formula=of_one_release(phases, 1.0)
        or composition(method, _pair(phases, REMOVED_PAIR, ALLOCATED_PAIR)) + folded(phases),
    )
    released, left = released_coordinates(phases), delta - surplus(phases)
    if not released or len(released) < len(phases):
        return [ours]
    if fixed:
        return [ours, participations_bound(phases, released, 2.0, None, left)]
    return [ours, sampled_bound(phases, released, left)]


def client_server(phases: Sequence[Phase], terms: Terms) -> Guarantee:
    """Every message may change as a whole; only its own record-level noise is in the way."""
    record = terms.record
    if record is None or terms.server_sees == "sum":
        bounds = _of_what_is_sent(phases, terms, terms.client_delta)
    else:
        mu, formula = record.whole_client()
        bounds = [_worst_participations(phases, terms, mu, formula, terms.client_delta)]
    return _guarantee("client", "server", terms.client_delta, "replace-one", *bounds)


def record_server(phases: Sequence[Phase], terms: Terms, change: float = 1.0) -> Guarantee:
    """The server knows who took part: nothing is amplified, the worst number of participations counts.

    `change`: how far a record moves a sum over its clip bound: 1 under zero-out, 2 where it is replaced.
    """
    if terms.record is not None and terms.record.of_sum:
        bounds = _of_the_sum(phases, terms, change / terms.record.query_records, terms.record_delta)
    elif terms.record is None:
        bounds = _of_what_is_sent(phases, terms, terms.record_delta)
    elif terms.record.batch_rate < 1:
        bounds = [_of_local_steps(phases, terms, terms.record, change)]
    else:
        support, query = terms.record.roles()
        worse = "sqrt(K)/z_s" if support >= query else "1/z_q"
        bounds = [_worst_participations(phases, terms, change * max(support, query), worse, terms.record_delta)]
    return _guarantee("record", "server", terms.record_delta, "zero-out", *bounds)


def record_public(
    phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS, change: float = 1.0
) -> Guarantee:
    """The smaller of two bounds: the mixture over participations, and replacing a whole client; of sums a third.

    `change`: as in `record_server`; the second bound holds whatever becomes of the record.
    """
    own, earlier = phases, len(terms.before)
    phases = (*terms.before, *phases)
    delta = terms.record_delta - surplus(phases)
    # What was released before knows no record-level layer, and no cap limits it.
    mus = [phase.event.noise.mu(2.0) if phase.event.noise else math.inf for phase in terms.before]
    mus += [_worse_role_mu(phase.event, terms, change) for phase in own]
    limit = "" if terms.max_participations is None else f", at most {terms.max_participations}"

    def mixed(delta: float) -> float:
        if _allocated(phases):
            return _shown(phases, mus[0], delta)
        return mixture_epsilon(phases, mus, terms.max_participations, delta, uncapped=earlier)

    discrete = released_coordinates(phases)
    mixture = Bound(
        method="gdp-mixture",
        epsilon=epsilon_of_discrete(mixed, delta, mixed(delta), discrete) if discrete else mixed(delta),
        event=f"in {_rounds_of_a_client(phases, limit)}, one mu-GDP release with mu = "
        + ", ".join(f"{mu:.4g}" for mu in dict.fromkeys(mus)),
        formula="E over participations of delta_mu(eps) with mu^2 summed; mu of the smaller layer, for the worse role"
        + off_delta(phases),
    )
    epsilon, method = _replaced_composed(phases, delta, grids)
    replaced = Bound(
        method=method,
        epsilon=epsilon,
        event=rounds_seen(phases),
        formula=of_one_release(phases, 2.0)
        or composition(method, _pair(phases, REPLACED_PAIR, REPLACED_ALLOCATED_PAIR)) + folded(phases),
    )
    if as_released(phases) is not phases:
        # Its rounds have no mixture over participations: what one round adds, the next ones take back.
        return _guarantee("record", "public", terms.record_delta, "zero-out", replaced)
    bounds = [mixture, replaced]
    if terms.record is not None and terms.record.batch_rate < 1:
        # What the public sees is computed from what the server sees.
        bounds.append(record_server(own, terms, change).binding)
    if discrete and not earlier:
        moved = change / terms.record.query_records if terms.record is not None and terms.record.of_sum else 2.0
        bounds.append(participations_bound(phases, discrete, moved, terms.max_participations, delta))
    return _guarantee("record", "public", terms.record_delta, "zero-out", *bounds)


def _worst_participations(phases: Sequence[Phase], terms: Terms, mu: float, formula: str, delta: float) -> Bound:
    """sqrt(R) * mu-GDP for the worst R, and in squares what was seen before."""
    worst, left = worst_participations(phases, terms.max_participations, delta)
    seen = seen_before(terms.before, 2.0, delta)

    def at(delta: float) -> float:
        return gaussian_epsilon(math.hypot(math.sqrt(worst) * mu, math.sqrt(seen.squared)), delta)

    how = f"exceeded with probability <= {delta / 100:g}"
    if terms.max_participations is not None:
        how = "the cap" if len({phase.copy for phase in phases}) < 2 else "the cap in each copy"
    return Bound(
        method="gdp",
        epsilon=_with_discrete(at, left - seen.rare, seen.coordinates),
        event=f"{worst} participation{'s' if worst != 1 else ''} ({how}), each one {mu:.4g}-GDP release"
        + _seen(terms.before),
        formula=f"sqrt(R) * {formula}-GDP",
    )


def _with_discrete(at: Callable[[float], float], delta: float, coordinates: Sequence[Coordinates]) -> float:
    """Epsilon at delta, with what discrete noise costs more where there is such."""
    return epsilon_of_discrete(at, delta, at(delta), coordinates) if coordinates else at(delta)


def _seen(before: Sequence[Phase]) -> str:
    """Behind what is seen."""
    return f", besides {rounds_seen(before)} before" if before else ""


def _of_what_is_sent(phases: Sequence[Phase], terms: Terms, delta: float) -> list[Bound]:
    """Towards the server, a client that sends its exact message has nothing; one that adds its share has little.

    A server that sees only the sum faces the noise of all clients together, less that of those it works with.
    """
    if terms.server_sees == "sum" and all(phase.event.sum_noise or phase.event.message_noise for phase in phases):
        return _of_the_sum(phases, terms, 2.0, delta)
    least = min((phase.event.message_noise for phase in phases), default=0.0)
    if least == 0:
        seen = "message" if terms.server_sees == "messages" else "part of the exact sum"
        return [_nothing(f"the client's exact {seen}")]
    return [_worst_participations(phases, terms, 2.0 / least, "2 sqrt(L) / z", delta)]


def _of_the_sum(phases: Sequence[Phase], terms: Terms, change: float, delta: float) -> list[Bound]:
    """A server that sees only the sum knows who took part; the noise of the honest survivors is in the way.

    `change`: how far the unit moves the sum, over how far a whole client does.
    """
    # What the server adds afterwards covers nothing that it sees: without noise of the clients' there is none.
    events = [phase.event for phase in phases]
    noises = [event.sum_noise or (event.noise if event.message_noise else None) for event in events]
    mu = max((noise.mu(change) if noise else math.inf for noise in noises), default=0.0)
    cap, delta = terms.max_participations, delta - surplus(phases)
    worst, left = worst_participations(phases, cap, delta)
    # Whatever a record moves its client's message by: what it said before may have changed as a whole.
    seen = seen_before(terms.before, 2.0, delta)

    def at(delta: float) -> float:
        return gaussian_epsilon(math.hypot(math.sqrt(worst) * mu, math.sqrt(seen.squared)), delta)

    discrete = summed_coordinates(phases)
    ours = Bound(
        method="gdp",
        epsilon=_with_discrete(at, left - seen.rare, [*seen.coordinates, *discrete]),
        event=f"the sum in {worst} participation{'s' if worst != 1 else ''}, each one {mu:.4g}-GDP release"
        + _seen(terms.before),
        formula=f"sqrt(R) * {change:.4g} / z_sum-GDP",
    )
    alone = discrete and not terms.before
    return [ours, participations_bound(phases, discrete, change, cap, delta)] if alone else [ours]


def _of_local_steps(phases: Sequence[Phase], terms: Terms, record: RecordLayer, change: float) -> Bound:
    """Mini-batches that the client draws for itself: sqrt(K)-GDP does not hold, each of the K R steps is composed."""
    worst, left = worst_participations(phases, terms.max_participations, terms.record_delta)
    steps, rate, noise = worst * record.support_steps, record.batch_rate, record.support_noise or 0.0
    earlier = 0.0
    if terms.before:
        # Two bounds of different kinds: half of delta for each, and their epsilons added.
        left /= 2.0
        seen = seen_before(terms.before, 2.0, terms.record_delta)
        mu = math.sqrt(seen.squared)
        earlier = _with_discrete(lambda delta: gaussian_epsilon(mu, delta), left - seen.rare, seen.coordinates)
    if change > 1:
        epsilon = earlier + replaced_steps_epsilon(rate, noise, steps, left)
    else:
        epsilon = earlier + poisson_steps_epsilon(rate, noise, steps, left, record.accountant)
    return Bound(
        method=record.accountant,
        epsilon=epsilon,
        event=f"{worst} participations of {record.support_steps} steps (each record in a step with probability "
        f"{record.batch_rate:.4g}) with Gaussian noise of z_s = {noise:.4g}" + _seen(terms.before),
        formula=f"{record.accountant.upper()} of (1-b) N(0, z_s^2) + b N(1, z_s^2) against N(0, z_s^2), K R-fold",
    )


def _worse_role_mu(event: Event, terms: Terms, change: float) -> float:
    """Mu of one participation towards the public: the smaller layer, for the worse role."""
    noise = event.noise
    whole_message = noise.mu(2.0) if noise else math.inf
    record = terms.record
    if record is None:
        return whole_message
    if record.of_sum:
        return noise.mu(change / record.query_records) if noise else math.inf
    support, query = (change * mu for mu in record.roles())
    if record.query_noise is None:
        return min(support, whole_message)
    share = change / record.query_records
    if terms.noise_mode == "stacked":
        # Of a message that is rounded as a whole: two that are close may be rounded apart.
        share = min(record.query_to_message_bound * share, 2.0) if event.whole is None else 2.0
    return max(min(query, noise.mu(share) if noise else math.inf), min(support, whole_message))


def _neighbours(phases: Sequence[Phase]) -> Neighbours:
    """Where one round shows that nobody was added, a client's data is replaced, in all of them."""
    return neighbours_of_a_client("fixed" if _fixed(phases) else "poisson")


def _allocated(phases: Sequence[Phase]) -> bool:
    return bool(phases) and phases[0].event.slots is not None


def _shown(phases: Sequence[Phase], mu: float, delta: float) -> float:
    """For an observer who knows in which round the client came: once, in each copy of the run."""
    copies = len({phase.copy for phase in phases})
    share = 1.0 if copies > 1 else min(1.0, sum(p.rounds for p in phases) * phases[0].event.rate)
    return known_round_epsilon(math.sqrt(copies) * mu, share, delta)


def _rounds_of_a_client(phases: Sequence[Phase], limit: str) -> str:
    if _allocated(phases):
        return "the one round that the client chose"
    return f"each round that the client takes part in (binomial{limit})"


def _pair(phases: Sequence[Phase], by_coins: str, allocated: str) -> str:
    if _allocated(phases):
        return allocated
    return FIXED_PAIR if _fixed(phases) else by_coins


def _fixed(phases: Sequence[Phase]) -> bool:
    return any(phase.event.sampler == "fixed" for phase in phases)


def _has_noise(phases: Sequence[Phase]) -> bool:
    return bool(phases) and all(phase.event.noise for phase in phases)


def _nothing(event: str) -> Bound:
    return Bound(method="none", epsilon=math.inf, event=event, formula="no noise covers it")


def _guarantee(unit: UnitName, observer: Observer, delta: float, adjacency: Adjacency, *bounds: Bound) -> Guarantee:
    return Guarantee(unit=unit, observer=observer, delta=delta, adjacency=adjacency, bounds=bounds)
