"""Public constants of numbers that are predicted. Needs no PyTorch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from dpfedmeta.core.errors import InputError

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Above = Annotated[float, Field(gt=0, allow_inf_nan=False)]
# A network sees a difference of at least so much between the two ends of the range.
_NARROWEST = 1e-3


@dataclass(frozen=True, kw_only=True)
class TargetRange:
    """Section `targets` of a task file: what everybody knows of the numbers, before anybody looks at data.

    A network predicts (number - centre) / scale. None of the constants may come from private data: a mean over clients
    would tell of them without noise.

    Attributes:
        centre: Number that the network sees as 0.
        scale: Difference of numbers that the network sees as 1.
        lowest: Smallest number that a record may have.
        highest: Largest number that a record may have.
        loss: Squared error, or Huber's, which grows linearly beyond `huber`.
        huber: Where Huber's loss becomes linear, in scales.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")
    centre: _Finite
    scale: _Above
    lowest: _Finite
    highest: _Finite
    loss: Literal["squared", "huber"] = "squared"
    huber: _Above = 1.0

    def __post_init__(self) -> None:
        """Check that the range holds numbers, and the centre.

        Raises:
            InputError: It does not.
        """
        if not self.lowest < self.highest:
            raise InputError(
                f"targets: lowest = {self.lowest:g} and highest = {self.highest:g}: lowest must be below highest"
            )
        width = self.highest - self.lowest
        if not self.lowest - width <= self.centre <= self.highest + width:
            raise InputError(
                f"targets: centre = {self.centre:g}: is far from the numbers, which are {self.words} (lowest, highest)"
            )

        if width / self.scale < _NARROWEST:
            raise InputError(
                f"targets: scale = {self.scale:g}: is far above the range, {width:g}; all numbers would look alike"
            )

    def outside(self, numbers: Sequence[float]) -> list[int]:
        """Return the places of numbers that are missing or beyond the range."""
        return [place for place, number in enumerate(numbers) if not self.lowest <= number <= self.highest]

    @property
    def words(self) -> str:
        """For people."""
        return f"from {self.lowest:g} to {self.highest:g}"
