"""Messages as whole numbers: their sum is exact, so no order of clients, workers or machines can change a bit of it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from dpfedmeta.core.params import float64, host, int64, is_numpy, zeros
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.privacy.discretised.fixed_point_jit import add_shortened, squared_length

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# A coordinate of the longest message is at most so many bits long, which leaves 27 of 63 for MOST_MESSAGES.
_BITS = 36
# Without a clip bound nothing says how long a message may be. A longer one comes from training that has diverged.
_LONGEST_UNBOUNDED = 2.0**20
# As small as a float can be scaled by without losing bits.
_LEAST_EXPONENT = -1022
# Whole numbers that were added up, and how many messages entered.
WholeTotal = tuple["Tensor", int]


@dataclass(frozen=True, kw_only=True)
class WholeNumbers:
    """Conversion of one round's messages to whole numbers; public, and the same for all of its clients.

    Attributes:
        longest: Largest L2 norm of a message.
        units: Powers of two, from coarse to fine: a coordinate is a whole number of each. One is enough where a clip
            bound says what is small; two hold any float32 of use otherwise.

    Guarantee:
        A sum over clients keeps its sensitivity. Rounding goes towards zero, so no coordinate grows, hence no message's
        norm does; whole numbers are added without any rounding, hence one client, added or removed, still moves the sum
        by at most the norm that its message was clipped to, and a replaced one by twice that. Noise that a message
        carries is rounded with it, by less than the finest unit, 2^-36 of the longest message or less; like the
        rounding of floats, that is not in the proof (see mechanisms.GaussianMechanism).
    """

    longest: float
    units: tuple[float, ...]

    @classmethod
    def for_messages(cls, longest: float) -> WholeNumbers:
        """For messages of at most this norm; inf where nothing bounds them."""
        if math.isinf(longest):
            coarse = _LONGEST_UNBOUNDED * 2.0**-_BITS
            return cls(longest=_LONGEST_UNBOUNDED, units=(coarse, coarse * 2.0**-_BITS))
        _, exponent = math.frexp(longest)
        return cls(longest=longest, units=(math.ldexp(1.0, max(exponent - _BITS, _LEAST_EXPONENT)),))

    @classmethod
    def for_bounded(cls, bound: float, own_noise: float = 0.0, size: int = 0) -> WholeNumbers:
        """For messages of a bounded part and Gaussian noise; an honest one is longer with probability below exp(-50).

        Args:
            bound: Largest norm of the bounded part.
            own_noise: Deviation per coordinate of a message's own noise.
            size: Coordinates of a message.
        """
        return cls.for_messages(bound * (1.0 + 1e-5) + own_noise * (math.sqrt(size) + 10.0))

    def of(self, values: Tensor) -> Tensor:
        """int64 [units, d] from float64 [d], of norm at most `longest`; rounded towards zero."""
        # The conversion to int64 drops the places behind the point: it rounds towards zero.
        parts: list[Any] = [int64(values / self.units[0])]
        for coarser, unit in pairwise(self.units):
            values = values - float64(parts[-1]) * coarser
            parts.append(int64(values / unit))
        if len(parts) == 1:
            return parts[0][None]  # type: ignore[no-any-return]
        if is_numpy(values):
            return np.stack(parts)  # type: ignore[return-value]
        import torch

        return torch.stack(parts)

    def accepted(self, values: Tensor) -> Tensor | None:
        """The same, or None for what no honest client sends: not finite, or longer than `longest`."""
        return self.of(values) if self._honest(host(values)) else None

    def _honest(self, values: FloatArray) -> bool:
        # In float64 a norm is finite where every scalar is.
        return math.isfinite(length := math.sqrt(squared_length(values))) and length <= self.longest

    def total(self, messages: Iterable[Tensor | None], size: int) -> WholeTotal:
        """SECRET: the sum of the messages that an honest client may send, and how many these are; None is not one."""
        total, entered = self.zero(size), 0
        for values in messages:
            if values is not None and self._honest(own := host(values)):
                if len(self.units) == 1:
                    # The same numbers, without a copy of a long message for each operation.
                    add_shortened(own, 1.0, 1.0 / self.units[0], total[0].numpy())
                else:
                    total += self.of(values.double().cpu())
                entered += 1
        return total, entered

    def zero(self, size: int, device: torch.device | None = None) -> Tensor:
        """The sum of no messages of `size` coordinates."""
        import torch

        return torch.zeros(len(self.units), size, dtype=torch.int64, device=device)

    def values(self, total: Tensor) -> Tensor:
        """float64 [d] from a sum of at most events.failure_probability.MOST_MESSAGES."""
        parts = [float64(part) * unit for part, unit in zip(total, self.units, strict=True)]
        # From fine to coarse, so that little is lost.
        return sum(reversed(parts), start=zeros(parts[0]))  # type: ignore[no-any-return]
