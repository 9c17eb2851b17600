"""Random numbers from random bytes: normal and discrete normal values, binomial draws, and samples."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.random import binomial, noise_jit

# The next so many bytes of one stream.
ByteStream = Callable[[int], bytes]

# Words read at once, so that they stay in the processor's cache, and on top of what is expected.
_WORDS, _SPARE = 8192, 8
IntArray = npt.NDArray[np.int64]
Words = Callable[[int], npt.NDArray[np.uint64]]

# A word is a sign and so many bits of a number between 0 and 1.
_BITS = 63
_GUIDE_BITS = 12
# What integers are computed to beyond what is asked for: more than all errors of the longest table add up to.
_GUARD = 128
# Beyond, a table would be too long; no plan of at most 20 bits comes near.
LARGEST_VARIANCE = 2.0**36


class SecretGenerator(Protocol):
    """Stream of secret randomness."""

    def normal(self, size: int) -> npt.NDArray[np.float64]:
        """`size` independent standard normal values."""
        ...

    def discrete_normal(self, variance: float, size: int) -> npt.NDArray[np.int64]:
        """`size` independent values of the discrete Gaussian of this variance, exactly."""
        ...

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` independent uniform words of 64 bits."""
        ...

    def binomial(self, trials: int, probability: float) -> int:
        """Return a binomial draw."""
        ...

    def sample(self, population: int, size: int) -> npt.NDArray[np.int64]:
        """`size` distinct integers of range(population), uniformly, in random order."""
        ...


@dataclass(frozen=True)
class StreamGenerator:
    """The one way from random bytes to numbers, whatever cryptographic generator the bytes come from.

    Attributes:
        read: The next so many bytes.
    """

    read: ByteStream

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` independent uniform words of 64 bits."""
        return np.frombuffer(self.read(8 * count), dtype="<u8")

    def normal(self, size: int) -> npt.NDArray[np.float64]:
        """`size` independent standard normal values."""
        values = np.empty(size)
        made, rest = 0, np.empty(0, dtype=np.uint64)
        while made < size:
            words = np.concatenate([rest, self.words(min(size - made, _WORDS) + _SPARE)])
            filled, used = noise_jit.fill_normal(words, values[made:], noise_jit.EDGES, noise_jit.HEIGHTS)
            made, rest = made + filled, words[used:]
        return values

    def discrete_normal(self, variance: float, size: int) -> npt.NDArray[np.int64]:
        """`size` independent values of the discrete Gaussian of this variance, exactly."""
        return discrete_gaussian(variance, size, self.words)

    def binomial(self, trials: int, probability: float) -> int:
        """Return a binomial draw."""
        uniform = float(self.words(1)[0] >> np.uint64(11)) * 2.0**-53  # 53 bits, inverted
        return max(0, int(binomial.ppf(uniform, trials, probability)))

    def sample(self, population: int, size: int) -> npt.NDArray[np.int64]:
        """`size` distinct integers of range(population), uniformly, in random order."""
        if not 0 <= size <= population:
            raise ValueError(f"cannot draw {size} distinct of {population}")
        return self._shuffled(population)[:size] if 2 * size > population else self._distinct(population, size)

    def _shuffled(self, population: int) -> npt.NDArray[np.int64]:
        """Return a uniformly random order of range(population); all words are drawn anew if two are equal."""
        while True:
            words = self.words(population)
            order = np.argsort(words)
            if (np.diff(words[order]) > 0).all():
                return order.astype(np.int64)

    def _distinct(self, population: int, size: int) -> npt.NDArray[np.int64]:
        """The first values that differ of a sequence of independent ones: every order of every subset alike."""
        drawn = np.empty(0, dtype=np.int64)
        while len(drawn) < size:
            # The next value is new with probability (population - size) / population at least.
            wanted = (size - len(drawn)) * population // (population - size)
            drawn = np.concatenate([drawn, self._below(population, wanted)])
            _, first = np.unique(drawn, return_index=True)
            drawn = drawn[np.sort(first)]
        return drawn[:size]

    def _below(self, population: int, wanted: int) -> npt.NDArray[np.int64]:
        """About `wanted` independent values: as many bits as the largest has; a value that is too large is left out."""
        bits = (population - 1).bit_length()
        words = self.words(wanted * 2**bits // population + _SPARE)
        values: npt.NDArray[np.int64] = (words >> np.uint64(64 - bits)).astype(np.int64)
        return values[values < population]


@dataclass(frozen=True, kw_only=True, eq=False)
class CdfTable:
    """Thresholds at which the distribution function of |X| passes from one value to the next, in units of 2^-63."""

    thresholds: npt.NDArray[np.uint64]
    guide: IntArray


def discrete_gaussian(variance: float, size: int, words: Words) -> IntArray:
    """`size` independent values of N_Z(0, variance): P(x) is proportional to exp(-x^2 / (2 variance)).

    Canonne, Kamath, Steinke 2020 (https://arxiv.org/abs/2004.00010) define it; they sample by rejection, here the
    distribution function is inverted. A word of 64 random bits decides nearly every value; one that lies on a
    threshold asks for further words until it is decided, so the law is exact and not rounded to 64 bits.

    Args:
        variance: A float is taken as the number that it is.
        size: How many.
        words: The next so many independent uniform words.

    Raises:
        ValueError: The variance is not above 0, or larger than any table.
    """
    own = table(variance)
    drawn = words(size)
    values = np.empty(size, dtype=np.int64)
    found, undecided = noise_jit.look_up(drawn, values, own.thresholds, own.guide, _BITS - _GUIDE_BITS)
    for place in undecided[:found]:
        word = int(drawn[place])
        size_of_it = _decided(variance, word >> 1, words)
        values[place] = -size_of_it if word & 1 else size_of_it
    return values


@lru_cache(maxsize=16)
def table(variance: float) -> CdfTable:
    """Return the table of a variance.

    Raises:
        ValueError: The variance is not above 0, or larger than any table.
    """
    if not 0 < variance <= LARGEST_VARIANCE:
        raise ValueError(f"the variance of a discrete Gaussian must be above 0 and at most 2^36, got {variance}")
    last = 2**_BITS - 1
    thresholds = []
    for boundary in boundaries(variance, _BITS):
        thresholds.append(boundary)
        if boundary == last:
            break
    below = np.array(thresholds, dtype=np.uint64)
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << np.uint64(_BITS - _GUIDE_BITS)
    return CdfTable(thresholds=below, guide=np.searchsorted(below, starts).astype(np.int64))


@lru_cache(maxsize=4)
def boundaries(variance: float, bits: int) -> tuple[int, ...]:
    """floor(2^bits P(|X| <= k)) for k = 0, 1, ... up to the first that is 2^bits - 1, and some more.

    Weights are whole numbers of 2^-(bits + guard), each from the last one by two multiplications. Each multiplication
    loses less than one such unit, so the k-th sum is off by less than 2 (k + 2)^3 of them; where that does not decide a
    floor, there is more guard.
    """
    guard = _GUARD
    while True:
        found = _floors(variance, bits, guard)
        if found is not None:
            return found
        guard *= 2


def _floors(variance: float, bits: int, guard: int) -> tuple[int, ...] | None:
    precision = bits + guard
    one = 1 << precision
    ratio = _exponential(-1, 2, variance, precision)
    squared = _exponential(-1, 1, variance, precision)
    sums, weight, total = [one], one, one
    while weight:
        weight = (weight * ratio) >> precision
        ratio = (ratio * squared) >> precision
        total += 2 * weight
        sums.append(total)
    error = 2 * (len(sums) + 2) ** 3 + 2
    floors = []
    for each in sums:
        low, high = ((each + slip) << bits for slip in (-error, error))
        # What is left beyond the last weight is less than the error too.
        least, most = low // (total + error), high // (total - error)
        if min(most, 2**bits - 1) != least and least < 2**bits - 1:
            # 1 - 2^-bits is passed by all that follow; whether a sum is above it is for more bits to say.
            return None
        floors.append(min(least, 2**bits - 1))
    return tuple(floors)


def _exponential(numerator: int, denominator: int, variance: float, precision: int) -> int:
    """floor(2^precision exp(numerator / (denominator variance))), but for one unit."""
    digits = Context(prec=int(precision * math.log10(2.0)) + 30)
    power = digits.divide(Decimal(numerator), digits.multiply(Decimal(denominator), Decimal(variance)))
    scaled = digits.multiply(digits.exp(power), digits.power(Decimal(2), precision))
    return int(scaled)


def _decided(variance: float, place: int, words: Words) -> int:
    """|X| for a number whose first 63 bits do not say it."""
    bits = _BITS
    while True:
        place, bits = (place << 64) | int(words(1)[0]), bits + 64
        passed = 0
        for boundary in boundaries(variance, bits):
            if boundary >= place:
                break
            passed += 1
        else:
            continue
        if boundary != place:
            return passed
