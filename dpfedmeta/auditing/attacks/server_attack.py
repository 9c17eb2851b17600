"""The attack by a server, which knows who took part."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from torch import Tensor

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.auditing.expected_messages import Known, message_of, over_nothing
from dpfedmeta.auditing.neighbouring_runs import CANARY, Observed, Worlds
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.auditing.trade_off_function import GaussianCurve, normal_curve
from dpfedmeta.core.params import flatten
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, ClientUnit
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.simulation.cohort_sums import rounded_messages


@dataclass(kw_only=True, eq=False)
class OnServer:
    """By the server, which knows who took part.

    Attributes:
        plan: What is promised.
        cell: (client, server) or (record, server).
        worlds: What is told apart.
        look: What it sees of a round in which the canary took part.
    """

    plan: Plan
    cell: Guarantee
    worlds: Worlds
    look: Look

    @cached_property
    def curve(self) -> GaussianCurve:
        """A normal one; of discrete noise that of the noise that it is compared with."""
        return normal_curve(self.cell)

    def ratio(self, seen: Observed) -> float:
        """Summed over the rounds in which the canary took part."""
        total = 0.0
        for release, (cohort, secret) in zip(seen.releases, seen.sums, strict=True):
            if CANARY in cohort.clients and (found := self.look(self.plan, seen.clients, release, cohort, secret)):
                values, variance = found
                total += over_nothing(values, self._messages.message(release, True), variance)
                total -= over_nothing(values, self._messages.message(release, False), variance)
        return total

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)


Secret = Bounded[ClientUnit, dict[str, Tensor]]
# (What is seen, in units of messages; variance of the noise in it); None: nothing is.
Look = Callable[[Plan, ClientRunner, ObservedRound, Cohort, Secret], tuple[Tensor, float] | None]


def the_message(
    plan: Plan, clients: ClientRunner, release: ObservedRound, cohort: Cohort, secret: Secret
) -> tuple[Tensor, float] | None:
    """The canary's own, by a server that sees every message."""
    # The same noise as in the loop, since it is keyed.
    own = replace(clients, source=clients.source.again(cohort.again, cohort.fresh))
    return message_of(own, release, [CANARY]), clients.message_noise_variance(release.bound)


def the_sum(
    plan: Plan, clients: ClientRunner, release: ObservedRound, cohort: Cohort, secret: Secret
) -> tuple[Tensor, float] | None:
    """By a server that sees sums alone, before it adds what is missing, and works with some of the clients."""
    if not secret.noise_variance:
        return None
    whole, grid = plan.privacy.at(release.round).whole, secret.grid
    assert whole is not None
    assert grid is not None
    share, arrays = whole.share(cohort.asked), {name: value.numpy() for name, value in release.model.items()}
    known = [client for client in cohort.clients.tolist() if client != CANARY][: plan.privacy.colluding]
    (name, total), *_ = secret.value.items()
    left = total.numpy().astype(np.int64)
    source = clients.source.again(cohort.again, cohort.fresh)
    for message in rounded_messages(clients, arrays, (release.bound, share), release.round, known, source):
        left = left - message
    values = grid.read({name: total.new_tensor(grid.centred(left))})
    return flatten(values).double(), (secret.noise_variance - len(known) * share) * grid.width**2
