"""Blocks of a message of moments: sums of squares, and sums by label, as vectors and as whole numbers."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np

from dpfedmeta.accounting.events.integer_sum import rounded_length

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dpfedmeta.accounting.relations.relations import MomentBlocks
    from dpfedmeta.core.params import Params
    from dpfedmeta.core.random.random_sources import FloatArray, IntArray

Rows: TypeAlias = "list[tuple[Tensor, Tensor | None]]"
"""SECRET: of each block the vectors, and the labels that they have as zeros and ones."""
# Bounds are shortened by this share, more than the rounding of float64 adds to a sum of products.
ROUNDING = 1.0 - 1e-9


@dataclass(frozen=True, kw_only=True)
class MomentBlock:
    """Part of a message: the sum of x x' over vectors x of length 1 at most, or the sum of x by label.

    Attributes:
        name: In a message.
        size: Numbers of a vector.
        weight: Most that a vector adds.
        labels: Number of labels, over which vectors are added; 0: squares are.
        share: Vectors for each record.
    """

    name: str
    size: int
    weight: float
    labels: int = 0
    share: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Form of it: a symmetric matrix travels as its diagonal and sqrt(2) times what is above it."""
        return (self.labels, self.size) if self.labels else (self.size * (self.size + 1) // 2,)

    def added(self, vectors: Tensor, members: Tensor | None, share: float) -> Tensor:
        """SECRET: `share` of the block of some vectors [n, size], and of their labels [n, labels] as zeros and ones."""
        import torch

        left, nothing = vectors if members is None else members.to(vectors.dtype), vectors.new_zeros(())
        # One product and nothing besides: clients' time is that of reading and writing matrices.
        sums = torch.addmm(nothing, left.T, vectors, beta=0.0, alpha=share * self.weight)
        return packed(sums) if members is None else sums

    def scale(self, whole: float) -> float:
        """What vectors are multiplied by before they are rounded, where 1 is `whole` squared."""
        return whole if self.labels else whole * math.sqrt(self.weight)

    def limit(self, whole: float) -> int:
        """Largest squared length of a rounded vector."""
        return math.floor(rounded_length(self.scale(whole), self.size) ** 2)

    def factor(self, whole: float) -> int:
        """What rounded vectors are multiplied by in a sum by label, a whole number."""
        return max(1, round(self.weight * whole))

    def longest(self, whole: float) -> float:
        """Most that a rounded vector adds."""
        limit = self.limit(whole)
        return self.factor(whole) * math.sqrt(limit) if self.labels else float(limit)

    @property
    def entries(self) -> int:
        """Whole numbers of it: all of a matrix, since each carries noise, and the reader takes both triangles."""
        return (self.labels or self.size) * self.size

    def whole(self, rounded: IntArray, members: Tensor | None, scale: float) -> IntArray:
        """SECRET: [entries], the block of rounded vectors, exactly."""
        # In floats up to 2^53, which is exact and fast.
        vectors = rounded.astype(np.float64)
        left = vectors if members is None else members.cpu().numpy().astype(np.float64) * self.factor(scale)
        return (left.T @ vectors).ravel().astype(np.int64)

    def read(self, entries: FloatArray, scale: float) -> Any:
        """The block, from entries of this many: the mean of both triangles, as `packed` has it."""
        matrix = entries.reshape(-1, self.size)
        if self.labels:
            return (matrix * (self.weight * scale / self.factor(scale))).astype(np.float32)
        row, column = np.triu_indices(self.size, 1)
        above = (matrix[row, column] + matrix[column, row]) / math.sqrt(2.0)
        return np.concatenate([matrix.diagonal(), above]).astype(np.float32)


def packed(matrix: Tensor) -> Tensor:
    """[D, D], symmetric -> [D (D + 1) / 2]: the diagonal, and sqrt(2) times what is above it; lengths stay."""
    places, factors = _places(len(matrix), matrix.dtype, matrix.device)
    return matrix.reshape(-1).index_select(0, places).mul_(factors)


@lru_cache(maxsize=8)
def _places(size: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Places of the diagonal, then of what is above it, in a matrix that is read row by row; and its factors."""
    import torch

    row, column = torch.triu_indices(size, size, 1, device=device)
    diagonal = torch.arange(size, device=device) * (size + 1)
    places = torch.cat([diagonal, row * size + column])
    factors = torch.full((len(places),), math.sqrt(2.0), dtype=dtype, device=device)
    factors[:size] = 1.0
    return places, factors


def unpacked(vector: Tensor, size: int) -> Tensor:
    """The inverse."""
    import torch

    row, column = torch.triu_indices(size, size, 1)
    above = torch.zeros(size, size, dtype=vector.dtype)
    above[row, column] = vector[size:] / math.sqrt(2.0)
    return above + above.T + torch.diag(vector[:size])


def sound_rows(records: Tensor, *, single: bool = False) -> tuple[Tensor, Tensor]:
    """SECRET: (records [..., d], those that are not finite 0, float64 or float32; [..., 1], which are finite)."""
    import torch

    raw = records.float() if single else records.double()
    # The largest is nan or infinite where any number is.
    sound = torch.isfinite(raw.abs().amax(-1, keepdim=True))
    return torch.where(sound, raw, 0.0), sound


def shortened(records: Tensor, radius: float | None) -> Tensor:
    """Vectors over R where they are no longer than R, else at length 1; with None at length 1, all that are not 0."""
    import torch

    radius = radius or torch.finfo(records.dtype).tiny
    # The largest number first, so that no square overflows.
    largest = records.abs().amax(-1, keepdim=True).clamp_min(radius)
    scaled = records / largest
    lengths = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled.mul_(ROUNDING / lengths.clamp_min_(radius / largest))


def weighed(found: Tensor, target: Tensor, noise: float) -> tuple[Tensor, float]:
    """What was found, towards a target, by how much of their distance is more than noise; and the weight of the former.

    James and Stein 1961 with the known noise (for covariances Ledoit and Wolf 2004,
    https://doi.org/10.1016/S0047-259X(03)00096-4): weight 1 - |noise|^2 / |found - target|^2, at least 0.
    """
    weight = 1.0 - noise / max(float((found - target).square().sum()), 1e-300) if noise else 1.0
    weight = max(weight, 0.0)
    return weight * found + (1.0 - weight) * target, weight


def most_noise(variance: float, numbers: int) -> float:
    """Squared length of noise of so many numbers, two deviations above its mean: noise alone rarely counts."""
    return variance * (numbers + 2.0 * math.sqrt(2.0 * numbers))


class BlockMoments:
    """Message of several blocks, in units of what a record costs that counts as nothing.

    Attributes:
        parts: Its blocks.
        blocks: Lengths of what one record adds to each.
    """

    parts: tuple[MomentBlock, ...]
    blocks: MomentBlocks

    @property
    def entries(self) -> int:
        """Entries of all matrices: numbers of a message under sums."""
        return sum(block.entries for block in self.parts)

    def of_size(self, size: int) -> Self:
        """The same of records with so many numbers."""
        raise NotImplementedError

    def most_numbers(self, entries: int) -> int:
        """The most numbers of a record with no more than so many entries."""
        return bisect_right(range(1, entries + 1), entries, key=lambda size: self.of_size(size).entries)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Forms of the blocks."""
        return {block.name: block.shape for block in self.parts}

    def summed(self, rows: Rows, over: float = 1.0) -> Params:
        """SECRET: all blocks of these rows, in their precision, over a public number.

        Guarantee:
            In float64, where a record becomes null in its place, `over` times they move by 1 at most in L2; in other
            relations as `MomentBlocks.moved` says.
        """
        share = 1.0 / (over * self.blocks.unit)
        return {block.name: block.added(*own, share) for block, own in zip(self.parts, rows, strict=True)}
