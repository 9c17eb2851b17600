"""Messages as bytes, in one fixed layout: what is decoded encodes to the same bytes, and nothing else is accepted.

Every message is a header, a body and an Ed25519 signature of its sender over the round's digest, header and body. All
numbers are big-endian.

    header   "DPSA", version 2, run 32, round 4, attempt 4, phase 1, sender 4, recipient 4

What a body may hold is in `bodies`.
"""

from __future__ import annotations

import struct
from enum import IntEnum

from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity, signed_by
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.round_parameters import VERSION, Round

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
