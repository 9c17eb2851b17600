"""A client's side of secure aggregation over the wire: the state machine of secure_aggregation, asked by phases."""

from hashlib import sha256

import numpy as np

from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.federation.client.client_state import asked_digest
from dpfedmeta.federation.client.signed_participation import Signed, SignedParticipation
from dpfedmeta.federation.wire_format import Attempt, Start
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.protocol_client import Client
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.round_parameters import Identities, Round


def round_of(signed: Signed, attempt: Attempt, protocol: int, start: Start) -> Round:
    """Build the parameters that all parties of one attempt at the protocol share; each computes them from the plan.

    Seat i belongs to the i-th of the invited clients, with the identity that the plan's roster has for it. The task is
    a parameter too: clients that were given different tasks cannot read each other's messages, so no sum mixes answers
    to different questions.

    Raises:
        Refused: The plan does not allow a cohort of this size.
    """
    invited = start.invited
    mark = b"".join(part.to_bytes(8, "big") for part in attempt.again)
    return Round(
        run=sha256(signed.digest + sha256(start.task).digest() + mark).digest(),
        round=attempt.round,
        attempt=protocol,
        agreement=signed.agreement(attempt.round, len(invited)),
        identities=Identities(keys={seat: signed.roster[number] for seat, number in enumerate(invited)}),
        server=signed.server,
    )


class MaskedRound:
    """State of one client in one attempt at the protocol of secure aggregation.

    Args:
        joined: The run or analysis that the client takes part in.
        attempt: The round, and which attempt at it.
        protocol: Number of the attempt at the protocol; it only grows.
        start: Invited clients, and their task.
        identity: The client's private key.

    Raises:
        Refused: The client is not invited, or the plan does not allow a cohort of this size.
    """

    def __init__(
        self, joined: SignedParticipation, attempt: Attempt, protocol: int, start: Start, identity: bytes
    ) -> None:
        if joined.number not in start.invited:
            raise Refused(f"round {attempt.round}: this client was asked, but it is not on the list of invited clients")
        self.place = (joined.signed.run, attempt.key, protocol)
        self.task, self.asked = start.task, asked_digest(start.task, start.invited)
        self._joined, self._attempt, self._invited = joined, attempt, start.invited
        self._round = round_of(joined.signed, attempt, protocol, start)
        self._seat = start.invited.index(joined.number)
        self._client = Client(round_=self._round, seat=self._seat, identity=identity)
        self._consented = False
        self.agreed = False

    def answer(self, phase: ProtocolPhase, said: bytes) -> bytes:
        """Return the client's message of a phase.

        Raises:
            Refused: Clients do not speak in this phase, an earlier phase is missing, or other survivors of this vector
                were agreed to before.
            Aborted: See the client's state machine in secure_aggregation.
        """
        if phase is ProtocolPhase.KEYS:
            return self._client.advertise()
        if phase is ProtocolPhase.SHARES:
            return self._client.share(said)
        if phase is ProtocolPhase.AGREE:
            return self._agree(said)
        if phase is ProtocolPhase.MASKED and self.agreed:
            return self._client.mask(said, self._vector())
        if phase is ProtocolPhase.CONSENT:
            return self._consent(said)
        if phase is not ProtocolPhase.REVEAL or not self._consented:
            raise Refused(f"a step of phase {phase.name}, which is not due now")
        return self._client.unmask(said)

    def _agree(self, said: bytes) -> bytes:
        """A signature on who shared, among whom all are whose survival was signed before: the vector is the same."""
        signature, sharers = self._client.agree(said), self._client.sharers
        assert sharers is not None
        before = self._joined.kept.survivors(self._attempt)
        if before is not None and not before <= self._identities(sharers):
            raise self._others()
        self.agreed = True
        return signature

    def _consent(self, said: bytes) -> bytes:
        """A signature on one set of survivors of a vector, whatever the attempt; it is on disk before it leaves."""
        signature, survivors = self._client.consent(said), self._client.survivors
        assert survivors is not None
        if not self._joined.kept.may_reveal(self._attempt, self._identities(survivors)):
            raise self._others()
        self._consented = True
        return signature

    def _identities(self, seats: frozenset[int]) -> frozenset[bytes]:
        return frozenset(self._round.identities.keys[seat] for seat in seats)

    def _others(self) -> Refused:
        return Refused(
            f"round {self._attempt.round}: other survivors were agreed to already; the difference of two sums would "
            "give a client away. A further attempt, which is charged, has a vector and noise of its own"
        )

    def _vector(self) -> IntArray:
        invited = len(self._invited)
        kept = self._joined.kept.once(
            self._attempt,
            self.asked,
            lambda: self._joined.whole(self.task, self._attempt, invited).astype("<u4").tobytes(),
        )
        return np.frombuffer(kept, dtype="<u4").astype(np.int64)
