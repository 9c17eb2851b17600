"""Interface of a clip policy: from released aggregates to the next clip bound, and what it attaches to a message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

import numpy as np

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.params import Params, norm, same_kind
from dpfedmeta.privacy.clipping import clip, clip_per_layer

if TYPE_CHECKING:
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import ClientUnit

Mode = Literal["constant", "following", "searching", "holding"]

# Name under which a message carries what its policy asks for, beside the model's parameters.
ATTACHED = "clip.attached"

State = TypeVar("State")


class Attachment(Protocol):
    """Numbers that each client adds to its message to tell the policy about norms; released with the sum, never alone.

    The numbers are further coordinates of the message, scaled by s C: the sum has sensitivity C sqrt(1 + s^2 a^2)
    and one isotropic noise of multiplier z covers both. That is the joint formula of Andrew et al. (2021,
    https://arxiv.org/abs/1905.03871): for counts of noise deviation b, 1/z^2 = 1/z_sum^2 + a^2/b^2, so the event of a
    round stays the same and the sum gets a little more noise.
    """

    @property
    def size(self) -> int:
        """Number of values that a client attaches."""
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


def moved_by_a_client(bound: float, attachment: Attachment | None, message_clip_ratio: float | None = None) -> float:
    """Largest norm by which one client moves the sum: C, or C_q in shared mode; more with an attachment.

    Args:
        bound: Of the round.
        attachment: What rides with each message.
        message_clip_ratio: C/C_q in stacked mode, where the server clips a message again.
    """
    attached = attachment.scale * attachment.sensitivity if attachment else 0.0
    return bound * (message_clip_ratio or 1.0) * math.sqrt(1.0 + attached**2)


class ClipPolicy(Protocol[State]):
    """A pure state machine over released aggregates.

    A member of privacy/policies/, or of the user's own (package.module:name), also has `planned(clip, around)`, a class
    method that makes it from the settings, and says with `bounded = False` that it bounds nothing. What it takes
    besides is a dataclass `Settings`, filled from `clip.own` and given as `own`.
    """

    @property
    def attachment(self) -> Attachment | None:
        """Numbers that clients attach to their messages for the policy; None: it needs the aggregate alone."""
        ...

    def initial(self) -> State:
        """The state before the first round."""
        ...

    def next_bound(self, state: State, aggregate: Released[ClientUnit, Params]) -> tuple[State, float]:
        """The state and the clip bound after `aggregate` was released."""
        ...


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """Properties of a run that a clip policy is planned for.

    Attributes:
        algo: The algorithm's name, for refusals.
        rounds: T.
        cohort: L.
        noise: The largest z of the plan.
        exact: Whether clients compute exact messages, whose norms they may count.
        independent: Whether the noises of different rounds are known to be independent.
    """

    algo: str
    rounds: int
    cohort: float
    noise: float
    exact: bool
    independent: bool = True


# Beyond these the squares of float32 messages are lost, and with them what a bound bounds.
LEAST_BOUND, MOST_BOUND = 1e-18, 1e18


def bound_problem(bound: object) -> str | None:
    """Describe what is wrong with a clip bound and which values it may take; None: nothing is wrong."""
    number = isinstance(bound, float | int) and not isinstance(bound, bool)
    if number and LEAST_BOUND <= bound <= MOST_BOUND:  # type: ignore[operator]
        return None
    return f"{bound!r}, expected a number from {LEAST_BOUND:g} to {MOST_BOUND:g}"


def bounded_numbers(attachment: Attachment, norm: float, bound: float) -> list[float]:
    """SECRET: what one client attaches: at most as long as the attachment says, whatever its code gives."""
    # A message that is set to 0 attaches nothing either.
    values = [float(value) for value in attachment.values(norm, bound)] if math.isfinite(norm) else []
    length = math.hypot(*values)
    if len(values) != attachment.size or not math.isfinite(length):
        return [0.0] * attachment.size
    if length <= attachment.sensitivity:
        return values
    return [value * (attachment.sensitivity / length) for value in values]


# How far a policy may leave C_0 where the settings leave it open.
RANGE = 300.0


def clip_limits(clip: ClipSettings) -> tuple[float, float]:
    """C_min and C_max.

    Raises:
        InputError: C_0 is not between them.
    """
    lowest = clip.initial / RANGE if clip.lowest is None else clip.lowest
    highest = clip.initial * RANGE if clip.highest is None else clip.highest
    if not lowest <= clip.initial <= highest or lowest == highest:
        raise InputError(
            f"clip.initial = {clip.initial:g} is not between clip.lowest = {lowest:g} and clip.highest = {highest:g}"
        )
    return lowest, highest


def check_window(clip: ClipSettings, around: Surroundings) -> None:
    """Refuse a window that no run of this length fills.

    Raises:
        InputError: It is longer than the run.
    """
    # Two aggregates are the least that a window compares; in a run of one round the bound stays C_0.
    if clip.window > max(2, around.rounds):
        raise InputError(
            f"clip.window = {clip.window} is more than server.rounds = {around.rounds}; give a window of "
            f"{max(2, around.rounds)} or less (--window), or {clip.window} rounds or more (--rounds)"
        )


def check_counts(clip: ClipSettings, around: Surroundings) -> None:
    """Refuse to count norms where there are none that are exact.

    Raises:
        RefusedPlan: Clients compute noisy messages only.
    """
    if not around.exact:
        raise RefusedPlan(
            f"clip.policy = {clip.policy}: it counts norms of exact messages, but {around.algo} clips or noises each "
            "record before a message is formed; use --clip.policy window, window-literal or constant"
        )


def counts_scale(clip: ClipSettings, around: Surroundings, sensitivity: float) -> float:
    """S of the attached numbers, from the noise that they shall carry."""
    count_noise = around.cohort / 20.0 if clip.count_noise is None else clip.count_noise
    # The largest z of a schedule: in the other rounds the counts are no noisier than planned.
    return attached_scale(around.noise, count_noise, sensitivity)


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
            f"clip.count_noise = {count_noise:g}: counts with so little noise cost more than a whole round with "
            f"z = {noise:.3g} may cost; give more than {noise * sensitivity:.3g}"
        )
    return noise / math.sqrt(left)


def with_attachment(model: Params, attachment: Attachment | None) -> Params:
    """Return the form of a message: the model's parameters, and zeros in place of the attached numbers."""
    if attachment is None:
        return dict(model)
    like = next(iter(model.values()))
    return {**model, ATTACHED: same_kind(np.zeros(attachment.size, dtype=np.float32), like)}


def clipped_message(message: Params, bound: float, attachment: Attachment | None, *, per_layer: bool = False) -> Params:
    """SECRET: one client's message, clipped, and the numbers that its clip policy asks for beside it.

    Args:
        message: Before clipping.
        bound: C.
        attachment: Numbers that are attached, or None.
        per_layer: Whether each layer is clipped on its own.

    Guarantee:
        Its norm is at most `clip_policy.moved_by_a_client(bound, attachment)`, whatever the message holds.
    """
    clipped = clip_per_layer(message, bound) if per_layer else clip(message, bound)
    if attachment is None:
        return clipped
    values = np.array(bounded_numbers(attachment, norm(message), bound), dtype=np.float64)
    return {**clipped, ATTACHED: same_kind(values * (attachment.scale * bound), next(iter(message.values())))}
