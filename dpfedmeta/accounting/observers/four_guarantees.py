"""The layered accountant: one guarantee for each unit (client, record) and observer (server, public)."""

from collections.abc import Sequence
from dataclasses import replace

from dpfedmeta.accounting.divergences.pld_composition import GRIDS
from dpfedmeta.accounting.events.events import Phase, have_noise, neighbours_of, surplus
from dpfedmeta.accounting.events.guarantee import ANY_NUMBER_OF_ROWS, Guarantee
from dpfedmeta.accounting.events.record_layer import holding
from dpfedmeta.accounting.observers.server_observer import client_server, record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.accounting.release_costs import cost_of, quick_grid


def guarantees(plan: PrivacyPlan, rounds: int | None = None, grids: tuple[float, ...] = GRIDS) -> tuple[Guarantee, ...]:
    """The four cells after `rounds` rounds of a plan (default: all of them).

    `grids` are the widths of the privacy-loss grid to try (see pld_composition); leave them alone for a promise.

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
    if not have_noise(phases):
        return GRIDS[0]
    neighbours = {neighbours_of(phases), "replace-one"}
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
    """The four cells, and those of records with the epsilon of every relation that holds: what is shown."""
    *clients, of_server, of_public = four_cells(phases, terms, grids)
    server, public = {terms.relation: of_server.epsilon}, {terms.relation: of_public.epsilon}
    known = {_costs(terms): (of_server.epsilon, of_public.epsilon)}
    for relation in holding(terms.record):
        other = replace(terms, relation=relation)
        if _costs(other) not in known:
            towards_all = record_public(phases, other, grids).epsilon
            known[_costs(other)] = record_server(phases, other).epsilon, towards_all
        server[relation], public[relation] = known[_costs(other)]
    return (
        *clients,
        replace(of_server, relations={each: server[each] for each in RELATIONS if each in server}),
        replace(of_public, relations={each: public[each] for each in RELATIONS if each in public}),
    )


def _costs(terms: Terms) -> object:
    """The same for relations whose epsilons are the same."""
    return None if terms.record is None else terms.record.moves(terms.relation)


def client_public(phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS) -> Guarantee:
    """A client towards everybody, who sees what is released in these rounds and what was released before."""
    phases = (*terms.before, *phases)
    bounds = cost_of(phases).public(phases, terms.client_delta, grids)
    if terms.record is not None and terms.record.unbounded:
        bounds = [ANY_NUMBER_OF_ROWS]
    return Guarantee(
        unit="client",
        observer="public",
        delta=terms.client_delta,
        adjacency=neighbours_of(phases),
        bounds=tuple(bounds),
    )


def client_public_epsilon(phases: Sequence[Phase], delta: float, grids: tuple[float, ...] = GRIDS) -> float:
    """(client, public) alone, at `delta` less the probability of rare events."""
    return min(bound.epsilon for bound in cost_of(phases).public(phases, delta, grids))


def record_public(phases: Sequence[Phase], terms: Terms, grids: tuple[float, ...] = GRIDS) -> Guarantee:
    """A record towards everybody: the smallest bound that its rounds allow.

    That of a client whose message becomes another one holds in every relation.
    """
    together = (*terms.before, *phases)
    delta = terms.record_delta - surplus(together)
    bounds = cost_of(together).record(phases, terms, delta, grids)
    return Guarantee(
        unit="record", observer="public", delta=terms.record_delta, adjacency=terms.relation, bounds=tuple(bounds)
    )
