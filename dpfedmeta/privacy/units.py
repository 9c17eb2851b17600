"""The secret side of the border: privacy units, and values with a known sensitivity.

Read this beside mechanisms.py, where a value crosses to the released side.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, final

from dpfedmeta.core.params import host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dpfedmeta.core.params import Params
    from dpfedmeta.core.random.random_sources import IntArray


class ClientUnit:
    """Privacy unit: one whole client (adjacency: one client added or removed)."""


class RecordUnit:
    """Privacy unit: one record of one client (adjacency: replaced by a null record, which adds nothing).

    The gradient of a null record is 0, and so is that of a micro-episode that holds one.
    """


Unit = TypeVar("Unit")
Value = TypeVar("Value")


class Grid(Protocol):
    """Grid of a sum of whole numbers, by which a released sum is read."""

    @property
    def width(self) -> float:
        """Width of one step of the grid, in the units of messages."""
        ...

    def centred(self, total: IntArray) -> IntArray:
        """A sum, as the numbers around 0 that it stands for."""
        ...

    def read(self, released: Params) -> Params:
        """Convert a released sum back to the form of messages."""
        ...


def pieces_of(params: Params) -> Iterator[bytes]:
    """SECRET: names, forms and every bit of tensors, from which the noise that is added to them follows."""
    for name, value in sorted(params.items()):
        array = host(value)
        yield f"{name} {array.dtype} {array.shape}".encode()
        yield array.tobytes()


def message_of(query: Bounded[Unit, Params], *constants: float) -> Iterator[bytes]:
    """SECRET: the exact value that is released, and what its noise is scaled with.

    Two values that differ in anything have independent noises by it (keyed_streams.for_message).

    Args:
        query: The value.
        constants: Of the mechanism: multiplier and denominator.
    """
    yield repr((query.sensitivity, query.noise_variance, query.grid and query.grid.width, constants)).encode()
    yield from pieces_of(query.value)


@final
@dataclass(frozen=True, kw_only=True)
class Bounded(Generic[Unit, Value]):
    """A SECRET value that one unit moves by at most `sensitivity` in L2 norm.

    The sensitivity travels with the value that was clipped to it, so noise scaled with another round's
    bound cannot be written.

    Attributes:
        value: The secret value, a sum over units.
        sensitivity: Largest L2 change by one unit; inf where nothing bounds it.
        noise_variance: Variance per coordinate of data-independent Gaussian noise that is part of `value` if every
            client added its own (shared mode, split noise). A mechanism tops it up.
        grid: Where `value` is a sum of whole numbers, its other numbers in steps of the grid: how it is read.
        left_out: Messages that came and are not in the sum: not finite, not of the model's form, or too long.
    """

    value: Value
    sensitivity: float
    noise_variance: float = 0.0
    grid: Grid | None = None
    left_out: int = 0

    def __post_init__(self) -> None:
        if not self.sensitivity >= 0:
            raise ValueError(f"a sensitivity must be a number >= 0, got {self.sensitivity}")
        if not self.noise_variance >= 0:
            raise ValueError(f"a noise variance must be a number >= 0, got {self.noise_variance}")
