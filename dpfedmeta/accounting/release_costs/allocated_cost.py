"""Rounds of which each client drew one for itself (divergences.random_allocation): accounted for all together."""

import math
from collections.abc import Sequence
from typing import ClassVar

from dpfedmeta.accounting.divergences.pld_composition import GRIDS, ComposedBy
from dpfedmeta.accounting.divergences.random_allocation import (
    FINE,
    QUICK,
    Allocation,
    closed_bounds,
    known_round_epsilon,
)
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.release_costs.independent_cost import IndependentCost

_REMOVED = "1/t sum over j <= t of N(e_j, z^2 I) against N(0, z^2 I), in the worse order"
_REPLACED = "1/t sum over j <= t of N(e_j, z^2 I) against 1/t sum over j <= t of N(-e_j, z^2 I)"


class AllocatedCost(IndependentCost):
    """A client comes once in each copy of a run, in a round that nobody knows; nothing else is added up with that."""

    joint: ClassVar[bool] = True
    rare: ClassVar[str] = "a full round"

    def composed(
        self, phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
    ) -> tuple[float, ComposedBy]:
        """Epsilon of clients that chose their own round; a single grid asks for a quick, looser bound."""
        came, points = Allocation.of(phases), FINE if len(grids) > 1 else QUICK
        return came.epsilon(delta, points) if neighbours == "add-remove" else came.epsilon_replaced(
            delta, points
        ), "pld"

    def delta_at(self, phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
        """Likewise."""
        came = Allocation.of(phases)
        return came.delta(epsilon) if neighbours == "add-remove" else came.delta_replaced(epsilon)

    def pair(self, phases: Sequence[Phase], neighbours: Neighbours) -> str:
        """All rounds with the client in one of them."""
        return _REMOVED if neighbours == "add-remove" else _REPLACED

    def folded(self, phases: Sequence[Phase]) -> str:
        """Behind a formula: a mean in place of a product."""
        return ", as the mean of t factors (random allocation)" + self.off_delta(phases)

    def mixed(self, phases: Sequence[Phase], mus: Sequence[float], terms: Terms, delta: float) -> float:
        """For an observer who knows in which round the client came: once, in each copy of the run."""
        copies = len({phase.copy for phase in phases})
        share = 1.0 if copies > 1 else min(1.0, sum(p.rounds for p in phases) * phases[0].event.rate)
        return known_round_epsilon(math.sqrt(copies) * mus[0], share, delta)

    def own_rounds(self, terms: Terms) -> str:
        """The one round."""
        return "the one round that the client chose"

    def second_opinion(self, phases: Sequence[Phase], delta: float) -> tuple[str, float] | None:
        """The closed form of Feldman, Shenfeld 2025."""
        came = Allocation.of(phases)
        found = max(closed_bounds(came.noise, came.slots, delta))
        return "dp-accounting PLD and Feldman, Shenfeld 2025 (looser)", found


MEMBER = AllocatedCost
