"""A quantile of the clients' norms, learned from bits that are released with the sum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policy import ATTACHED, Mode, Surroundings, check_counts, clip_limits, counts_scale

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit


@dataclass(frozen=True, kw_only=True)
class QuantileState:
    """The bound alone."""

    bound: float
    mode: Mode = "following"


@dataclass(frozen=True, kw_only=True)
class BelowBound:
    """Attachment of one number a client: +1/2 if its norm is within the bound, -1/2 if it was clipped."""

    scale: float
    size: int = 1
    sensitivity: float = 0.5

    def values(self, norm: float, bound: float) -> Sequence[float]:
        """The centred bit."""
        return (0.5 if norm <= bound else -0.5,)


@dataclass(frozen=True, kw_only=True)
class QuantilePolicy:
    """C <- C exp(-rate (share of unclipped clients - quantile)).

    Andrew et al. 2021 (https://arxiv.org/abs/1905.03871).

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

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> QuantilePolicy:
        """Build the policy from the settings.

        Raises:
            InputError: C_0 is out of range.
            RefusedPlan: There are no exact norms, or the bits would cost more than a round may.
        """
        lowest, highest = clip_limits(clip)
        check_counts(clip, around)
        return cls(
            initial_bound=clip.initial,
            quantile=clip.quantile,
            rate=clip.rate,
            lowest=lowest,
            highest=highest,
            attachment=BelowBound(scale=counts_scale(clip, around, sensitivity=0.5)),
        )

    def initial(self) -> QuantileState:
        """C_0."""
        return QuantileState(bound=self.initial_bound)

    def next_bound(self, state: QuantileState, aggregate: Released[ClientUnit, Params]) -> tuple[QuantileState, float]:
        """Move the clip bound by one geometric step towards the quantile."""
        centred = float(aggregate.value[ATTACHED][0]) / (self.attachment.scale * state.bound)
        moved = state.bound * math.exp(-self.rate * (centred + 0.5 - self.quantile))
        bound = min(max(moved, self.lowest), self.highest)
        return replace(state, bound=bound), bound


MEMBER = QuantilePolicy
