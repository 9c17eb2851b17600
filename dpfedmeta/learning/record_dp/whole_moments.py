"""Moments of records that are whole numbers to begin with, so that a sum of them needs no rotation and no rounding.

Rounding a whole message would lengthen what one record moves, and would lose that exchanged records are sqrt(2) apart
and not 2. So records are rounded, and the message adds the integer matrices of z z' and u u', which are positive
semidefinite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.accounting.events.integer_sum import WholeSum, rounded_length
from dpfedmeta.accounting.relations.relations import MomentBlocks
from dpfedmeta.core.params import same_kind, vector_of
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, SecretGenerator
from dpfedmeta.learning.record_dp.second_moments import TOTAL, WITHIN, SecondMoments

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params

# A try succeeds with probability 0.39 at least.
_MOST_TRIES = 1000


@dataclass(frozen=True, kw_only=True)
class WholeMoments:
    """Public constants of a message of whole numbers.

    Attributes:
        moments: The message that they stand for.
        records: n, of a client.
        scale: s, by which z is multiplied before it is rounded; u by s sqrt(beta) / c.
    """

    moments: SecondMoments
    records: int
    scale: float

    @property
    def dimension(self) -> int:
        """All entries of both matrices: each carries noise, and the reader takes the mean of the two triangles."""
        return (self.moments.directions + 1) ** 2 + self.moments.directions**2

    @property
    def lengths(self) -> tuple[int, int]:
        """Largest squared length of a rounded record, and of a rounded difference."""
        size, pairs = self.moments.directions, math.sqrt(self.moments.pair_weight)
        record = rounded_length(self.scale, size + 1)
        return math.floor(record**2), math.floor(rounded_length(self.scale * pairs, size) ** 2)

    @property
    def blocks(self) -> MomentBlocks:
        """Lengths of what one record adds to each block, after rounding."""
        record, pair = self.lengths
        return MomentBlocks(pairs=pair / record, radius=1.0)

    @property
    def longest(self) -> float:
        """Distance by which a record moves the message that counts as nothing."""
        return self.lengths[0] * self.blocks.unit

    @property
    def tallest(self) -> float:
        """Largest entry of a client's message."""
        record, pair = self.lengths
        return self.records * max(record, pair / 2.0)

    def message(self, records: Tensor, generator: SecretGenerator) -> IntArray:
        """SECRET: [dimension], the moments of one client's rounded records.

        Args:
            records: [ways, m, d], the records of each class.
            generator: The client's own, for the rounding.

        Guarantee:
            A record that becomes null moves it by `longest` at most, exactly: lengths are checked after rounding. In
            other relations as `MomentBlocks.moved` says, since all that is added is positive semidefinite.
        """
        z, u = (each.cpu().numpy() for each in self.moments.vectors(records))
        record, pair = self.lengths
        own = _rounded(z * self.scale, record, generator)
        differences = _rounded(u * (self.scale * math.sqrt(self.moments.pair_weight)), pair, generator)
        # In floats up to 2^53, which is exact and fast.
        total, within = (each.T.astype(np.float64) @ each.astype(np.float64) for each in (own, differences))
        return np.concatenate([total.ravel(), within.ravel()]).astype(np.int64)

    def grid(self, whole: WholeSum, like: Any) -> MomentGrid:
        """Reader of a sum of such messages.

        Args:
            whole: Public constants of the sum.
            like: An array of the kind that is wanted.
        """
        return MomentGrid(own=self, whole=whole, like=like)


def _rounded(values: FloatArray, limit: int, generator: SecretGenerator) -> IntArray:
    """Rows up or down by coins of their own, again where they come out longer than the root of the limit."""
    lower = np.floor(values)
    found = np.zeros(values.shape, dtype=np.int64)
    due: npt.NDArray[np.bool_] = np.asarray(values.any(axis=1))
    for _ in range(_MOST_TRIES):
        if not due.any():
            return found
        rows = np.flatnonzero(due)
        coins = generator.words(rows.size * values.shape[1]).reshape(rows.size, -1).astype(np.float64) / 2.0**64
        tried = (lower[rows] + (coins < values[rows] - lower[rows])).astype(np.int64)
        short = np.square(tried).sum(axis=1) <= limit
        found[rows[short]] = tried[short]
        due[rows[short]] = False
    raise ValueError("a record longer than its bound reached the rounding")


@dataclass(frozen=True, kw_only=True, eq=False)
class MomentGrid:
    """Reading of a sum of whole moments, in the form of `SecondMoments.message`.

    Attributes:
        own: Public constants of a message.
        whole: Public constants of the sum.
        like: An array of the kind that is wanted.
    """

    own: WholeMoments
    whole: WholeSum
    like: Any

    @property
    def steps(self) -> int:
        """Steps of the sum for each of a message: more than 1 where shares of the noise would be below a step."""
        return round(self.whole.units / self.own.longest)

    @property
    def width(self) -> float:
        """Width of a step: a client moves what is read by 1 at most.

        Rounding lengthens records, so what is read is a little less than the mean of exact messages, all blocks alike;
        to `SecondMoments.metric` that is a share of the records.
        """
        return 1.0 / self.whole.of_a_client

    def centred(self, total: IntArray) -> IntArray:
        """A sum modulo 2^b, as the numbers around 0 that it stands for."""
        half = 1 << (self.whole.bits - 1)
        return (total + half) % (2 * half) - half

    def read(self, released: Params) -> Params:
        """Convert a released sum back to the form of messages. This is post-processing."""
        values, size = vector_of(released) * self.width, self.own.moments.directions
        parts = {TOTAL: (values[: (size + 1) ** 2], size + 1), WITHIN: (values[(size + 1) ** 2 :], size)}
        return {name: same_kind(_packed(part.reshape(side, side)), self.like) for name, (part, side) in parts.items()}


def _packed(matrix: FloatArray) -> Any:
    """The mean of both triangles, as `second_moments.packed` has it."""
    row, column = np.triu_indices(len(matrix), 1)
    above = (matrix[row, column] + matrix[column, row]) / math.sqrt(2.0)
    return np.concatenate([matrix.diagonal(), above]).astype(np.float32)
