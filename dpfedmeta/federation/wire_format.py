"""Questions of the server and answers of clients as bytes, in one fixed layout; nothing else is accepted.

Both are a header, a body and an Ed25519 signature of the sender over header and body. All numbers are big-endian, but
for floats, which are little-endian as in memory.

    question   "DPFQ", version 2, kind 1, run 32, plan 32, recipient 32, round 4, attempt 4, mark 8
    answer     "DPFA", version 2, kind 1, SHA-256 of the question 32

A question names the plan that it counts on, whom it is for, and the round; an answer names its question. So neither can
stand for another one. What clients say to each other under secure aggregation is inside, in its own layout
(protocol_messages).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

# Another one signs and lays out otherwise, so nothing of it is understood here.
VERSION = 2
# The longest message that is looked at. A model of 10^8 weights is shorter.
MOST_BYTES = 2**29
_QUESTION, _ANSWER = struct.Struct(">4sHB32s32s32sIIQ"), struct.Struct(">4sHB32s")
_QUESTION_MAGIC, _ANSWER_MAGIC = b"DPFQ", b"DPFA"
_FLOATS: dict[int, np.dtype[np.floating[Any]]] = {4: np.dtype("<f4"), 8: np.dtype("<f8")}

LEAST_BOUND, MOST_BOUND = 1e-30, 1e30

Floats = npt.NDArray[np.floating[Any]]


class QuestionKind(IntEnum):
    """Kind of a question."""

    PLAN = 1  # to accept a plan
    VECTOR = 2  # a message, towards a server that sees messages
    PHASE = 3  # a message of the protocol of secure aggregation
    MODEL = 4  # to adapt the model that was learned


class Said(IntEnum):
    """Kind of an answer."""

    DECLINED = 0  # and no word more
    ACCEPTED = 1
    VECTOR = 2
    PHASE = 3
    ADAPTED = 4


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """Which attempt at which round of which run.

    Attributes:
        run: 32 bytes that no other run has.
        round: From 0.
        again: As Cohort.again: () for the first attempt, else (how often it was charged before, a mark).
    """

    run: bytes
    round: int
    again: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[int, ...]:
        """In the order in which a client meets them."""
        return (self.round, *self.again)


@dataclass(frozen=True, kw_only=True)
class Question:
    """Question of the server to one client.

    Attributes:
        asked: Kind of the question.
        attempt: The round, and which attempt at it; round 0 where there is none.
        plan: SHA-256 of the plan that it counts on.
        recipient: Identity of the client.
        body: Content, in the layout of its kind.
    """

    asked: QuestionKind
    attempt: Attempt
    plan: bytes
    recipient: bytes
    body: bytes

    def signed(self, server: Identity) -> bytes:
        """The whole message."""
        attempt, mark = (*self.attempt.again, 0, 0)[:2]
        front = _QUESTION.pack(
            *(_QUESTION_MAGIC, VERSION, self.asked, self.attempt.run, self.plan, self.recipient),
            *(self.attempt.round, attempt, mark),
        )
        return front + self.body + server.sign(front + self.body)

    @classmethod
    def opened(cls, message: bytes, server: bytes, recipient: bytes) -> Question:
        """A question of this server to this client.

        Raises:
            Refused: It is another one's, of another version, or not whole.
        """
        if not _QUESTION.size + SIGNATURE_BYTES <= len(message) <= MOST_BYTES:
            raise Refused(f"the question has a wrong length, {len(message):,} bytes")
        magic, version, asked, run, plan, named, round_, attempt, mark = _QUESTION.unpack_from(message)
        if magic != _QUESTION_MAGIC:
            raise Refused("this is not a question of a federation")
        if version != VERSION:
            raise Refused(f"the question has version {version} of the wire format; this client uses {VERSION}")
        if not signed_by(server, message[-SIGNATURE_BYTES:], message[:-SIGNATURE_BYTES]):
            raise Refused("the question is not signed by the server whose key this client holds")
        if named != recipient:
            raise Refused("the question is for another client")
        if asked not in tuple(QuestionKind):
            raise Refused(f"the question is of an unknown kind, {asked}")
        if mark and not attempt:
            raise Refused("the first attempt carries a mark, which only later ones may")
        again = (attempt, mark) if attempt else ()
        return cls(
            asked=QuestionKind(asked),
            attempt=Attempt(run=run, round=round_, again=again),
            plan=plan,
            recipient=named,
            body=message[_QUESTION.size : -SIGNATURE_BYTES],
        )


def answer(said: Said, question: bytes, body: bytes, client: Identity) -> bytes:
    """The whole message of a client."""
    front = _ANSWER.pack(_ANSWER_MAGIC, VERSION, said, sha256(question).digest())
    return front + body + client.sign(front + body)


def opened_answer(message: bytes, wanted: Said, question: bytes, client: bytes) -> bytes | None:
    """The body of an answer that must be this one; None: the client declined.

    Raises:
        Refused: It is another one, of another version or client, or not whole.
    """
    if not _ANSWER.size + SIGNATURE_BYTES <= len(message) <= MOST_BYTES:
        raise Refused(f"the answer has a wrong length, {len(message):,} bytes")
    magic, version, said, digest = _ANSWER.unpack_from(message)
    if magic != _ANSWER_MAGIC or version != VERSION:
        raise Refused("this is not an answer of this version")
    if digest != sha256(question).digest():
        raise Refused("the answer is to another question")
    if not signed_by(client, message[-SIGNATURE_BYTES:], message[:-SIGNATURE_BYTES]):
        raise Refused("the answer is not signed by the client that was asked")
    body = message[_ANSWER.size : -SIGNATURE_BYTES]
    if said == Said.DECLINED and not body:
        return None
    if said != wanted:
        raise Refused(f"the answer is of the wrong kind, {said}")
    return body


def packed_floats(values: Floats) -> bytes:
    """float32 or float64 [d], 4 or 8 bytes each."""
    return values.astype(_FLOATS[values.dtype.itemsize], copy=False).tobytes()


def unpacked_floats(body: bytes, count: int) -> Floats:
    """The inverse; the length says which of the two they are.

    Raises:
        Refused: Another number of them.
    """
    size, rest = divmod(len(body), count)
    if rest or size not in _FLOATS:
        raise Refused(f"got {len(body):,} bytes, expected {count:,} numbers")
    return np.frombuffer(body, dtype=_FLOATS[size])


@dataclass(frozen=True, kw_only=True)
class RoundTask:
    """Input of a client's computation: the released model and the clip bound.

    Attributes:
        bound: C, or C_q.
        model: Weights that are learned, [d].
    """

    bound: float
    model: Floats

    def encode(self) -> bytes:
        """The body."""
        return struct.pack("<d", self.bound) + packed_floats(self.model)

    @classmethod
    def decode(cls, body: bytes, count: int) -> RoundTask:
        """Decode the body of a question.

        Raises:
            Refused: Another number of weights, one that is not finite, or a bound that bounds nothing, or is so small
                or large that clipped vectors and their noise are no floating-point numbers of the usual precision.
        """
        if len(body) < 8:
            raise Refused("the model is cut short")
        (bound,) = struct.unpack_from("<d", body)
        model = unpacked_floats(body[8:], count)
        if not LEAST_BOUND <= bound <= MOST_BOUND:
            raise Refused(f"the clip bound {bound} is out of range")
        if not np.isfinite(model).all():
            raise Refused("the model holds values that are not finite")
        return cls(bound=bound, model=model)


@dataclass(frozen=True, kw_only=True)
class ProtocolStep:
    """Message of secure aggregation to a client: number of the attempt at the protocol, phase and content.

    Attributes:
        protocol: Number of this attempt at the protocol; it only grows.
        phase: protocol_messages.ProtocolPhase in which the client speaks.
        said: The server's message of the phase before; in the first phase a `Start`.
    """

    head = struct.Struct(">IB")

    protocol: int
    phase: int
    said: bytes

    def encode(self) -> bytes:
        """The body."""
        return self.head.pack(self.protocol, self.phase) + self.said

    @classmethod
    def decode(cls, body: bytes) -> ProtocolStep:
        """Decode the body of a question.

        Raises:
            Refused: It is cut short.
        """
        if len(body) < cls.head.size:
            raise Refused("a step of the protocol is cut short")
        protocol, phase = cls.head.unpack_from(body)
        return cls(protocol=protocol, phase=phase, said=body[cls.head.size :])


@dataclass(frozen=True, kw_only=True)
class Start:
    """Opening message of secure aggregation: the invited clients with their seats, and their task.

    Attributes:
        invited: Numbers of the invited clients, ascending: seat i belongs to the i-th of them.
        task: Input of each client's computation: a `RoundTask`, or what an analysis tells.
    """

    invited: tuple[int, ...]
    task: bytes

    def encode(self) -> bytes:
        """Encode the server's message of the first phase."""
        numbers = np.asarray(self.invited, dtype=">u4")
        return len(numbers).to_bytes(4, "big") + numbers.tobytes() + self.task

    @classmethod
    def decode(cls, said: bytes, clients: int) -> Start:
        """Decode the server's message of the first phase.

        Raises:
            Refused: Too few or too many clients are invited, a number is unknown, repeated or out of order, or the
                message is cut short.
        """
        size = int.from_bytes(said[:4], "big")
        if not 2 <= size <= clients or len(said) < 4 + 4 * size:
            raise Refused(f"the list of {size} invited clients is invalid (there are {clients} clients)")
        invited = np.frombuffer(said, dtype=">u4", count=size, offset=4).astype(np.int64)
        if not (np.diff(invited) > 0).all() or invited[-1] >= clients:
            raise Refused("the list of invited clients names unknown clients, or is not in order")
        return cls(invited=tuple(invited.tolist()), task=said[4 + 4 * size :])


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A plan as it is sent: to which number, under whose signature.

    Attributes:
        number: The client's, from 0.
        signature: The server's, of the plan alone; it is the same for all clients.
        text: The plan.
    """

    number: int
    signature: bytes
    text: bytes

    def encode(self) -> bytes:
        """The body."""
        return self.number.to_bytes(4, "big") + self.signature + self.text

    @classmethod
    def decode(cls, body: bytes) -> Offer:
        """Decode the body of a question.

        Raises:
            Refused: It is cut short.
        """
        if len(body) <= 4 + SIGNATURE_BYTES:
            raise Refused("the plan is cut short")
        return cls(
            number=int.from_bytes(body[:4], "big"),
            signature=body[4 : 4 + SIGNATURE_BYTES],
            text=body[4 + SIGNATURE_BYTES :],
        )
