"""Messages as bytes, in one fixed layout: what is decoded encodes to the same bytes, and nothing else is accepted.

Every message is a header, a body and an Ed25519 signature of its sender over the round's digest, header and body. All
numbers are big-endian.

    header   "DPSA", version 2, run 32, round 4, attempt 4, phase 1, sender 4, recipient 4

Lists are a count of 4 bytes, then records of one size in strictly ascending order of their seats. What a body may
hold is in `payloads`.
"""

import itertools
import struct
from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.crypto.shamir import PRIME
from dpfedmeta.secure_aggregation.round_parameters import VERSION, Agreement, Round

# Addresses beside the seats.
SERVER, EVERYONE = 2**32 - 1, 2**32 - 2
_MAGIC = b"DPSA"
_HEADER = struct.Struct(">4sH32sIIBII")


class ProtocolPhase(IntEnum):
    """In the order of a round. AGREE, AGREED, CONSENT and CONSENTS are for malicious servers alone."""

    KEYS = 1
    KEY_LIST = 2
    SHARES = 3
    SHARE_LIST = 4
    AGREE = 5
    AGREED = 6
    MASKED = 7
    SURVIVORS = 8
    CONSENT = 9
    CONSENTS = 10
    REVEAL = 11


def header(round_: Round, phase: ProtocolPhase, sender: int, recipient: int) -> bytes:
    """The header of this message."""
    return _HEADER.pack(_MAGIC, VERSION, round_.run, round_.round, round_.attempt, phase, sender, recipient)


def signed(
    round_: Round,
    phase: ProtocolPhase,
    sender: int,
    recipient: int,
    body: bytes,
    identity: Identity,
    bound: bytes = b"",
) -> bytes:
    """The whole message.

    Args:
        round_: Which one.
        phase: Of the message.
        sender: Seat, or SERVER.
        recipient: Seat, SERVER or EVERYONE.
        body: Encoded.
        identity: The sender's.
        bound: What else the signature covers, and both sides know.
    """
    front = header(round_, phase, sender, recipient)
    return front + body + identity.sign(round_.digest + bound + front + body)


def sender_of(message: bytes) -> int:
    """Return the seat that a message names as its sender, unchecked.

    Raises:
        Refused: The message is too short for a header and a signature.
    """
    if len(message) < _HEADER.size + SIGNATURE_BYTES:
        raise Refused(f"a message is cut short ({len(message)} bytes)")
    return int(_HEADER.unpack_from(message)[6])


def opened(
    round_: Round, phase: ProtocolPhase, sender: int, recipient: int, message: bytes, key: bytes, bound: bytes = b""
) -> bytes:
    """The body of a message that must be exactly this one.

    Raises:
        Refused: It is another one, or its signature fails.
    """
    check_header(round_, phase, sender, recipient, message)
    if not signed_by(key, message[-SIGNATURE_BYTES:], round_.digest + bound + message[:-SIGNATURE_BYTES]):
        raise Refused(f"the signature of {_named(sender)} on {phase.name} fails")
    return message[_HEADER.size : -SIGNATURE_BYTES]


def check_header(round_: Round, phase: ProtocolPhase, sender: int, recipient: int, message: bytes) -> None:
    """Check that a message's header names this round, phase, sender and recipient.

    Raises:
        Refused: It names something else; the text says what.
    """
    sender_of(message)
    magic, version, run, number, attempt, its_phase, its_sender, its_recipient = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise Refused("this is not a message of secure aggregation")
    for what, got, wanted in (
        ("version", version, VERSION),
        ("run", run, round_.run),
        ("round", number, round_.round),
        ("attempt", attempt, round_.attempt),
        ("phase", its_phase, phase),
        ("sender", its_sender, sender),
        ("recipient", its_recipient, recipient),
    ):
        if got != wanted:
            raise Refused(f"a message is of another {what}: {_shown(got)}, expected {_shown(wanted)}")


def _shown(value: int | bytes) -> str:
    return value.hex()[:8] if isinstance(value, bytes) else str(int(value))


def _named(sender: int) -> str:
    return "the server" if sender == SERVER else f"seat {sender}"


def records(record: struct.Struct, body: bytes) -> list[tuple[int, ...]]:
    """A list's records.

    Raises:
        Refused: Cut, or seats that do not ascend.
    """
    if len(body) < 4 or len(body) != 4 + int.from_bytes(body[:4], "big") * record.size:
        raise Refused("a list does not have the length that it states")
    found = list(record.iter_unpack(body[4:]))
    seats = [entry[0] for entry in found]
    for before, after in itertools.pairwise(seats):
        if before == after:
            raise Refused(f"seat {after} is named twice")
        if before > after:
            raise Refused(f"seat {after} is named out of order")
    return found


def packed_list(record: struct.Struct, entries: Sequence[tuple[object, ...]]) -> bytes:
    """A list."""
    return len(entries).to_bytes(4, "big") + b"".join(record.pack(*entry) for entry in entries)


def packed_sets(sets: Sequence[frozenset[int]], agreement: Agreement) -> bytes:
    """Pack sets of seats, one bit for each seat, the lowest first; every set begins with a whole byte."""
    bits = np.zeros((len(sets), agreement.clients), dtype=np.uint8)
    for row, seats in zip(bits, sets, strict=True):
        row[sorted(seats)] = 1
    return np.packbits(bits, axis=1, bitorder="little").tobytes()


def unpacked_sets(body: bytes, count: int, agreement: Agreement) -> list[frozenset[int]]:
    """Unpack the sets that `packed_sets` wrote.

    Raises:
        Refused: Another length, or seats that do not exist.
    """
    size = (agreement.clients + 7) // 8
    if len(body) != count * size:
        raise Refused(f"{count} sets have {len(body)} bytes; for {agreement.clients} seats {count * size} are needed")
    bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8).reshape(count, size), axis=1, bitorder="little")
    if bits[:, agreement.clients :].any():
        raise Refused("a set names an unknown seat")
    return [frozenset(np.flatnonzero(row).tolist()) for row in bits]


def share_of(content: bytes) -> int:
    """A share from its bytes.

    Raises:
        Refused: Outside the field.
    """
    share = int.from_bytes(content, "big")
    if share >= PRIME:
        raise Refused("a share is outside the field")
    return share
