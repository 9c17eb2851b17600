"""Policies that follow a quantile of the clients' norms, learned from counts that are released with the sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dpfedmeta.parameters import Params
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.policies.base import ATTACHED, Mode
from dpfedmeta.privacy.units import Client


@dataclass(frozen=True, kw_only=True)
class QuantileState:
    """The bound alone."""

    bound: float
    mode: Mode = "following"


@dataclass(frozen=True, kw_only=True)
class BelowBound:
    """One number a client: +1/2 if its norm is within the bound, -1/2 if it was clipped."""

    scale: float
    size: int = 1
    sensitivity: float = 0.5

    def values(self, norm: float, bound: float) -> Sequence[float]:
        """The centred bit."""
        return (0.5 if norm <= bound else -0.5,)


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """Andrew et al. (2021): C <- C exp(-rate (share of unclipped clients - quantile)).

    The share is the noisy sum of bits over L, both public. Flower's wrapper counts clipped clients in this update, so
    its bound runs away; here a test fixes the direction.

    Attributes:
        initial_bound: C_0.
        quantile: gamma, the share of clients that shall stay unclipped.
        rate: eta, step of the geometric update.
        lowest: C_min.
        highest: C_max.
        attachment: The bit; the released number over s C is the mean of the centred bits.

    Guarantee:
        Post-processing of a release whose event covers the bits: the joint formula in `Attachment`.
    """

    initial_bound: float
    quantile: float
    rate: float
    lowest: float
    highest: float
    attachment: BelowBound

    def initial(self) -> QuantileState:
        """C_0."""
        return QuantileState(bound=self.initial_bound)

    def next_bound(self, state: QuantileState, aggregate: Released[Client, Params]) -> tuple[QuantileState, float]:
        """One geometric step."""
        centred = float(aggregate.value[ATTACHED][0]) / (self.attachment.scale * state.bound)
        moved = state.bound * math.exp(-self.rate * (centred + 0.5 - self.quantile))
        bound = min(max(moved, self.lowest), self.highest)
        return replace(state, bound=bound), bound


@dataclass(frozen=True, kw_only=True)
class Histogram:
    """One number in `size` a client: 1 in the cell of its norm on a geometric grid, 0 elsewhere.

    Attributes:
        scale: s.
        edges: Upper edges of all cells but the last, rising.
    """

    scale: float
    edges: tuple[float, ...]
    sensitivity: float = 1.0

    @classmethod
    def between(cls, lowest: float, highest: float, scale: float) -> Histogram:
        """A cell for each factor of two."""
        steps = max(1, math.ceil(math.log2(highest / lowest)))
        ratio = highest / lowest
        return cls(scale=scale, edges=tuple(lowest * ratio ** (i / steps) for i in range(steps + 1)))

    @property
    def size(self) -> int:
        """Cells, the last one for everything above the grid."""
        return len(self.edges) + 1

    def values(self, norm: float, bound: float) -> Sequence[float]:
        """The one-hot cell."""
        cell = next((i for i, edge in enumerate(self.edges) if norm <= edge), len(self.edges))
        return [1.0 if i == cell else 0.0 for i in range(self.size)]


@dataclass(frozen=True, kw_only=True)
class Median:
    """The median of the norms of each round (Geyer et al. 2017), made private.

    The published rule releases the median of raw norms. Here each client reports the cell of its norm on a public
    geometric grid around C_0; the noisy histogram is released with the sum, and the bound is the cell edge where the
    cumulative noisy count, averaged over the last W rounds, passes half of the public L.

    Attributes:
        initial_bound: C_0, the middle of the grid.
        window: W, rounds whose histograms are averaged.
        attachment: The grid, from C_min to C_max.

    Guarantee:
        Post-processing of a release whose event covers the histogram: one client moves one cell by 1.
    """

    initial_bound: float
    window: int
    attachment: Histogram

    def initial(self) -> MedianState:
        """C_0."""
        return MedianState(bound=self.initial_bound)

    def next_bound(self, state: MedianState, aggregate: Released[Client, Params]) -> tuple[MedianState, float]:
        """The first edge that half of the expected clients lie below."""
        share = tuple(float(v) / (self.attachment.scale * state.bound) for v in aggregate.value[ATTACHED])
        shares = (*state.shares, share)[-self.window :]
        total, bound = 0.0, self.attachment.edges[-1]
        for place, edge in enumerate(self.attachment.edges):
            total += sum(each[place] for each in shares) / len(shares)
            if total >= 0.5:
                bound = edge
                break
        return replace(state, shares=shares, bound=bound), bound


@dataclass(frozen=True, kw_only=True)
class MedianState:
    """The bound, and the released shares of the last W rounds."""

    bound: float
    shares: tuple[tuple[float, ...], ...] = ()
    mode: Mode = "following"
