"""Names that nobody listed, counted by sums alone: an invertible Bloom lookup table over a field.

Goodrich, Mitzenmacher 2011 (https://arxiv.org/abs/1101.2245). A client's table is a vector modulo 2^31 - 1, so tables
add up under secure aggregation, and the sum is decoded to every name with the number of its clients. Secure aggregation
adds modulo a power of two, so numbers are added up in pieces.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import numpy as np
from scipy.special import gammaln

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import FloatArray, IntArray

PRIME = 2**31 - 1
REPETITIONS = 3
# Sums are modulo 2^32, and a piece of a number has so many bits at least.
SUM_BITS, _FEWEST_BITS = 32, 4
# Bytes in a number of the field, and numbers of a cell that check what it holds.
_BYTES, _CHECKS = 3, 2
# Cells for each name: the fewest of these with which one try at most in so many fails for certain.
_SPACES = (1.3, 1.5, 1.7, 2.0, 2.5, 3.0, 4.0, 6.0, 10.0, 20.0)
_MOST_FAILURES = 0.1


class DecodingFailed(Exception):
    """The table holds a knot of names that share all their cells, or is no sum of honest tables."""


@dataclass(frozen=True, kw_only=True)
class Limbs:
    """Split of numbers of the field into pieces so short that their sums modulo 2^32 never wrap round.

    Attributes:
        most: How many numbers are added at most; public.
    """

    most: int

    @property
    def bits(self) -> int:
        """Bits of a piece.

        Raises:
            InputError: So many numbers are added that too few bits would be left.
        """
        found = (((1 << SUM_BITS) - 1) // max(self.most, 1) + 1).bit_length() - 1
        if found < _FEWEST_BITS:
            raise InputError(f"{self.most:,} names in a sum: too many; ask fewer clients (--cohort)")
        return min(found, PRIME.bit_length())

    @property
    def count(self) -> int:
        """Pieces of a number."""
        return -(-PRIME.bit_length() // self.bits)

    def cut(self, numbers: IntArray) -> IntArray:
        """[count, ...]: the pieces, the lowest first."""
        shifts = self.bits * np.arange(self.count, dtype=np.int64)
        return (numbers[None] >> shifts.reshape(-1, *[1] * numbers.ndim)) & ((1 << self.bits) - 1)

    def whole(self, total: IntArray) -> IntArray:
        """The sum of the numbers, in the field, from a sum of their pieces."""
        found = np.zeros(len(total) // self.count, dtype=np.int64)
        for place, pieces in enumerate(total.reshape(self.count, -1)):
            found = (found + pieces % PRIME * pow(2, self.bits * place, PRIME)) % PRIME
        return found


@dataclass(frozen=True, kw_only=True)
class NameTable:
    """The form of a table; public.

    Attributes:
        names: Most different names that it is made for.
        length: Bytes of a name; longer ones are cut.
        cells: In each of the REPETITIONS parts.
        seed: Of the hash functions.
    """

    names: int
    length: int
    cells: int
    seed: bytes

    @property
    def _limbs(self) -> int:
        return -(-self.length // _BYTES)

    @property
    def _width(self) -> int:
        """Numbers in a cell: how many names, their bytes, their checks."""
        return 1 + self._limbs + _CHECKS

    @property
    def size(self) -> int:
        """Numbers of a table."""
        return REPETITIONS * self.cells * self._width

    def of(self, names: Iterable[str], limbs: Limbs) -> IntArray:
        """SECRET: a client's table in limbs, [limbs.count * size], from its names; each counts once.

        It is linear in the names, so a sum of tables says no more than how many clients hold each.
        """
        table = np.zeros((limbs.count, REPETITIONS * self.cells, self._width), dtype=np.int64)
        for encoded in {encode(name, self.length) for name in names}:
            places, numbers = self._of_one(encoded)
            cut = limbs.cut(numbers)
            for place in places:
                table[:, place] += cut
        return table.reshape(-1)

    def decode(self, total: IntArray) -> dict[str, int]:
        """SECRET: every name in a sum of tables, with the number of tables that hold it.

        Guarantee:
            A client more moves the count of each of its names by 1 at most, whatever else is in the sum: a table that
            takes names back makes no count jump from 0 to the end of the field. It ends for any numbers.

        Raises:
            DecodingFailed: Something is left that cannot be taken apart.
        """
        table = total.reshape(REPETITIONS * self.cells, self._width) % PRIME
        waiting = np.flatnonzero(table[:, 0]).tolist()
        found: dict[bytes, int] = {}
        while waiting:
            single = self._single(table[waiting.pop()].tolist())
            if single is None:
                continue
            encoded, count = single
            if encoded in found:
                # In a sum of sound tables a name is gone once it is taken out; in others it may come back for ever.
                raise DecodingFailed
            places, numbers = self._of_one(encoded)
            for place in places:
                table[place] = (table[place] - count * numbers) % PRIME
                if table[place, 0]:
                    waiting.append(place)
            found[encoded] = count
        if table.any():
            raise DecodingFailed
        counts: Counter[str] = Counter()
        for encoded, count in found.items():
            # What was taken back counts by how often, as the field is a circle; bytes that read alike are one name.
            counts[decoded(encoded)] += min(count, PRIME - count)
        # Nothing is no name, whoever sent it.
        counts.pop("", None)
        return dict(counts)

    def _single(self, cell: list[int]) -> tuple[bytes, int] | None:
        """(name, how often) of a cell that holds nothing but one name, else None."""
        count = cell[0]
        if not count:
            return None
        inverse = pow(count, -1, PRIME)
        limbs = [value * inverse % PRIME for value in cell[1 : 1 + self._limbs]]
        if max(limbs) >= 256**_BYTES:
            return None
        encoded = b"".join(limb.to_bytes(_BYTES, "big") for limb in limbs)
        _, numbers = self._of_one(encoded)
        checks = [count * int(value) % PRIME for value in numbers[1 + self._limbs :]]
        return (encoded, count) if checks == cell[1 + self._limbs :] else None

    def _of_one(self, encoded: bytes) -> tuple[list[int], IntArray]:
        """(its cells, one in each part; what it adds to each)."""
        return _hashed(self.seed, self.cells, encoded)


@lru_cache(maxsize=100_000)
def _hashed(seed: bytes, cells: int, encoded: bytes) -> tuple[list[int], IntArray]:
    words = blake2b(encoded, key=seed, digest_size=8 * (REPETITIONS + _CHECKS)).digest()
    hashes = [int.from_bytes(words[8 * part : 8 * part + 8], "little") for part in range(REPETITIONS + _CHECKS)]
    places = [part * cells + hashes[part] % cells for part in range(REPETITIONS)]
    limbs = [int.from_bytes(encoded[at : at + _BYTES], "big") for at in range(0, len(encoded), _BYTES)]
    checks = [1 + value % (PRIME - 1) for value in hashes[REPETITIONS:]]
    return places, np.array([1, *limbs, *checks], dtype=np.int64)


CUT = "\u2026"
"""Last character of a name that was cut."""


def encode(name: str, length: int) -> bytes:
    """A name as so many bytes, rounded up to whole numbers of the field; cut between two characters if it is longer.

    A name that is cut ends with a mark, unless that would take half of it: others may have become the same.
    What is no text, as folders may be called, is written out: no name of a client may keep it from answering.
    """
    whole, mark = name.replace("\0", "").encode(errors="backslashreplace"), CUT.encode()
    mark = mark if len(whole) > length >= 2 * len(mark) else b""
    kept = whole[: length - len(mark)].decode(errors="ignore").encode() + mark
    return kept.ljust(_BYTES * -(-length // _BYTES), b"\0")


def decoded(encoded: bytes) -> str:
    """The inverse, of a name that was not cut; what is no text is shown as what it is."""
    return encoded.rstrip(b"\0").decode(errors="backslashreplace")


@lru_cache(maxsize=16)
def form_for(names: int) -> tuple[int, float]:
    """(cells of each part, probability that one try at decoding fails, at most) for so many different names.

    Raises:
        InputError: More names than are bounded here.
    """
    for space in _SPACES:
        cells = math.ceil(space * names / REPETITIONS)
        failure = failure_bound(names, cells)
        if failure <= _MOST_FAILURES:
            return cells, failure
    raise InputError(f"{names:,} names in a table: too many, or too few; ask fewer clients (--cohort)")


def failure_bound(names: int, cells: int) -> float:
    """P(decoding fails) for any set of at most `names` names, over the hash functions.

    It fails where some s names touch no cell of theirs alone. In one part of n cells that has the probability
    s! [x^s] (e^x - x)^n / n^s, which for any x > 0 is at most s! (e^x - x)^n / (x n)^s; the parts are independent, and
    the union is over all sets of s names. At 1.3 cells for a name that bound says nothing, though decoding mostly
    works; what the public sees of a failure is charged by this bound, so the table is as large as it asks for.
    """
    x = np.geomspace(1e-4, 60.0, 400)
    grown = cells * np.log(np.exp(x) - x)
    total = 0.0
    for start in range(2, names + 1, 20_000):
        size = np.arange(start, min(start + 20_000, names + 1), dtype=float)
        total += float(np.exp(np.minimum(_log_knots(size, names, cells, grown, np.log(x)), 1.0)).sum())
    return min(total, 1.0)


def _log_knots(size: FloatArray, names: int, cells: int, grown: FloatArray, logs: FloatArray) -> FloatArray:
    """Log of the expected number of sets of these sizes that touch no cell alone."""
    best = np.full(len(size), np.inf)
    for value, log in zip(grown, logs, strict=True):
        np.minimum(best, value - size * log, out=best)
    one_part = np.minimum(gammaln(size + 1) - size * math.log(cells) + best, 0.0)
    sets = gammaln(names + 1) - gammaln(size + 1) - gammaln(names - size + 1)
    return np.asarray(sets + REPETITIONS * one_part)


def heaviest(names: Mapping[str, int], most: int) -> list[str]:
    """SECRET: which names a client says: those of which it holds most; of equals the first in the alphabet."""
    return sorted((name for name in names if name.replace("\0", "")), key=lambda name: (-names[name], name))[:most]
