"""Walk of a policy's bound to the knee where clipping begins, once the elasticity there is estimated."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policy import clip_limits


@dataclass(frozen=True, kw_only=True)
class Walk:
    """Limits and steps of the centre of a search for the knee: pure functions of released values.

    Below the knee every contribution is clipped and the clipped mean grows in proportion to C: its elasticity
    d ln||signal|| / d ln C is 1. Above it nothing is clipped and the elasticity is 0, while the noise keeps growing.

    Attributes:
        lowest: C_min of the centre.
        highest: C_max of the centre.
        target_elasticity: Elasticity that the centre moves to: 1 clips everything, 0 clips nothing.
        probe: Ratio of the upper to the centre bound, and of the centre to the lower one.
        gain: Step of ln(centre) per unit of elasticity error.
    """

    lowest: float
    highest: float
    target_elasticity: float = 0.85
    probe: float = 1.25
    gain: float = 1.2

    @classmethod
    def planned(cls, clip: ClipSettings) -> Walk:
        """Between the limits of the settings.

        Raises:
            InputError: C_0 is out of range.
        """
        lowest, highest = clip_limits(clip)
        return cls(lowest=lowest, highest=highest)

    def moved(self, centre: float, elasticity: float) -> float:
        """Up where the mean still grows with the bound, down where it does not."""
        return self.within(centre * math.exp(self.gain * (elasticity - self.target_elasticity)))

    def within(self, centre: float) -> float:
        """Between the limits."""
        return min(max(centre, self.lowest), self.highest)

    def other_side(self, centre: float, bound: float, following: float) -> float:
        """The next bound, around the centre `following`: below it where the last one lay above its own, and back."""
        return following / self.probe if bound > centre else following * self.probe
