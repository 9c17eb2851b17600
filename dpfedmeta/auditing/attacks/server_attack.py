"""The attacks by a server, which knows who took part: on independent rounds, and on correlated noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise
from dpfedmeta.accounting.release_costs import released
from dpfedmeta.auditing.neighbouring_runs import CANARY, ClientWorlds, Known, Observed, Worlds, message_of, over_nothing
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.auditing.trade_off_function import GaussianCurve, SampledCurve, TradeOff, normal_curve
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


@dataclass(kw_only=True, eq=False)
class OnCorrelatedReleases:
    """By everybody, who also knows in which rounds the canary took part, or, where coins are secret, its turns.

    C times the releases, each over its own clip bound, is C times the canary's messages and fresh noise.

    Attributes:
        plan: What is promised.
        cell: Of (client, public) or (record, public).
        worlds: What is told apart.
        noise: As the plan states it.
    """

    plan: Plan
    cell: Guarantee
    worlds: ClientWorlds
    noise: CorrelatedNoise

    @cached_property
    def curve(self) -> TradeOff | None:
        """A normal one; under secret coins that of the turns."""
        if self._rate == 1:
            return normal_curve(self.cell)
        return SampledCurve(
            phases=tuple(released(self.plan.privacy.phases)),
            neighbours="replace-one" if self.worlds.other else "add-remove",
            delta=self.cell.delta,
        )

    def ratio(self, seen: Observed) -> float:
        """Return the log-likelihood ratio of all rounds together.

        Raises:
            ValueError: A round released nothing: correlated noise has no such rounds.
        """
        totals = [release.total for release in seen.releases if release.total is not None]
        if len(totals) < len(seen.releases):
            raise ValueError("a round of correlated noise released nothing")
        scales = [each.deviation / deviation for each, deviation in zip(seen.releases, self._deviations, strict=True)]
        values = self._multiplied([total / scale for total, scale in zip(totals, scales, strict=True)])
        total = 0.0
        for one in (True, False):
            sent = [
                self._messages.message(release, one) / scale
                for release, scale in zip(seen.releases, scales, strict=True)
            ]
            loss = self._known_rounds(values, sent, seen) if self._rate == 1 else self._turns(values, sent)
            total += loss if one else -loss
        return total

    def _known_rounds(self, values: Tensor, sent: list[Tensor], seen: Observed) -> float:
        """The canary's messages in the rounds that it was in, against nothing."""
        there = [CANARY in cohort.clients for cohort, _ in seen.sums]
        moved = self._multiplied([message * part for message, part in zip(sent, there, strict=True)])
        return over_nothing(values.flatten(), moved.flatten(), 1.0)

    def _turns(self, values: Tensor, sent: list[Tensor]) -> float:
        """Summed over its turns, each a mixture over whether it joined."""
        total, apart = 0.0, self.noise.separation
        for turn in range(CANARY % apart, len(sent), apart):
            rows = slice(turn, turn + apart)
            moved = self._matrix[rows, turn, None] * sent[turn]
            loss = over_nothing(values[rows].flatten(), moved.flatten(), 1.0)
            total += float(np.logaddexp(math.log1p(-self._rate), math.log(self._rate) + loss))
        return total

    @property
    def _rate(self) -> float:
        return self.plan.privacy.at(0).rate

    def _multiplied(self, rounds: list[Tensor]) -> Tensor:
        """[T, d]: C times them."""
        return self._matrix @ torch.stack(rounds)

    @cached_property
    def _matrix(self) -> Tensor:
        c = torch.from_numpy(self.noise.coefficients(self.plan.privacy.rounds))
        lags = torch.arange(len(c))[:, None] - torch.arange(len(c))
        return torch.where(lags < 0, 0.0, c[lags.clamp(min=0)])

    @cached_property
    def _deviations(self) -> list[float]:
        """Deviation of the noise of each round, over that of fresh noise."""
        return list(map(float, noise_deviations(self.noise.coefficients(self.plan.privacy.rounds))))

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)
