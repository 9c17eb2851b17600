"""Interfaces of what a server signs and a client takes part in: rounds of training, or an analysis."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.federation.client.client_budget import Promise
from dpfedmeta.federation.client.client_state import FreshOf, Kept
from dpfedmeta.federation.offers.plan_limits import PlanLimits
from dpfedmeta.federation.wire_format import Attempt
from dpfedmeta.secure_aggregation.round_parameters import Agreement


class Signed(Protocol):
    """Signed offer to clients, as both sides hold it: a plan or an analysis."""

    @property
    def text(self) -> bytes:
        """Text that is signed."""
        ...

    @property
    def signature(self) -> bytes:
        """The server's."""
        ...

    @property
    def digest(self) -> bytes:
        """SHA-256 of the text, by which questions name the offer."""
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
        """Privacy plan that a participation is charged as."""
        ...

    @property
    def name(self) -> str:
        """Digest of the offer without its run, under which it may be offered again."""
        ...

    @property
    def masked(self) -> bool:
        """True where sums are computed by secure aggregation."""
        ...

    def agreement(self, round_: int, invited: int) -> Agreement:
        """The numbers of secure aggregation.

        Raises:
            Refused: A cohort of a size that is not counted with.
        """
        ...

    def words(self) -> Iterator[str]:
        """Yield log lines that describe the offer."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientSetup:
    """A client that looks at an offer: who it is, what it promises, and where its data and its state are.

    Attributes:
        number: Its number.
        images: Its folder of images.
        folder: Its own folder, for what it keeps.
        promise: What it promises.
        noise_seed: Given, in a simulation; None: a key is drawn once for the run, and kept.
        fresh_of: What the streams of a charged attempt are keyed by.
        log: Told, for the owner alone, why there is nothing but noise to send.
        claimed: Called once its data are read; what it refuses is as data that cannot be read.
    """

    number: int
    images: Path
    folder: Path
    promise: Promise
    noise_seed: int | None
    fresh_of: FreshOf
    log: Callable[[str], None]
    claimed: Callable[[], object] = lambda: None


class SignedParticipation(Protocol):
    """Participation of a client in a training run or an analysis."""

    @property
    def signed(self) -> Signed:
        """The signed offer."""
        ...

    @property
    def number(self) -> int:
        """The client's."""
        ...

    @property
    def limits(self) -> PlanLimits:
        """Rounds that the plan itself allows this client."""
        ...

    @property
    def kept(self) -> Kept:
        """State that must survive a restart."""
        ...

    def check(self, task: bytes) -> None:
        """Check a task before it is charged, whatever data the client holds.

        Raises:
            Refused: The client cannot be given this task.
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
        """Yield log lines on the cost of taking part and on what would leave the machine."""
        ...

    def sent_words(self, ledger: ClientLedger, promise: Promise, attempt: Attempt, task: bytes, what: str) -> str:
        """Return a log line on what left the machine."""
        ...
