"""Moments of records that are whole numbers to begin with, so that a sum of them needs no rotation and no rounding.

Rounding a whole message would lengthen what one record moves, and would lose that exchanged records are sqrt(2) apart
and not 2. So records are rounded, and the message adds the integer matrices of z z' and u u', which are positive
semidefinite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.accounting.relations.relations import MomentBlocks
from dpfedmeta.core.params import same_kind, vector_of
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, SecretGenerator
from dpfedmeta.learning.record_dp.moment_blocks import BlockMoments, Rows

if TYPE_CHECKING:
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

    moments: BlockMoments
    records: int
    scale: float

    @property
    def dimension(self) -> int:
        """All entries of all blocks."""
        return self.moments.entries

    @property
    def blocks(self) -> MomentBlocks:
        """Lengths of what one record adds to each block, after rounding."""
        known, lengths = self.moments.blocks, [block.longest(self.scale) for block in self.moments.parts]
        other = lengths[-1] / lengths[0]
        return MomentBlocks(
            pairs=other if known.pairs else 0.0,
            labels=other if known.labels else 0.0,
            # Rounded anew, a row with another number to predict is any other row.
            target=2.0 if known.target else 0.0,
        )

    @property
    def longest(self) -> float:
        """Distance by which a record moves the message that counts as nothing."""
        return self.moments.parts[0].longest(self.scale) * self.blocks.unit

    @property
    def tallest(self) -> float:
        """Largest entry of a client's message."""
        return self.records * max(block.longest(self.scale) * block.share for block in self.moments.parts)

    def message(self, rows: Rows, generator: SecretGenerator) -> IntArray:
        """SECRET: [dimension], the moments of one client's rounded records.

        Args:
            rows: The vectors of each block, of length 1 at most.
            generator: The client's own, for the rounding.

        Guarantee:
            A record that becomes null moves it by `longest` at most, exactly: lengths are checked after rounding. In
            other relations as `MomentBlocks.moved` says, since all squares that are added are positive semidefinite.
        """
        found, rounded = list[IntArray](), np.zeros((0, 0), dtype=np.int64)
        for block, (vectors, members) in zip(self.moments.parts, rows, strict=True):
            # Sums by label are of the same vectors as the squares before them, and so are their rounded ones.
            if members is None:
                scaled = vectors.cpu().numpy() * block.scale(self.scale)
                rounded = _rounded(scaled, block.limit(self.scale), generator)
            found.append(block.whole(rounded, members, self.scale))
        return np.concatenate(found)

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
    """Reading of a sum of whole moments, in the form of exact moments.

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
        to whoever solves that is a share of the records.
        """
        return 1.0 / self.whole.of_a_client

    def centred(self, total: IntArray) -> IntArray:
        """A sum modulo 2^b, as the numbers around 0 that it stands for."""
        half = 1 << (self.whole.bits - 1)
        return (total + half) % (2 * half) - half

    def read(self, released: Params) -> Params:
        """Convert a released sum back to the form of messages. This is post-processing."""
        values, blocks = vector_of(released) * self.width, self.own.moments.parts
        ends = np.cumsum([block.entries for block in blocks])[:-1]
        parts = zip(blocks, np.split(values, ends), strict=True)
        return {block.name: same_kind(block.read(own, self.own.scale), self.like) for block, own in parts}
