"""The percentile rule of DP-AGR as published, on noisy aggregates; kept for the comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policy import Mode, Surroundings, check_window, clip_limits

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit


@dataclass(frozen=True, kw_only=True)
class LiteralState:
    """The bound, and the norms of the last W aggregates."""

    bound: float
    norms: tuple[float, ...] = ()
    mode: Mode = "following"


@dataclass(frozen=True, kw_only=True)
class WindowLiteral:
    """C = k-th percentile of the norms of the last W noisy aggregates (DP-AGR, Wang et al. 2022).

    Unstable: it collapses or explodes, up to `lowest` and `highest` (docs/policies.md).

    Attributes:
        initial_bound: C_0, until W aggregates are known.
        window: W.
        percentile: k, from 0 to 100.
        lowest: C_min.
        highest: C_max.

    Guarantee:
        Post-processing of released aggregates; no event. (The published code takes raw client norms instead, which
        leave no mechanism.)
    """

    initial_bound: float
    window: int
    percentile: float
    lowest: float
    highest: float
    attachment: None = None

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> WindowLiteral:
        """Build the policy from the settings.

        Raises:
            InputError: The window is longer than the run, or C_0 out of range.
        """
        lowest, highest = clip_limits(clip)
        check_window(clip, around)
        return cls(
            initial_bound=clip.initial, window=clip.window, percentile=clip.percentile, lowest=lowest, highest=highest
        )

    def initial(self) -> LiteralState:
        """C_0."""
        return LiteralState(bound=self.initial_bound)

    def next_bound(self, state: LiteralState, aggregate: Released[ClientUnit, Params]) -> tuple[LiteralState, float]:
        """The percentile, once W aggregates are known."""
        norms = (*state.norms, aggregate.length)[-self.window :]
        bound = state.bound
        if len(norms) == self.window:
            bound = min(max(float(np.percentile(norms, self.percentile)), self.lowest), self.highest)
        return replace(state, norms=norms, bound=bound), bound


MEMBER = WindowLiteral
