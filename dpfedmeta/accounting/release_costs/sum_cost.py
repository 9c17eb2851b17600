"""Rounds of secure aggregation: sums of whole numbers, with discrete noise that the clients make together."""

from collections.abc import Sequence
from typing import ClassVar

from dpfedmeta.accounting.divergences.pld_composition import GRIDS
from dpfedmeta.accounting.events.events import Phase, have_whole_numbers, neighbours_of, surplus
from dpfedmeta.accounting.events.guarantee import Bound
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.accounting.participation_cost import change_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.release_costs.independent_cost import IndependentCost


class SumCost(IndependentCost):
    """As rounds one by one, with what discrete noise costs more, and the published bound on it beside (zCDP)."""

    beside: ClassVar[frozenset[str]] = frozenset({"independent"})

    def delta_at(self, phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
        """Likewise, with what discrete noise costs more."""
        base = super().delta_at
        if not have_whole_numbers(phases):
            return base(phases, neighbours, epsilon)
        from dpfedmeta.accounting.divergences.discrete_gaussian_cost import delta_of_discrete, released_coordinates

        found = released_coordinates(phases)
        return delta_of_discrete(lambda left: base(phases, neighbours, left), epsilon, found)

    def public(self, phases: Sequence[Phase], delta: float, grids: tuple[float, ...] = GRIDS) -> list[Bound]:
        """Where all rounds are such sums, the published bound too."""
        ours, left = super().public(phases, delta, grids), delta - surplus(phases)
        if not have_whole_numbers(phases):
            return ours
        from dpfedmeta.accounting.divergences.discrete_gaussian_cost import released_coordinates
        from dpfedmeta.accounting.observers.concentrated_dp_bound import participations_bound, sampled_bound

        found = released_coordinates(phases)
        if not found or len(found) < len(phases):
            return ours
        if neighbours_of(phases) == "replace-one":
            return [*ours, participations_bound(phases, found, 2.0, None, left)]
        return [*ours, sampled_bound(phases, found, left)]

    def record(self, own: Sequence[Phase], terms: Terms, delta: float, grids: tuple[float, ...]) -> list[Bound]:
        """As of a client, by how often it takes part."""
        bounds, together = super().record(own, terms, delta, grids), (*terms.before, *own)
        if not have_whole_numbers(together):
            return bounds
        from dpfedmeta.accounting.divergences.discrete_gaussian_cost import released_coordinates
        from dpfedmeta.accounting.observers.concentrated_dp_bound import participations_bound

        found = released_coordinates(together)
        if found and not terms.before:
            moved = change_of("record", terms.record, terms.relation)
            bounds.append(participations_bound(own, found, moved, terms.max_participations, delta))
        return bounds

    def mixed(self, phases: Sequence[Phase], mus: Sequence[float], terms: Terms, delta: float) -> float:
        """Epsilon of the mixture, with what discrete noise costs more."""
        base = super().mixed
        guess = base(phases, mus, terms, delta)
        if not have_whole_numbers(phases):
            return guess
        from dpfedmeta.accounting.divergences.discrete_gaussian_cost import epsilon_of_discrete, released_coordinates

        found = released_coordinates(phases)
        return epsilon_of_discrete(lambda left: base(phases, mus, terms, left), delta, guess, found) if found else guess


MEMBER = SumCost
