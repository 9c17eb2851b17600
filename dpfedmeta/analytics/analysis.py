"""Interface of an analysis: public constants, a client's answer, and the reading of the released sum."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator, SecretSource
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import ClientUnit

if TYPE_CHECKING:
    from dpfedmeta.analytics.client_answers import Held
    from dpfedmeta.analytics.public_context import Ground

FOLDER = "dpfedmeta.analytics.analyses"


@dataclass(frozen=True, kw_only=True, eq=False)
class PendingRelease:
    """SECRET: one release in the making, at the server.

    Attributes:
        plan: What it is charged as.
        cohort: Who is asked.
        source: The server's secret randomness; in a simulation the clients' too.
    """

    plan: PrivacyPlan
    cohort: Cohort
    source: SecretSource


@dataclass(frozen=True, kw_only=True, eq=False)
class Handing:
    """SECRET: one client's answer in the making, at the client.

    Attributes:
        plan: What the release is charged as.
        told: PUBLIC: what all clients are told besides the plan.
        held: What it holds.
        client: Its number.
        invited: How many are asked; its share of the noise follows from it.
        source: Its own secret randomness.
    """

    plan: PrivacyPlan
    told: bytes
    held: Held
    client: int
    invited: int
    source: SecretSource


@dataclass(frozen=True, kw_only=True)
class SumForm:
    """Form of what is added up: `parts` vectors of `length` whole numbers modulo 2^bits; public.

    `most`: how many clients' vectors it is made for; further ones are left out. None: any number.
    """

    bits: int
    length: int
    parts: int = 1
    most: int | None = None

    @property
    def dimension(self) -> int:
        """Numbers that a client hands over."""
        return self.length * self.parts


class Sums(Protocol):
    """SECRET: what secure aggregation gives the server."""

    @property
    def entered(self) -> int:
        """Number of clients' vectors in the sum."""
        ...

    def part(self, index: int) -> IntArray:
        """Return one part of the sum modulo 2^bits, [length]."""
        ...


class Analysis(Protocol):
    """A member of analyses/: a frozen dataclass of its own public options.

    What one client answers is a pure function of what it holds, to a vector of whole numbers, so that it can be asked
    for over a wire as well.
    """

    default_epsilon: ClassVar[float]
    server_sees: ClassVar[str]
    """In words, what the server sees that the public does not."""
    asks: ClassVar[str]
    """In words, for the log of a client: what its vector is computed from."""
    by_names: ClassVar[bool]
    """Whether it asks for names, which not all clients keep."""

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """The plan of its release, from one that says who is asked, how often, and at which delta."""
        ...

    def check(self, ground: Ground) -> None:
        """Refuse before the charge what no client could answer; public values alone decide over it.

        Raises:
            InputError: Something is missing.
            RefusedPlan: Clients of this kind have no such answer.
        """
        ...

    def form(self, plan: PrivacyPlan) -> SumForm:
        """Return the form of the sum of the clients' vectors."""
        ...

    def told(self, asking: PendingRelease, ground: Ground) -> bytes:
        """PUBLIC: what clients are told besides the plan."""
        ...

    def check_told(self, told: bytes, plan: PrivacyPlan, held: Held) -> None:
        """Check the bytes that a client is told, before it is charged and whatever data it holds.

        Raises:
            InputError: A client cannot be told this.
        """
        ...

    def sent(self, handing: Handing, part: int) -> IntArray:
        """SECRET: one part of what a client hands to secure aggregation, [length].

        Guarantee:
            The release that the plan charges counts with it: it is no longer than the plan says, and carries the
            client's share of the noise where the plan has the clients make it, whatever the client holds.
        """
        ...

    def longest(self, plan: PrivacyPlan) -> float:
        """Return the largest L2 norm by which one client moves what is released."""
        ...

    def released(
        self, asking: PendingRelease, told: bytes, sums: Sums, noise: SecretGenerator
    ) -> Released[ClientUnit, Any]:
        """Release the sum through a mechanism, undivided.

        Args:
            asking: What is charged, and who is asked.
            told: What they were told.
            sums: What secure aggregation gives.
            noise: The server's noise for this attempt.

        Guarantee:
            It is the release that the plan charges; `Journal.release` compares what it states with the charge.
        """
        ...

    def result(self, plan: PrivacyPlan, released: Released[ClientUnit, Any]) -> dict[str, Any]:
        """Read the result from the release: JSON values, all of them public, by post-processing alone."""
        ...

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """The result for people, a line each."""
        ...
