"""Who takes part in a round: Poisson sampling with a participation cap."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.randomness import IntArray, SecretGenerator


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """SECRET: the clients of one round. Its size is secret too and no denominator depends on it.

    Attributes:
        round: Number of the round, from 0.
        clients: Distinct client numbers in ascending order, so that sums have a fixed order.
    """

    round: int
    clients: IntArray


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

    @property
    def rate(self) -> float:
        """Q."""
        return self.cohort / self.clients

    def draw(self, round_: int, participations: Mapping[int, int], generator: SecretGenerator) -> Cohort:
        """One cohort. Memory and time grow with L, not with N.

        A Binomial(N, q) count of distinct uniform clients is the same distribution as N independent coins.
        """
        size = generator.binomial(self.clients, self.rate)
        drawn = generator.sample(self.clients, size)
        if self.max_participations is not None:
            cap = self.max_participations
            drawn = np.asarray([c for c in drawn.tolist() if participations.get(c, 0) < cap], dtype=np.int64)
        if self.largest is not None:
            drawn = drawn[: self.largest]  # the sample is in random order
        return Cohort(round=round_, clients=np.sort(drawn))
