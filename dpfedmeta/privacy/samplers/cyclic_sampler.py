"""Groups of clients that take turns, and independent coins among those whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort


@dataclass(frozen=True, kw_only=True)
class CyclicSampler:
    """In round t the clients of group t mod b toss coins, each heads with probability q = b L / N.

    Choquette-Choo et al. 2023 (https://arxiv.org/abs/2306.08153), section 4. A client's group is its number mod b: it
    is public, fixed before training, and says nothing of data.

    Attributes:
        clients: N.
        rate: q.
        spacing: b, and R.

    Guarantee:
        Given the past, a client joins with probability at most q when its turn comes, whatever others do, and never
        in between. Who joined an attempt at a round stays away from further attempts at it, as its ledger would have
        it. Coins are secret; whose turn it is is not.
    """

    clients: int
    rate: float
    spacing: Spacing

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> CyclicSampler:
        """For rounds that cost this; the noise says how many groups there are, and counts with the cap.

        Raises:
            ValueError: It has no such noise.
        """
        if not isinstance(constants.noise, CorrelatedNoise):
            raise ValueError("cyclic sampling takes its groups from correlated noise, and there is none")
        return cls(clients=constants.clients, rate=constants.rate, spacing=constants.noise.spacing)

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Memory and time grow with L, not with N."""
        groups = self.spacing.separation
        group = round_ % groups
        members = len(range(group, self.clients, groups))
        drawn = group + groups * generator.sample(members, generator.binomial(members, self.rate))
        free = [c for c in drawn.tolist() if self.spacing.allows(round_, participations.get(c, 0), latest.get(c))]
        return Cohort(round=round_, clients=np.sort(np.asarray(free, dtype=np.int64)))


MEMBER = CyclicSampler
