"""Lists, sets of seats and shares as bytes, each in one way only; all numbers are big-endian.

Lists are a count of 4 bytes, then records of one size in strictly ascending order of their seats.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

import numpy as np

from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.crypto.shamir import PRIME
from dpfedmeta.secure_aggregation.round_parameters import Agreement


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
