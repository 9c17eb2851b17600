"""The median of the clients' norms, read off a histogram that is released with the sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policy import (
    ATTACHED,
    Mode,
    Surroundings,
    check_counts,
    check_window,
    clip_limits,
    counts_scale,
)

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit


@dataclass(frozen=True, kw_only=True)
class NormHistogram:
    """Attachment of `size` numbers a client: 1 in the cell of its norm on a geometric grid, 0 elsewhere.

    Attributes:
        scale: s.
        edges: Upper edges of all cells but the last, rising.
    """

    scale: float
    edges: tuple[float, ...]
    sensitivity: float = 1.0

    @classmethod
    def between(cls, lowest: float, highest: float, scale: float) -> NormHistogram:
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
    """The median of the norms of each round (Geyer et al. 2017, https://arxiv.org/abs/1712.07557), made private.

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
    attachment: NormHistogram

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> Median:
        """Build the policy from the settings.

        Raises:
            InputError: The window is longer than the run, or C_0 out of range.
            RefusedPlan: There are no exact norms, or the counts would cost more than a round may.
        """
        lowest, highest = clip_limits(clip)
        check_window(clip, around)
        check_counts(clip, around)
        scale = counts_scale(clip, around, sensitivity=1.0)
        return cls(
            initial_bound=clip.initial,
            window=clip.window,
            attachment=NormHistogram.between(lowest, highest, scale=scale),
        )

    def initial(self) -> MedianState:
        """C_0."""
        return MedianState(bound=self.initial_bound)

    def next_bound(self, state: MedianState, aggregate: Released[ClientUnit, Params]) -> tuple[MedianState, float]:
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


MEMBER = Median
