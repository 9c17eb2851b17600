"""The attack on correlated noise, whose rounds are one release."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dpfedmeta.accounting.correlated import noise_deviations
from dpfedmeta.accounting.correlated_noise import CorrelatedNoise
from dpfedmeta.accounting.guarantee import Guarantee
from dpfedmeta.auditing.known_messages import Known, over_nothing
from dpfedmeta.auditing.trade_off import GaussianCurve, normal_curve
from dpfedmeta.auditing.worlds import CANARY, Observed, Worlds
from dpfedmeta.planning.plan import Plan


@dataclass(kw_only=True, eq=False)
class OnCorrelatedReleases:
    """By everybody, who also knows in which rounds the canary took part.

    C times the releases, each over its own clip bound, is C times the canary's messages and fresh noise.

    Attributes:
        plan: What is promised.
        cell: Of (client, public) or (record, public).
        worlds: What is told apart.
        noise: As the plan states it.
    """

    plan: Plan
    cell: Guarantee
    worlds: Worlds
    noise: CorrelatedNoise

    @cached_property
    def curve(self) -> GaussianCurve:
        """A normal one."""
        return normal_curve(self.cell)

    def ratio(self, seen: Observed) -> float:
        """Of all rounds together.

        Raises:
            ValueError: A round released nothing: correlated noise has no such rounds.
        """
        totals = [release.total for release in seen.releases if release.total is not None]
        if len(totals) < len(seen.releases):
            raise ValueError("a round of correlated noise released nothing")
        scales = [each.deviation / deviation for each, deviation in zip(seen.releases, self._deviations, strict=True)]
        there = [CANARY in cohort.clients for cohort, _ in seen.sums]
        values = self._multiplied([total / scale for total, scale in zip(totals, scales, strict=True)])
        total = 0.0
        for one in (True, False):
            sent = [
                self._messages.message(release, one) / scale * took_part
                for release, scale, took_part in zip(seen.releases, scales, there, strict=True)
            ]
            loss = over_nothing(values.flatten(), self._multiplied(sent).flatten(), 1.0)
            total += loss if one else -loss
        return total

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
        """Of the noise of each round, over that of fresh noise."""
        return list(map(float, noise_deviations(self.noise.coefficients(self.plan.privacy.rounds))))

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)
