"""What a server signs and a client takes part in, whatever it is: rounds of training, or an analysis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.federation.kept import Kept
from dpfedmeta.federation.messages import Attempt
from dpfedmeta.federation.promise import Promise
from dpfedmeta.ledger.client_ledger import ClientLedger
from dpfedmeta.randomness import IntArray
from dpfedmeta.secure_aggregation.agreement import Agreement


class Signed(Protocol):
    """What is offered to clients, as both sides hold it."""

    @property
    def text(self) -> bytes:
        """What is signed."""
        ...

    @property
    def signature(self) -> bytes:
        """The server's."""
        ...

    @property
    def digest(self) -> bytes:
        """What questions name it by."""
        ...

    @property
    def run(self) -> bytes:
        """32 bytes that no other run has."""
        ...

    @property
    def server(self) -> bytes:
        """Public key of the server."""
        ...

    @property
    def roster(self) -> tuple[bytes, ...]:
        """Identities of the clients by number, where they have to know each other; else empty."""
        ...

    @property
    def privacy(self) -> PrivacyPlan:
        """What a participation is charged as."""
        ...

    @property
    def masked(self) -> bool:
        """Whether its sums are those of secure aggregation."""
        ...

    def agreement(self, round_: int, invited: int) -> Agreement:
        """The numbers of secure aggregation.

        Raises:
            Refused: A cohort of a size that is not counted with.
        """
        ...

    def words(self) -> Iterator[str]:
        """What is offered, for a client's log."""
        ...


class Taken(Protocol):
    """What a client holds of something that it takes part in."""

    @property
    def signed(self) -> Signed:
        """What was offered."""
        ...

    @property
    def number(self) -> int:
        """The client's."""
        ...

    @property
    def kept(self) -> Kept:
        """What must survive."""
        ...

    def check(self, task: bytes) -> None:
        """Whether it can be asked that; looked at before it is charged, and whatever the client holds.

        Raises:
            Refused: It cannot.
        """
        ...

    def whole(self, task: bytes, attempt: Attempt, invited: int) -> IntArray:
        """SECRET: what the client hands to secure aggregation, modulo 2^b.

        Args:
            task: What it computes from.
            attempt: At which round.
            invited: How many clients are invited; its share of the noise follows from it.

        Guarantee:
            Made for this attempt and this company alone, and what the plan charges counts with it.
        """
        ...

    def words(self, ledger: ClientLedger, promise: Promise) -> Iterator[str]:
        """What taking part would cost, and what would leave the machine."""
        ...

    def sent_words(self, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: bytes, what: str) -> str:
        """What left."""
        ...
