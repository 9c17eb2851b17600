"""The attack on correlated noise, whose rounds are one release, or one for each turn of a client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise
from dpfedmeta.accounting.release_costs import released
from dpfedmeta.auditing.expected_messages import Known, over_nothing
from dpfedmeta.auditing.neighbouring_runs import CANARY, ClientWorlds, Observed
from dpfedmeta.auditing.trade_off_function import SampledCurve, TradeOff, normal_curve
from dpfedmeta.planning.run_plan import Plan


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
