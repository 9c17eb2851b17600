"""Sampler for correlated noise, in which clients rest between the rounds that they join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort


@dataclass(frozen=True, kw_only=True)
class SpacedSampler:
    """Every client that is free to join does so independently, with the probability that the plan fixes for the round.

    Attributes:
        clients: N.
        rates: By round: the expected cohort over the expected number of clients that are free to join.
        spacing: What each client keeps to.

    Guarantee:
        No client joins more rounds than the spacing allows, or closer together, over all attempts at all rounds.
        Whether it does depends on its own coins and its own past alone: other clients take part as they would without
        it.
    """

    clients: int
    rates: tuple[float, ...]
    spacing: Spacing

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Clients that are drawn but have to rest stay away, as if they were not drawn."""
        drawn = generator.sample(self.clients, generator.binomial(self.clients, self.rates[round_]))
        free = [c for c in drawn.tolist() if self.spacing.allows(round_, participations.get(c, 0), latest.get(c))]
        return Cohort(round=round_, clients=np.sort(np.asarray(free, dtype=np.int64)))
