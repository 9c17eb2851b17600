"""Who takes part in a round: independent coins, with a participation cap, or a fixed number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

import numpy as np

from dpfedmeta.accounting.events import Event
from dpfedmeta.randomness import IntArray, SecretGenerator


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """SECRET: the clients of one round. Its size is secret too and no denominator depends on it.

    Attributes:
        round: Number of the round, from 0.
        clients: Distinct client numbers in ascending order, so that sums have a fixed order.
        again: What a further attempt at the round adds to the keys of its noise; () for the first.
        invited: How many were invited, where fewer answer; None: all of them did.
    """

    round: int
    clients: IntArray
    again: tuple[int, ...] = ()
    invited: int | None = None

    @property
    def asked(self) -> int:
        """How many were invited."""
        return len(self.clients) if self.invited is None else self.invited


NEVER: Mapping[int, int] = MappingProxyType({})


class Sampler(Protocol):
    """Draws cohorts; which one it is decides how they are accounted for."""

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
    ) -> Cohort:
        """One cohort.

        Args:
            round_: Number of the round.
            participations: How often each client has taken part; absent means never.
            generator: The server's secret randomness of this round.
            latest: The latest round of each client, likewise.
        """
        ...


def sampler_of(constants: Event, max_participations: int | None) -> Sampler:
    """The sampler that the accountant assumes for these rounds."""
    if constants.sampler == "fixed":
        return FixedSizeSampler(clients=constants.clients, cohort=int(constants.cohort))
    return PoissonSampler(
        clients=constants.clients,
        cohort=constants.cohort,
        max_participations=max_participations,
        largest=constants.largest_cohort,
    )


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

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
    ) -> Cohort:
        """One cohort. Memory and time grow with L, not with N.

        A Binomial(N, q) count of distinct uniform clients is the same distribution as N independent coins.
        """
        size = generator.binomial(self.clients, self.rate)
        drawn = generator.sample(self.clients, size)
        drawn = _below_cap(drawn, self.max_participations, participations)
        if self.largest is not None:
            drawn = drawn[: self.largest]  # the sample is in random order
        return Cohort(round=round_, clients=np.sort(drawn))


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampler:
    """Exactly L of the N clients, without replacement.

    Attributes:
        clients: N.
        cohort: L.

    Guarantee:
        A uniform subset of fixed size in each round, independent of all others. The accountant treats it as fixed-size
        sampling under replace-one, never as Poisson. There is no participation cap here: it would make one client's
        history depend on another's.
    """

    clients: int
    cohort: int

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
    ) -> Cohort:
        """One cohort. Memory and time grow with L, not with N."""
        return Cohort(round=round_, clients=np.sort(generator.sample(self.clients, self.cohort)))


def _below_cap(drawn: IntArray, cap: int | None, participations: Mapping[int, int]) -> IntArray:
    if cap is None:
        return drawn
    return np.asarray([c for c in drawn.tolist() if participations.get(c, 0) < cap], dtype=np.int64)
