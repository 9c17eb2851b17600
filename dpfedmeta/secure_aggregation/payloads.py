"""Bodies of messages, between header and signature, by phase (lists and sets: `layout`)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar, NamedTuple

from dpfedmeta.secure_aggregation.crypto import masks
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.crypto.shamir import SHARE_BYTES
from dpfedmeta.secure_aggregation.protocol_messages import packed_list, packed_sets, records, share_of, unpacked_sets
from dpfedmeta.secure_aggregation.round_parameters import Agreement

SEALED_BYTES = 2 * SHARE_BYTES + 16  # both shares, and a tag of 16 bytes


class Kind(IntEnum):
    """Which of a client's two secrets a share is of."""

    SEED = 0  # of a survivor's own mask
    KEY = 1  # the mask key of a client that fell silent


@dataclass(frozen=True)
class Keys:
    """KEYS: what a client shows of itself, for everyone.

    Attributes:
        identity: Its Ed25519 key.
        mask_key: X25519, to agree on masks. Given away if it falls silent.
        share_key: X25519, to encrypt shares.
        commitment: To the seed of its own mask.
    """

    record: ClassVar = struct.Struct(">32s32s32s32s")

    identity: bytes
    mask_key: bytes
    share_key: bytes
    commitment: bytes

    @cached_property
    def encoded(self) -> bytes:
        """The body."""
        return self.record.pack(self.identity, self.mask_key, self.share_key, self.commitment)

    @classmethod
    def decode(cls, body: bytes) -> Keys:
        """Decode the message from its body.

        Raises:
            Refused: Keys of the wrong size.
        """
        if len(body) != cls.record.size:
            raise Refused(f"four keys have {len(body)} bytes, expected {cls.record.size}")
        return cls(*cls.record.unpack(body))


@dataclass(frozen=True)
class KeyList:
    """KEY_LIST: (seat, its keys, its signature of them) of neighbours; of everybody where the server is malicious."""

    record: ClassVar = struct.Struct(f">I{Keys.record.size}s{SIGNATURE_BYTES}s")

    entries: tuple[tuple[int, bytes, bytes], ...]

    def encode(self) -> bytes:
        """The body."""
        return packed_list(self.record, self.entries)

    @classmethod
    def decode(cls, body: bytes) -> KeyList:
        """Decode the message from its body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        return cls(tuple(records(cls.record, body)))  # type: ignore[arg-type]


class Dealt(NamedTuple):
    """Sealed shares from one client to another, and the commitments to them.

    Attributes:
        seat: In SHARES the recipient's, in SHARE_LIST the sender's.
        sealed: Both shares.
        seed: The sender's commitment to the share of its seed.
        key: The sender's commitment to the share of its mask key.
    """

    seat: int
    sealed: bytes
    seed: bytes
    key: bytes

    @property
    def commitments(self) -> tuple[bytes, bytes]:
        """By `Kind`."""
        return self.seed, self.key


@dataclass(frozen=True)
class Ciphertexts:
    """SHARES, for each recipient, and the second part of SHARE_LIST, of each sender."""

    record: ClassVar = struct.Struct(f">I{SEALED_BYTES}s32s32s")

    entries: tuple[Dealt, ...]

    def encode(self) -> bytes:
        """The body."""
        return packed_list(self.record, self.entries)

    @classmethod
    def decode(cls, body: bytes) -> Ciphertexts:
        """Decode the message from its body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        return cls(tuple(Dealt(*entry) for entry in records(cls.record, body)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ShareList:
    """SHARE_LIST: who shared, as one bit for each seat, and what those of them sealed who are neighbours."""

    sharers: frozenset[int]
    sealed: Ciphertexts

    def encode(self, agreement: Agreement) -> bytes:
        """The body."""
        return packed_sets((self.sharers,), agreement) + self.sealed.encode()

    @classmethod
    def decode(cls, body: bytes, agreement: Agreement) -> ShareList:
        """Decode the message from its body.

        Raises:
            Refused: Cut, repeated, out of order, or seats that do not exist.
        """
        size = (agreement.clients + 7) // 8
        (sharers,) = unpacked_sets(body[:size], 1, agreement)
        return cls(sharers, Ciphertexts.decode(body[size:]))


@dataclass(frozen=True)
class Agree:
    """AGREE: the sender's signature, for everyone, of the list of who shared; and whose shares it cannot use.

    Attributes:
        signature: Of the list.
        rejected: Seats whose shares do not open, or are not what those committed to.
    """

    record: ClassVar = struct.Struct(">I")

    signature: bytes
    rejected: tuple[int, ...]

    def encode(self) -> bytes:
        """The body."""
        return self.signature + packed_list(self.record, [(seat,) for seat in self.rejected])

    @classmethod
    def decode(cls, body: bytes) -> Agree:
        """Decode the message from its body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        rejected = records(cls.record, body[SIGNATURE_BYTES:])
        return cls(body[:SIGNATURE_BYTES], tuple(seat for (seat,) in rejected))


@dataclass(frozen=True)
class Masked:
    """MASKED: the vector under its masks."""

    words: masks.Words

    def encode(self, agreement: Agreement) -> bytes:
        """The body."""
        return masks.packed(self.words, agreement.bits)

    @classmethod
    def decode(cls, body: bytes, agreement: Agreement) -> Masked:
        """Decode the message from its body.

        Raises:
            Refused: Another length than d coordinates of b bits take.
        """
        try:
            return cls(masks.unpacked(body, agreement.dimension, agreement.bits))
        except ValueError as error:
            raise Refused(f"a masked vector is invalid: {error}") from None


@dataclass(frozen=True)
class Survivors:
    """SURVIVORS: who sent a masked vector, and who sent shares and then fell silent, as one bit for each seat."""

    survivors: frozenset[int]
    silent: frozenset[int]

    def encode(self, agreement: Agreement) -> bytes:
        """The body."""
        return packed_sets((self.survivors, self.silent), agreement)

    @classmethod
    def decode(cls, body: bytes, agreement: Agreement) -> Survivors:
        """Decode the message from its body.

        Raises:
            Refused: Another length, or seats that do not exist.
        """
        survivors, silent = unpacked_sets(body, 2, agreement)
        return cls(survivors, silent)


@dataclass(frozen=True)
class Signatures:
    """AGREED and CONSENTS: (seat, its signature of the list of who shared, or of who survived)."""

    record: ClassVar = struct.Struct(f">I{SIGNATURE_BYTES}s")

    entries: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """The body."""
        return packed_list(self.record, self.entries)

    @classmethod
    def decode(cls, body: bytes) -> Signatures:
        """Decode the message from its body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        return cls(tuple(records(cls.record, body)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reveal:
    """REVEAL: (seat, which of its secrets, the sender's share of that one)."""

    record: ClassVar = struct.Struct(f">IB{SHARE_BYTES}s")

    entries: tuple[tuple[int, Kind, int], ...]

    def encode(self) -> bytes:
        """The body."""
        packed = [(seat, int(kind), share.to_bytes(SHARE_BYTES, "big")) for seat, kind, share in self.entries]
        return packed_list(self.record, packed)

    @classmethod
    def decode(cls, body: bytes) -> Reveal:
        """Decode the message from its body.

        Raises:
            Refused: Cut, repeated, out of order, or a share outside the field.
        """
        entries = []
        for seat, kind, content in records(cls.record, body):
            if kind not in (Kind.SEED, Kind.KEY):
                raise Refused(f"a share is of an unknown kind, {kind}")
            entries.append((seat, Kind(kind), share_of(content)))  # type: ignore[arg-type]
        return cls(tuple(entries))
