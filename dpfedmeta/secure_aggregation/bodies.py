"""What stands between the header and the signature of a message, by phase; all numbers are big-endian.

Lists are a count of 4 bytes, then records of one size in strictly ascending order of their seats.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import ClassVar

import numpy as np

from dpfedmeta.secure_aggregation import masks
from dpfedmeta.secure_aggregation.agreement import Agreement
from dpfedmeta.secure_aggregation.keys import SIGNATURE_BYTES
from dpfedmeta.secure_aggregation.refusals import Refused
from dpfedmeta.secure_aggregation.shamir import PRIME, SHARE_BYTES

SEALED_BYTES = 2 * SHARE_BYTES + 16  # both shares, and a tag of 16 bytes


class Kind(IntEnum):
    """Which of a client's two secrets a share is of."""

    SEED = 0  # of a survivor's own mask
    KEY = 1  # the mask key of a client that fell silent


def _records(record: struct.Struct, body: bytes) -> list[tuple[int, ...]]:
    """A list's records; their seats must ascend."""
    if len(body) < 4 or len(body) != 4 + int.from_bytes(body[:4], "big") * record.size:
        raise Refused("a list whose length is not what it says")
    found = list(record.iter_unpack(body[4:]))
    seats = [entry[0] for entry in found]
    for before, after in itertools.pairwise(seats):
        if before == after:
            raise Refused(f"seat {after} is named twice")
        if before > after:
            raise Refused(f"seat {after} is named out of order")
    return found


def _list(record: struct.Struct, entries: Sequence[tuple[object, ...]]) -> bytes:
    return len(entries).to_bytes(4, "big") + b"".join(record.pack(*entry) for entry in entries)


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
        """From the body.

        Raises:
            Refused: Keys of the wrong size.
        """
        if len(body) != cls.record.size:
            raise Refused(f"keys of {len(body)} bytes, {cls.record.size} are four")
        return cls(*cls.record.unpack(body))


@dataclass(frozen=True)
class KeyList:
    """KEY_LIST: (seat, its keys, its signature of them) of neighbours; of everybody where the server is malicious."""

    record: ClassVar = struct.Struct(f">I{Keys.record.size}s{SIGNATURE_BYTES}s")

    entries: tuple[tuple[int, bytes, bytes], ...]

    def encode(self) -> bytes:
        """The body."""
        return _list(self.record, self.entries)

    @classmethod
    def decode(cls, body: bytes) -> KeyList:
        """From the body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        return cls(tuple(_records(cls.record, body)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Ciphertexts:
    """SHARES, (recipient, sealed shares), and the second part of SHARE_LIST, (sender, sealed shares)."""

    record: ClassVar = struct.Struct(f">I{SEALED_BYTES}s")

    entries: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """The body."""
        return _list(self.record, self.entries)

    @classmethod
    def decode(cls, body: bytes) -> Ciphertexts:
        """From the body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        return cls(tuple(_records(cls.record, body)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class ShareList:
    """SHARE_LIST: who shared, as one bit for each seat, and what those of them sealed who are neighbours."""

    sharers: frozenset[int]
    sealed: Ciphertexts

    def encode(self, agreement: Agreement) -> bytes:
        """The body."""
        return _packed_sets((self.sharers,), agreement) + self.sealed.encode()

    @classmethod
    def decode(cls, body: bytes, agreement: Agreement) -> ShareList:
        """From the body.

        Raises:
            Refused: Cut, repeated, out of order, or seats that do not exist.
        """
        size = (agreement.clients + 7) // 8
        (sharers,) = _unpacked_sets(body[:size], 1, agreement)
        return cls(sharers, Ciphertexts.decode(body[size:]))


@dataclass(frozen=True)
class Agree:
    """AGREE: the sender's signature, for everyone, of the list of who shared."""

    signature: bytes

    def encode(self) -> bytes:
        """The body."""
        return self.signature

    @classmethod
    def decode(cls, body: bytes) -> Agree:
        """From the body.

        Raises:
            Refused: Cut.
        """
        if len(body) != SIGNATURE_BYTES:
            raise Refused(f"a signature of {len(body)} bytes, {SIGNATURE_BYTES} are one")
        return cls(body)


@dataclass(frozen=True)
class Masked:
    """MASKED: the vector under its masks."""

    words: masks.Words

    def encode(self, agreement: Agreement) -> bytes:
        """The body."""
        return masks.packed(self.words, agreement.bits)

    @classmethod
    def decode(cls, body: bytes, agreement: Agreement) -> Masked:
        """From the body.

        Raises:
            Refused: Another length than d coordinates of b bits take.
        """
        try:
            return cls(masks.unpacked(body, agreement.dimension, agreement.bits))
        except ValueError as error:
            raise Refused(f"a masked vector of {error}") from None


@dataclass(frozen=True)
class Survivors:
    """SURVIVORS: who sent a masked vector, and who sent shares and then fell silent, as one bit for each seat."""

    survivors: frozenset[int]
    silent: frozenset[int]

    def encode(self, agreement: Agreement) -> bytes:
        """The body."""
        return _packed_sets((self.survivors, self.silent), agreement)

    @classmethod
    def decode(cls, body: bytes, agreement: Agreement) -> Survivors:
        """From the body.

        Raises:
            Refused: Another length, or seats that do not exist.
        """
        survivors, silent = _unpacked_sets(body, 2, agreement)
        return cls(survivors, silent)


def _packed_sets(sets: Sequence[frozenset[int]], agreement: Agreement) -> bytes:
    """One bit for each seat and set, the lowest first, every set from a whole byte on."""
    bits = np.zeros((len(sets), agreement.clients), dtype=np.uint8)
    for row, seats in zip(bits, sets, strict=True):
        row[sorted(seats)] = 1
    return np.packbits(bits, axis=1, bitorder="little").tobytes()


def _unpacked_sets(body: bytes, count: int, agreement: Agreement) -> list[frozenset[int]]:
    size = (agreement.clients + 7) // 8
    if len(body) != count * size:
        raise Refused(f"{count} sets of {len(body)} bytes, {agreement.clients} seats take {count * size}")
    bits = np.unpackbits(np.frombuffer(body, dtype=np.uint8).reshape(count, size), axis=1, bitorder="little")
    if bits[:, agreement.clients :].any():
        raise Refused("a set names an unknown seat")
    return [frozenset(np.flatnonzero(row).tolist()) for row in bits]


@dataclass(frozen=True)
class Signatures:
    """AGREED and CONSENTS: (seat, its signature of the list of who shared, or of who survived)."""

    record: ClassVar = struct.Struct(f">I{SIGNATURE_BYTES}s")

    entries: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """The body."""
        return _list(self.record, self.entries)

    @classmethod
    def decode(cls, body: bytes) -> Signatures:
        """From the body.

        Raises:
            Refused: Cut, repeated or out of order.
        """
        return cls(tuple(_records(cls.record, body)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Reveal:
    """REVEAL: (seat, which of its secrets, the sender's share of that one)."""

    record: ClassVar = struct.Struct(f">IB{SHARE_BYTES}s")

    entries: tuple[tuple[int, Kind, int], ...]

    def encode(self) -> bytes:
        """The body."""
        packed = [(seat, int(kind), share.to_bytes(SHARE_BYTES, "big")) for seat, kind, share in self.entries]
        return _list(self.record, packed)

    @classmethod
    def decode(cls, body: bytes) -> Reveal:
        """From the body.

        Raises:
            Refused: Cut, repeated, out of order, or a share outside the field.
        """
        entries = []
        for seat, kind, content in _records(cls.record, body):
            if kind not in (Kind.SEED, Kind.KEY):
                raise Refused(f"a share of kind {kind}")
            entries.append((seat, Kind(kind), share_of(content)))  # type: ignore[arg-type]
        return cls(tuple(entries))


def share_of(content: bytes) -> int:
    """A share from its bytes.

    Raises:
        Refused: Outside the field.
    """
    share = int.from_bytes(content, "big")
    if share >= PRIME:
        raise Refused("a share outside the field")
    return share
