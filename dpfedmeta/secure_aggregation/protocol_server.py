"""The server of one round: a state machine over bytes, which learns who took part and the sum."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.secure_aggregation.client_checks import consent
from dpfedmeta.secure_aggregation.crypto import masks, pairwise
from dpfedmeta.secure_aggregation.crypto import neighbour_graph as graph
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity, check_public, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted, Refused
from dpfedmeta.secure_aggregation.crypto.share_dealing import SECRET, Dealings, Fault
from dpfedmeta.secure_aggregation.crypto.unmasking import Map, corrections, missing_secrets, one_after_the_other
from dpfedmeta.secure_aggregation.payloads import (
    Agree,
    Ciphertexts,
    KeyList,
    Keys,
    Kind,
    Masked,
    Reveal,
    ShareList,
    Signatures,
    Survivors,
)
from dpfedmeta.secure_aggregation.protocol_messages import (
    EVERYONE,
    SERVER,
    ProtocolPhase,
    header,
    opened,
    sender_of,
    signed,
)
from dpfedmeta.secure_aggregation.round_parameters import Round


@dataclass(frozen=True, kw_only=True)
class Sum:
    """Release of a round.

    Attributes:
        total: The survivors' vectors added up modulo 2^bits, shape [dimension], from 0 to 2^bits - 1.
        survivors: Seats whose vectors are in it, in ascending order.
    """

    total: npt.NDArray[np.uint32]
    survivors: tuple[int, ...]


class Server:
    """The server: `receive` what clients send in a phase, `close` the phase, send what it returns, and so on to `sum`.

    When a phase is closed is the caller's choice: when everybody has answered or a time is over. Who has not answered
    by then has fallen silent.

    Args:
        round_: What was agreed.
        identity: The server's private Ed25519 key, 32 bytes.

    Raises:
        InputError: A key of the wrong size, or another one than agreed.
    """

    def __init__(self, *, round_: Round, identity: bytes) -> None:
        self._identity = Identity(identity)
        if self._identity.public != round_.server:
            raise InputError("identity: is not the server's key of this round")
        self._round, self._agreement = round_, round_.agreement
        self.phase = ProtocolPhase.KEYS
        self._why: str | None = None
        self._bound = b""
        self._seen: set[int] = set()  # in this phase
        self._keys: dict[int, tuple[Keys, bytes]] = {}
        self._graph: dict[int, list[int]] = {}
        self._dealings = Dealings()
        self._agreed: dict[int, bytes] = {}
        self._masked = np.zeros(self._agreement.dimension, dtype=masks.word(self._agreement.bits))
        self._survivors: set[int] = set()
        self._told: Survivors | None = None
        self._consents: dict[int, bytes] = {}
        self._revealed: set[int] = set()
        self._done = False

    def receive(self, message: bytes) -> int:
        """Accept one client's message of this phase, in any order, and return the client's seat.

        Raises:
            Refused: It is not accepted, and nothing has changed.
            Aborted: The round is over.
        """
        self._check_running()
        sender = sender_of(message)
        if sender not in self._expected():
            raise Refused(f"seat {sender} has no message to send in phase {self.phase.name}")
        if sender in self._seen:
            raise Refused(f"a second message of seat {sender} in phase {self.phase.name}")
        recipient = EVERYONE if self.phase in (ProtocolPhase.KEYS, ProtocolPhase.CONSENT) else SERVER
        identity = self._round.identities.keys[sender]
        body = opened(self._round, self.phase, sender, recipient, message, identity, self._bound)
        take = {
            ProtocolPhase.KEYS: self._take_keys,
            ProtocolPhase.SHARES: self._take_shares,
            ProtocolPhase.AGREE: self._take_agree,
            ProtocolPhase.MASKED: self._take_masked,
            ProtocolPhase.CONSENT: self._take_consent,
            ProtocolPhase.REVEAL: self._take_reveal,
        }[self.phase]
        take(sender, body, message[-SIGNATURE_BYTES:])
        self._seen.add(sender)
        return sender

    def _expected(self) -> Collection[int]:
        if self._done:
            return set()
        senders: dict[ProtocolPhase, Collection[int]] = {
            ProtocolPhase.KEYS: range(self._agreement.clients),
            ProtocolPhase.SHARES: self._keys,
            ProtocolPhase.AGREE: self._dealings.dealt,
            ProtocolPhase.MASKED: self._agreed if self._agreement.malicious else self._dealings.dealt,
            ProtocolPhase.CONSENT: self._survivors,
            ProtocolPhase.REVEAL: self._survivors,
        }
        return senders[self.phase]

    def _take_keys(self, sender: int, body: bytes, signature: bytes) -> None:
        keys = Keys.decode(body)
        if keys.identity != self._round.identities.keys[sender]:
            raise Refused(f"the identity of seat {sender} is not the listed one")
        for key in (keys.mask_key, keys.share_key):
            check_public(key)
        self._keys[sender] = (keys, signature)

    def _take_shares(self, sender: int, body: bytes, signature: bytes) -> None:
        listed = Ciphertexts.decode(body)
        if [dealt.seat for dealt in listed.entries] != self._graph[sender]:
            raise Refused(f"seat {sender} did not send shares to exactly its neighbours")
        self._dealings.dealt[sender] = {dealt.seat: dealt for dealt in listed.entries}

    def _take_agree(self, sender: int, body: bytes, signature: bytes) -> None:
        signed = self._round.digest + self._bound + header(self._round, ProtocolPhase.AGREE, sender, EVERYONE)
        agree = Agree.decode(body)
        if not signed_by(self._keys[sender][0].identity, agree.signature, signed):
            raise Refused(f"seat {sender} signed another list of who shared")
        self._dealings.reject(sender, agree.rejected)
        self._agreed[sender] = agree.signature

    def _take_masked(self, sender: int, body: bytes, signature: bytes) -> None:
        self._masked += Masked.decode(body, self._agreement).words
        self._survivors.add(sender)

    def _take_consent(self, sender: int, body: bytes, signature: bytes) -> None:
        if self._told is None or body != consent(self._told, self._agreement):
            raise Refused(f"seat {sender} signed another list of survivors")
        self._consents[sender] = signature

    def _take_reveal(self, sender: int, body: bytes, signature: bytes) -> None:
        revealed = Reveal.decode(body)
        wanted = [
            (seat, Kind.SEED if seat in self._survivors else Kind.KEY)
            for seat in self._graph[sender]
            if seat in self._dealings.dealt
        ]
        self._dealings.reveal(sender, wanted, revealed)
        self._revealed.add(sender)

    def close(self) -> dict[int, bytes]:
        """Ends the phase; what to send to whom for the next one. Nothing more after the last phase: `sum`.

        Raises:
            Aborted: Too few are left.
        """
        self._check_running()
        answer = {
            ProtocolPhase.KEYS: self._close_keys,
            ProtocolPhase.SHARES: self._close_shares,
            ProtocolPhase.AGREE: self._close_agree,
            ProtocolPhase.MASKED: self._close_masked,
            ProtocolPhase.CONSENT: self._close_consent,
            ProtocolPhase.REVEAL: self._close_reveal,
        }[self.phase]()
        self._seen = set()
        return answer

    def _close_keys(self) -> dict[int, bytes]:
        everybody = sorted(self._keys)
        self._at_least(self._agreement.enough, len(everybody), "clients")
        listed = self._key_list(everybody)
        whole = listed if self._agreement.malicious else None
        rows = graph.neighbours(
            pairwise.graph_seed(self._round, whole), self._agreement.clients, self._agreement.degree
        )
        there = set(everybody)
        self._graph = {seat: [other for other in rows[seat].tolist() if other in there] for seat in everybody}
        sent = {
            seat: (whole or self._key_list(self._graph[seat])).encode()
            for seat in everybody
            if len(self._graph[seat]) >= self._agreement.threshold
        }
        answer = self._to_all(ProtocolPhase.KEY_LIST, sent)
        self._bound = self._dealings.bound = pairwise.bound_to(self._round, whole)
        self.phase = ProtocolPhase.SHARES
        return answer

    def _key_list(self, seats: Iterable[int]) -> KeyList:
        return KeyList(
            tuple((seat, keys.encoded, signature) for seat in seats for keys, signature in (self._keys[seat],))
        )

    def _close_shares(self) -> dict[int, bytes]:
        around = self._well_connected()
        dealt = self._dealings.dealt = {seat: self._dealings.dealt[seat] for seat in around}
        self._at_least(self._agreement.enough, len(around), "clients who shared")
        sharers = frozenset(around)
        sent = {
            seat: ShareList(sharers, Ciphertexts(tuple(dealt[other][seat]._replace(seat=other) for other in others)))
            for seat, others in around.items()
        }
        answer = self._to_all(
            ProtocolPhase.SHARE_LIST, {seat: listed.encode(self._agreement) for seat, listed in sent.items()}
        )
        self._bound = pairwise.bound_to_sharers(self._bound, sharers)
        self.phase = ProtocolPhase.AGREE if self._agreement.malicious else ProtocolPhase.MASKED
        return answer

    def _well_connected(self) -> dict[int, list[int]]:
        """Return the clients that shared and have t neighbours that did, with these neighbours.

        The others are left out, so that no client masks with one whose secrets cannot be put together.
        """
        around = {seat: self._graph[seat] for seat in sorted(self._dealings.dealt)}
        while True:
            there = {seat: [other for other in others if other in around] for seat, others in around.items()}
            kept = {seat: others for seat, others in there.items() if len(others) >= self._agreement.threshold}
            if len(kept) == len(around):
                return kept
            around = kept

    def _close_agree(self) -> dict[int, bytes]:
        self._dealings.judge(self._agreement.colluding)
        body = self._quorum(self._agreed, "the list of who shared")
        for seat in self._dealings.dealt:
            # Nothing is masked yet: without its secret no sum would come of it.
            held = self._dealings.held(seat, self._agreed.keys())
            self._at_least(self._agreement.threshold, held, f"neighbours with usable shares of seat {seat}")
        self.phase = ProtocolPhase.MASKED
        return self._to_all(ProtocolPhase.AGREED, dict.fromkeys(sorted(self._agreed), body))

    def _quorum(self, signatures: Mapping[int, bytes], what: str) -> bytes:
        quorum = self._agreement.quorum
        self._at_least(quorum, len(signatures), f"signatures on {what}")
        return Signatures(tuple(sorted(signatures.items())[:quorum])).encode()

    def _close_masked(self) -> dict[int, bytes]:
        self._at_least(self._agreement.enough, len(self._survivors), "survivors")
        self._told = Survivors(frozenset(self._survivors), frozenset(self._dealings.dealt.keys() - self._survivors))
        body = self._told.encode(self._agreement)
        self.phase = ProtocolPhase.CONSENT if self._agreement.malicious else ProtocolPhase.REVEAL
        return self._to_all(ProtocolPhase.SURVIVORS, dict.fromkeys(sorted(self._survivors), body))

    def _close_consent(self) -> dict[int, bytes]:
        body = self._quorum(self._consents, "the survivors")
        self.phase = ProtocolPhase.REVEAL
        return self._to_all(ProtocolPhase.CONSENTS, dict.fromkeys(sorted(self._consents), body))

    def _close_reveal(self) -> dict[int, bytes]:
        self._at_least(self._agreement.threshold, len(self._revealed), "clients who revealed")
        self._done = True
        return {}

    def sum(self, run: Map = one_after_the_other) -> Sum:
        """The sum, once the last phase is closed.

        Args:
            run: Who computes masks; this process by default.

        Guarantee:
            Equal to the survivors' vectors added up modulo 2^bits, where clients followed the protocol. No sum leaves a
            round that failed.

        Raises:
            Aborted: Too few shares of somebody's secret, or wrong ones.
        """
        self._check_running()
        if not self._done:
            raise Aborted(f"no sum before phase {self.phase.name} is closed")
        keys = {seat: keys for seat, (keys, _) in self._keys.items()}
        missing = list(missing_secrets(self._dealings, keys, self._graph, frozenset(self._survivors)))
        for task in missing:
            what = f"right shares of the {SECRET[task.kind]} of seat {task.seat}"
            self._at_least(self._agreement.threshold, len(task.shares), what)
        total, lost = self._masked.copy(), list[tuple[int, Kind]]()
        for found in corrections(self._round, self._bound, missing, run):
            total -= found.total
            lost += found.lost
            for seat, kind in (*found.corrected, *found.lost):
                self._dealings.misdealt(seat, kind)
        if lost:
            seat, kind = min(lost)
            self._abort(f"the shares of the {SECRET[kind]} of seat {seat} do not give what it showed")
        reduced = masks.reduced(total, self._agreement.bits).astype(np.uint32)
        return Sum(total=reduced, survivors=tuple(sorted(self._survivors)))

    @property
    def survivors(self) -> frozenset[int]:
        """Seats that have sent a masked vector so far."""
        return frozenset(self._survivors)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Faults found in clients' shares so far, for the operator of the server."""
        return tuple(self._dealings.faults)

    def _to_all(self, phase: ProtocolPhase, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        return {
            seat: signed(self._round, phase, SERVER, seat, body, self._identity, self._bound)
            for seat, body in bodies.items()
        }

    def _at_least(self, wanted: int, got: int, what: str) -> None:
        if got < wanted:
            self._abort(f"{got} {what}, at least {wanted} are needed")

    def _abort(self, why: str) -> None:
        self._why = why
        raise Aborted(why)

    def _check_running(self) -> None:
        if self._why is not None:
            raise Aborted(f"the round is over: {self._why}")
