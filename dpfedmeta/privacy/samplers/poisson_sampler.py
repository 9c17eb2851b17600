"""Independent coins, with a participation cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort


@dataclass(frozen=True, kw_only=True)
class PoissonSampler:
    """Every client takes part independently with probability q = cohort / clients.

    Attributes:
        clients: N.
        cohort: L = qN, the public expectation.
        max_participations: R; a client that took part R times is left out. None: no cap.
        largest: M; surplus clients are dropped at random before anybody is invited. None: no limit.

    Guarantee:
        Given the past, each client is included independently with probability at most q. Dropping above M
        has probability beta (see accounting), which every public cell takes off its delta.
    """

    clients: int
    cohort: float
    max_participations: int | None = None
    largest: int | None = None

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> PoissonSampler:
        """For rounds that cost this."""
        return cls(
            clients=constants.clients,
            cohort=constants.cohort,
            max_participations=max_participations,
            largest=constants.largest_cohort,
        )

    @property
    def rate(self) -> float:
        """Q."""
        return self.cohort / self.clients

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Memory and time grow with L, not with N.

        A Binomial(N, q) count of distinct uniform clients is the same distribution as N independent coins.
        """
        size = generator.binomial(self.clients, self.rate)
        drawn = generator.sample(self.clients, size)
        drawn = _below_cap(drawn, self.max_participations, participations)
        if self.largest is not None:
            drawn = drawn[: self.largest]  # the sample is in random order
        return Cohort(round=round_, clients=np.sort(drawn))


def _below_cap(drawn: IntArray, cap: int | None, participations: Mapping[int, int]) -> IntArray:
    if cap is None:
        return drawn
    return np.asarray([c for c in drawn.tolist() if participations.get(c, 0) < cap], dtype=np.int64)


MEMBER = PoissonSampler
