"""The attacks by everybody, who sees the noisy sums, hence all models and bounds: sampled rounds, and check-ins."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from torch import Tensor

from dpfedmeta.accounting.events.events import surplus
from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.auditing.neighbouring_runs import (
    CANARY,
    ClientWorlds,
    Known,
    Observed,
    RecordWorlds,
    Worlds,
    message_of,
    over_nothing,
)
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.auditing.trade_off_function import SampledCurve, TradeOff, normal_curve
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.simulation.client_runner import ClientRunner


@dataclass(kw_only=True, eq=False)
class OnReleases:
    """By everybody, who sees the noisy sums, hence all models and bounds.

    Attributes:
        plan: What is promised.
        cell: Of (client, public) or (record, public).
        worlds: What is told apart.
    """

    plan: Plan
    cell: Guarantee
    worlds: Worlds

    @cached_property
    def curve(self) -> TradeOff | None:
        """Trade-off curve of the plan's own rounds; None where their noise is not Gaussian.

        It is a normal curve where nobody is sampled, and for records inside clients.
        """
        phases = self.plan.privacy.phases
        if not all(isinstance(phase.event.noise, GaussianNoise) for phase in phases):
            return None
        if isinstance(self.worlds, RecordWorlds) or all(phase.event.rate == 1 for phase in phases):
            return normal_curve(self.cell)
        neighbours = "replace-one" if self.worlds.other else "add-remove"  # type: ignore[attr-defined]
        return SampledCurve(phases=phases, neighbours=neighbours, delta=self.cell.delta - surplus(phases))  # type: ignore[arg-type]

    def ratio(self, seen: Observed) -> float:
        """Summed over rounds, each a mixture over whether the canary was drawn."""
        total = 0.0
        for release in seen.releases:
            if release.total is None:
                continue
            rate, values = self.plan.privacy.at(release.round).rate, release.total - self._known(seen, release)
            variance = release.deviation**2 - self._colluding * self._clients.message_noise_variance(release.bound)
            for one in (True, False):
                loss = over_nothing(values, self._messages.message(release, one), variance)
                mixed = loss if rate == 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + loss))
                total += mixed if one else -mixed
        return total

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)

    @cached_property
    def _clients(self) -> ClientRunner:
        return self.worlds.clients(False, KeyedSource(0))

    @cached_property
    def _colluding(self) -> int:
        """Clients that took part for sure, and subtract the noise of their own."""
        event = self.plan.privacy.at(0)
        if event.whole is not None or event.rate < 1 or not self._clients.message_noise_variance(1.0):
            return 0
        return min(self.plan.privacy.colluding, self.plan.privacy.clients - 1)

    def _known(self, seen: Observed, release: ObservedRound) -> Tensor | float:
        """Return the sum of the messages of the clients that collude, which they know; 0 if there are none."""
        if not self._colluding:
            return 0.0
        return message_of(seen.clients, release, list(range(CANARY + 1, CANARY + 1 + self._colluding)))


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
