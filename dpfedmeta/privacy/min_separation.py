"""The sampler of a plan's rounds; under correlated noise, one in which clients rest between the rounds they join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.participation_pattern import Spacing, joining_rates
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import spacing_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort, Sampler, sampler_of


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


def planned_sampler(plan: PrivacyPlan, round_: int) -> Sampler:
    """Return the sampler that draws the cohort of this round: the one that the accountant assumes."""
    spacing = spacing_of(plan)
    if spacing is None or plan.sampler == "cyclic":
        return sampler_of(plan.at(round_), plan.max_participations)
    rates = joining_rates(plan.clients, plan.cohort, plan.rounds, spacing)
    return SpacedSampler(clients=plan.clients, rates=rates, spacing=spacing)
