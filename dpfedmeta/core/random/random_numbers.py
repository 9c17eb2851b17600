"""Random numbers from random bytes: normal and discrete normal values, binomial draws, and samples."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.random import normal_jit as normal_kernels

# The next so many bytes of one stream.
ByteStream = Callable[[int], bytes]

# Words read at once, so that they stay in the processor's cache, and on top of what is expected.
_WORDS, _SPARE = 8192, 8


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
            filled, used = normal_kernels.fill_normal(
                words, values[made:], normal_kernels.EDGES, normal_kernels.HEIGHTS
            )
            made, rest = made + filled, words[used:]
        return values

    def discrete_normal(self, variance: float, size: int) -> npt.NDArray[np.int64]:
        """`size` independent values of the discrete Gaussian of this variance, exactly."""
        from dpfedmeta.core.random.discrete_gaussian import discrete_gaussian  # few draw one

        return discrete_gaussian(variance, size, self.words)

    def binomial(self, trials: int, probability: float) -> int:
        """Return a binomial draw."""
        from scipy.stats import binom  # most of a second, and a plan draws nothing

        # Inversion of 53 bits. ppf(0) is -1 by scipy's convention.
        uniform = float(self.words(1)[0] >> np.uint64(11)) * 2.0**-53
        return max(0, int(binom.ppf(uniform, trials, probability)))

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
