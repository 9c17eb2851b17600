"""No clip bound: training without a client-level promise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policies.constant_policy import Constant
from dpfedmeta.privacy.clip_policy import Surroundings


@dataclass(frozen=True, kw_only=True)
class Unclipped(Constant):
    """An infinite bound in every round.

    Guarantee:
        None: no sensitivity, so nothing can be released with a promise to a client.
    """

    initial_bound: float = math.inf
    bounded: ClassVar[bool] = False

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> Unclipped:
        """Nothing to choose."""
        return cls()


MEMBER = Unclipped
