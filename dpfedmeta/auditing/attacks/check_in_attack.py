"""The attack on rounds of which each client drew one for itself."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfedmeta.accounting.events.events import surplus
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.auditing.expected_messages import Known, over_nothing
from dpfedmeta.auditing.neighbouring_runs import ClientWorlds, Observed, Worlds
from dpfedmeta.auditing.trade_off_function import SampledCurve, TradeOff
from dpfedmeta.planning.run_plan import Plan


@dataclass(kw_only=True, eq=False)
class OnCheckIns:
    """By everybody, who does not know in which round the canary came.

    Attributes:
        plan: What is promised.
        cell: Of (client, public) or (record, public).
        worlds: What is told apart.
        slots: Rounds of which the canary drew one.
    """

    plan: Plan
    cell: Guarantee
    worlds: Worlds
    slots: int

    @cached_property
    def curve(self) -> TradeOff | None:
        """Trade-off curve of a client that is added or removed, or sends the opposite; None for a record inside one."""
        if not isinstance(self.worlds, ClientWorlds):
            return None
        phases = self.plan.privacy.phases
        neighbours: Neighbours = "replace-one" if self.worlds.other else "add-remove"
        return SampledCurve(phases=phases, neighbours=neighbours, delta=self.cell.delta - surplus(phases))

    def ratio(self, seen: Observed) -> float:
        """Each slot is as likely as the next; one that released nothing tells nothing."""
        total = 0.0
        for one in (True, False):
            losses = np.zeros(self.slots)
            for release in seen.releases:
                if release.total is not None:
                    message = self._messages.message(release, one)
                    losses[release.round] = over_nothing(release.total, message, release.deviation**2)
            mean = float(np.logaddexp.reduce(losses))
            total += mean if one else -mean
        return total

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)
