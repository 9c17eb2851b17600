"""Costs of runs in a register's order, and the budget that keeps a registered run within what it reserved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpfedmeta.accounting.divergences.pld_composition import GRIDS
from dpfedmeta.accounting.divergences.rdp import moments_of
from dpfedmeta.accounting.events.events import Event, Phase, neighbours_of
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import Budget, phases_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.private_selection import largest_divergences
from dpfedmeta.accounting.release_costs import cost_of, released

ROUNDING = 1.0 + 1e-9


def replaced_cost(plan: PrivacyPlan, order: int) -> float:
    """Renyi divergence of a run where all data of one client are replaced by others.

    Raises:
        RefusedPlan: It has none.
    """
    largest_divergences([plan], (order,))
    return charged_cost(plan.phases, order)


def charged_cost(phases: Sequence[Phase], order: int) -> float:
    """Renyi divergence of charged rounds, where all data of one client are replaced; their plan has one."""
    kept = released(phases)
    if not kept:
        return 0.0
    if neighbours_of(phases) == "replace-one":
        return _moments(kept, order)[0]
    less, twice = _moments(kept, 2 * order - 1, 2 * order)
    return (order - 0.5) / (order - 1) * twice + less


def events_of(plan: PrivacyPlan) -> frozenset[Event]:
    """Events of the releases of a plan, each once."""
    return frozenset(phase.event for phase in released(plan.phases))


def replaced_epsilon(phases: Sequence[Phase], delta: float) -> float:
    """Epsilon of rounds where all data of one client are replaced, by exact composition; their events are all one."""
    kept = released(phases)
    if not kept:
        return 0.0
    together = [replace(kept[0], rounds=sum(phase.rounds for phase in kept))]
    return cost_of(together).replaced(together, delta, GRIDS).epsilon


def _moments(phases: Sequence[Phase], *orders: int) -> list[float]:
    found = moments_of(phases, orders)
    assert found is not None
    return [float(each) for each in found]


@dataclass(frozen=True, kw_only=True)
class RegisteredBudget(Budget):
    """Budget of a run that is in a register: no charge beyond what was reserved either, in the register's order.

    A round that is done again after a crash may be a costlier one than the round that is given up for it. Epsilons at
    the run's own delta do not tell, so the register's sum is kept as well.

    Attributes:
        reserved: Divergence that the register holds for the run.
        order: Its order.
    """

    reserved: float
    order: int

    def allows_charges(self, plan: PrivacyPlan, charges: Sequence[Charge]) -> bool:
        """Return whether these charges stay within every limit, and within what was reserved."""
        within = charged_cost(phases_of(charges), self.order) <= self.reserved * ROUNDING
        return within and super().allows_charges(plan, charges)
