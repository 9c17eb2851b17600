"""The same bound in every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policy import Mode, Surroundings

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit


@dataclass(frozen=True, kw_only=True)
class ConstantState:
    """Nothing changes."""

    bound: float
    mode: Mode = "constant"


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same bound in every round; inf for training without privacy."""

    initial_bound: float
    attachment: None = None

    @classmethod
    def planned(cls, clip: ClipSettings, around: Surroundings) -> Constant:
        """C_0 for ever."""
        return cls(initial_bound=clip.initial)

    def initial(self) -> ConstantState:
        """The bound, for ever."""
        return ConstantState(bound=self.initial_bound)

    def next_bound(self, state: ConstantState, aggregate: Released[ClientUnit, Params]) -> tuple[ConstantState, float]:
        """Ignores the aggregate."""
        return state, state.bound


MEMBER = Constant
