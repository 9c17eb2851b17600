"""What a clip policy is: a pure state machine from released aggregates to the next clip bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, Protocol, TypeVar

from dpfedmeta.errors import RefusedPlan
from dpfedmeta.parameters import Params
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import Client

Mode = Literal["constant", "following", "searching", "holding"]

# Name under which a message carries what its policy asks for, beside the model's parameters.
ATTACHED = "clip.attached"


class PolicyState(Protocol):
    """What every policy's state can say."""

    @property
    def bound(self) -> float:
        """The clip bound of the next round."""
        ...

    @property
    def mode(self) -> Mode:
        """What the policy is doing, for people."""
        ...


State = TypeVar("State")


class Attachment(Protocol):
    """What each client adds to its message so that the policy learns about norms; released with the sum, never alone.

    The numbers ride as further coordinates of the message, scaled by s C: the sum has sensitivity C sqrt(1 + s^2 a^2)
    and one isotropic noise of multiplier z covers both. That is the joint formula of Andrew et al. (2021): for counts
    of noise deviation b, 1/z^2 = 1/z_sum^2 + a^2/b^2, so the event of a round stays the same and the sum pays a little.
    """

    @property
    def size(self) -> int:
        """How many numbers."""
        ...

    @property
    def sensitivity(self) -> float:
        """a, the largest L2 norm of the numbers of one client."""
        ...

    @property
    def scale(self) -> float:
        """S."""
        ...

    def values(self, norm: float, bound: float) -> Sequence[float]:
        """SECRET: one client's numbers, from the norm of its message before clipping."""
        ...


class ClipPolicy(Protocol[State]):
    """A pure state machine over released aggregates."""

    @property
    def attachment(self) -> Attachment | None:
        """What it needs beside the aggregate; None: nothing."""
        ...

    def initial(self) -> State:
        """The state before the first round."""
        ...

    def next_bound(self, state: State, aggregate: Released[Client, Params]) -> tuple[State, float]:
        """The state and the clip bound after `aggregate` was released."""
        ...


def attached_scale(noise: float, count_noise: float, sensitivity: float) -> float:
    """s: with it, sums of attached numbers carry noise of deviation `count_noise`.

    Args:
        noise: z of the round.
        count_noise: b.
        sensitivity: a.

    Raises:
        RefusedPlan: The counts alone would cost more than the round may.
    """
    left = count_noise**2 - (noise * sensitivity) ** 2
    if left <= 0:
        raise RefusedPlan(
            f"clip.count_noise = {count_noise:g}: counts with so little noise cost more than a round with "
            f"z = {noise:.3g} may; give more than {noise * sensitivity:.3g}"
        )
    return noise / math.sqrt(left)
