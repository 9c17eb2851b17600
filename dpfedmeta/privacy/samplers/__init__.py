"""Samplers of the cohort of a round: one file for each, named as in population.sampler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.sampling import Sampling, sampling_of
from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.events import Event

SUFFIX = "_sampler"


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """SECRET: the clients of one round. Its size is secret too and no denominator depends on it.

    Attributes:
        round: Number of the round, from 0.
        clients: Distinct client numbers in ascending order, so that sums have a fixed order.
        again: What a further attempt at the round adds to the keys of its noise; () for the first.
        fresh: What the streams of this attempt are keyed by besides (ledger.charges.Charge.stream).
        invited: How many were invited, where fewer answer; None: all of them did.
    """

    round: int
    clients: IntArray
    again: tuple[int, ...] = ()
    fresh: bytes = b""
    invited: int | None = None

    @property
    def asked(self) -> int:
        """Number of clients that were invited."""
        return len(self.clients) if self.invited is None else self.invited


NEVER: Mapping[int, int] = MappingProxyType({})


class Sampler(Sampling):
    """Draws cohorts, and states how they are accounted for.

    A member is a frozen dataclass, its file's `MEMBER`, or package.module:name in `population.sampler`. Its class
    methods say what a plan of it is and what its rounds cost (`Sampling`); its instances draw.
    """

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> Sampler:
        """The sampler of rounds that cost this, with a participation cap or None."""
        raise NotImplementedError

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round.

        Args:
            round_: Number of the round.
            participations: Number of participations of each client so far; absent means none.
            generator: The server's secret randomness of this round.
            latest: Latest round of each client; absent means none.
            again: Whether the round had a cohort before, whose release may be known: this is a further attempt.
        """
        raise NotImplementedError


def sampler_of(constants: Event, max_participations: int | None) -> Sampler:
    """The sampler that the accountant assumes for these rounds.

    Raises:
        InputError: There is none of this name.
    """
    member = sampling_of(constants.sampler)
    assert issubclass(member, Sampler)
    return member.of(constants, max_participations)
