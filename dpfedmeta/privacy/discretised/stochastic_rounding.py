"""Clipped messages as whole numbers for secure aggregation: scaled, rotated, rounded at random, added modulo 2^b.

Kairouz, Liu, Steinke 2021 (https://arxiv.org/abs/2102.06387), with every part of a message on its own.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.core.params import Params, dimension, same_kind, unflatten, vector_of
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, Purpose, SecretGenerator, public_generator
from dpfedmeta.privacy.discretised import fixed_point_jit as whole_kernels
from dpfedmeta.privacy.units import Grid

# A try succeeds with probability 0.39 at least.
_MOST_TRIES = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class RoundedMessages:
    """Grid to which the messages of one round are rounded; public, and the same for all of its clients.

    Attributes:
        whole: Public constants.
        bound: C: largest length of a part.
        form: Names and shapes of a message.
        seed: run.seed; the signs of the rotation are drawn from it and the round.
        round: The round.

    Guarantee:
        A part that is zeroed out moves the sum by at most `whole.sensitivity` steps of the grid, whatever rotation and
        rounding do, since its length is checked after rounding. Rotation, rounding and wrapping round depend on no
        other client's data.
    """

    whole: WholeSum
    bound: float
    form: Params
    seed: int
    round: int

    @property
    def width(self) -> float:
        """Width of one step of the grid, in the units of messages."""
        return self.bound / (self.whole.units * self.whole.parts)

    @cached_property
    def _signs(self) -> FloatArray:
        """Random signs of the rotation, one for each coordinate, over sqrt(d)."""
        coins = public_generator(self.seed, Purpose.ROTATION, self.round).integers(0, 2, self.whole.dimension)
        return np.asarray((2.0 * coins - 1.0) / math.sqrt(self.whole.dimension), dtype=np.float64)

    def of(self, parts: Iterable[FloatArray], generator: SecretGenerator) -> IntArray:
        """SECRET: [D]: the sum of a client's rounded parts.

        Args:
            parts: [d] each, of length C at most.
            generator: The client's own, for the rounding.
        """
        total = np.zeros(self.whole.dimension, dtype=np.int64)
        for part in parts:
            if part.any():
                total += self._rounded(part, generator)
        return total

    def _rounded(self, part: FloatArray, generator: SecretGenerator) -> IntArray:
        rotated = np.zeros(self.whole.dimension)
        rotated[: len(part)] = part * (self.whole.units / self.bound)
        rotated *= self._signs
        whole_kernels.hadamard(rotated)
        rounded, limit = np.empty(len(rotated), dtype=np.int64), self.whole.sensitivity**2
        for _ in range(_MOST_TRIES):
            words = generator.words((len(rotated) + 1) // 2).view("<u4")
            if whole_kernels.round_at_random(rotated, words, rounded) <= limit:
                return rounded
        raise ValueError("a message longer than its bound reached the rounding")

    def centred(self, total: IntArray) -> IntArray:
        """A sum modulo 2^b, as the numbers around 0 that it stands for."""
        half = 1 << (self.whole.bits - 1)
        return (total + half) % (2 * half) - half

    def read(self, released: Params) -> Params:
        """Convert a released sum back to the form of messages. This is post-processing."""
        values = vector_of(released).copy()
        whole_kernels.hadamard(values)
        size = dimension(self.form)
        plain = (values[:size] * self._signs[:size] * self.width).astype(np.float32)
        return unflatten(same_kind(plain, next(iter(released.values()))), self.form)


def own_share(whole: IntArray, grid: Grid, share: float, generator: SecretGenerator) -> IntArray:
    """SECRET: a client's share of the noise of a sum of whole numbers.

    Args:
        whole: SECRET: its exact message, to which the noise is added.
        grid: How whole numbers are read.
        share: Variance of the noise.
        generator: The client's own.
    """
    own = for_message(generator, lambda: (repr((grid.width, share)).encode(), whole.astype("<i8").tobytes()))
    return own.discrete_normal(share, len(whole))
