"""Vectors of whole numbers modulo 2^b: random masks, and how they travel in exactly b bits a coordinate."""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.random.keyed_streams import key_stream

FEWEST_BITS, MOST_BITS = 8, 32
# Whole numbers that wrap round at 2^16 or 2^32; the lowest b bits of their sums are the sums modulo 2^b.
Words = npt.NDArray[Any]


def word(bits: int) -> np.dtype[Any]:
    """The number that holds one coordinate while sums are formed."""
    return np.dtype("<u2" if bits <= 16 else "<u4")


def expand(key: bytes, dimension: int, bits: int) -> Words:
    """The mask of a 256-bit key: the lowest `bits` bits of word i of the key's ChaCha20 stream are coordinate i.

    The stream has the nonce 0 and begins with block 0 (RFC 8439). Words are little-endian, of 16 bits where `bits` is
    at most 16, else of 32;
    what lies above `bits` is taken off by `reduced` once, after all additions.

    Guarantee:
        Uniform modulo 2^bits for whoever does not know the key, as long as ChaCha20 is pseudo-random. No key has a
        second mask.
    """
    kind = word(bits)
    return np.frombuffer(key_stream(key)(dimension * kind.itemsize), dtype=kind)


def reduced(words: Words, bits: int) -> Words:
    """Modulo 2^bits, as numbers from 0 to 2^bits - 1."""
    lowest: Words = words & words.dtype.type(2**bits - 1)
    return lowest


def packed(words: Words, bits: int) -> bytes:
    """Exactly `bits` bits a coordinate, the lowest first, zeros up to the last whole byte."""
    if bits == 8 * words.dtype.itemsize:
        return words.tobytes()
    places = np.unpackbits(words.view(np.uint8), bitorder="little").reshape(len(words), -1)[:, :bits]
    return np.packbits(places, axis=None, bitorder="little").tobytes()


def unpacked(content: bytes, dimension: int, bits: int) -> Words:
    """Unpack the vector that `packed` wrote.

    Raises:
        ValueError: Another length, or bits other than 0 behind the last coordinate.
    """
    if len(content) != packed_size(dimension, bits):
        raise ValueError(
            f"{len(content)} bytes where {dimension} coordinates of {bits} bits take {packed_size(dimension, bits)}"
        )
    kind = word(bits)
    if bits == 8 * kind.itemsize:
        return np.frombuffer(content, dtype=kind)
    places = np.unpackbits(np.frombuffer(content, dtype=np.uint8), bitorder="little")
    if places[dimension * bits :].any():
        raise ValueError("bits behind the last coordinate that are not 0")
    wide = np.zeros((dimension, 8 * kind.itemsize), dtype=np.uint8)
    wide[:, :bits] = places[: dimension * bits].reshape(dimension, bits)
    return np.packbits(wide, axis=None, bitorder="little").view(kind)


def packed_size(dimension: int, bits: int) -> int:
    """Bytes of a packed vector."""
    return (dimension * bits + 7) // 8
