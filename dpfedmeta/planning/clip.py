"""From settings to a clip policy, or the reason why there is none."""

from __future__ import annotations

import math
from typing import Any

from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.privacy.policies import (
    BelowBound,
    ClipPolicy,
    Constant,
    Histogram,
    Median,
    Quantile,
    Window,
    WindowLiteral,
    attached_scale,
)
from dpfedmeta.settings import ClipSettings, Settings

# How far a policy may leave C_0 where the settings leave it open.
_RANGE = 300.0
_WINDOWED = ("window", "window-literal", "median")
_COUNTING = ("quantile", "median")


def clip_policy(settings: Settings, privacy: PrivacyPlan) -> ClipPolicy[Any]:
    """How the clip bound follows releases.

    Raises:
        InputError: The clip settings do not fit each other or the run.
        RefusedPlan: The policy needs what the algorithm does not release.
    """
    clip = settings.clip
    if clip.policy == "own":
        raise InputError(
            "clip.policy = own: stands for an object of the caller's, and none was handed over; in Python: "
            "dpfedmeta.train(settings, clip_policy=...)"
        )
    lowest, highest = clip_limits(clip)
    _check(settings)
    if clip.policy == "none":
        return Constant(initial_bound=math.inf)
    if clip.policy == "constant":
        return Constant(initial_bound=clip.initial)
    if clip.policy == "window":
        return Window(initial_bound=clip.initial, window=clip.window, lowest=lowest, highest=highest)
    if clip.policy == "window-literal":
        return WindowLiteral(
            initial_bound=clip.initial,
            window=clip.window,
            percentile=clip.percentile,
            lowest=lowest,
            highest=highest,
        )
    if clip.policy == "quantile":
        return Quantile(
            initial_bound=clip.initial,
            quantile=clip.quantile,
            rate=clip.rate,
            lowest=lowest,
            highest=highest,
            attachment=BelowBound(scale=_scale(clip, privacy, sensitivity=0.5)),
        )
    return Median(
        initial_bound=clip.initial,
        window=clip.window,
        attachment=Histogram.between(lowest, highest, scale=_scale(clip, privacy, sensitivity=1.0)),
    )


def clip_limits(clip: ClipSettings) -> tuple[float, float]:
    """C_min and C_max.

    Raises:
        InputError: C_0 is not between them.
    """
    lowest = clip.initial / _RANGE if clip.lowest is None else clip.lowest
    highest = clip.initial * _RANGE if clip.highest is None else clip.highest
    if not lowest <= clip.initial <= highest or lowest == highest:
        raise InputError(
            f"clip.initial = {clip.initial:g} is not between clip.lowest = {lowest:g} and clip.highest = {highest:g}"
        )
    return lowest, highest


def _check(settings: Settings) -> None:
    clip = settings.clip
    if clip.policy in _WINDOWED and clip.window > settings.server.rounds:
        raise InputError(
            f"clip.window = {clip.window} is longer than the run of server.rounds = {settings.server.rounds}; use "
            f"{max(2, settings.server.rounds)} or less"
        )
    if not settings.record.enabled:
        return
    if clip.policy in _COUNTING:
        raise RefusedPlan(
            f"clip.policy = {clip.policy}: it counts norms of the clients' exact messages, which {settings.algo} never "
            "computes: every touch of a record is noisy there; use window, window-literal or constant"
        )
    if clip.scope == "per-layer":
        raise RefusedPlan(f"clip.scope = per-layer: {settings.algo} clips records, not messages; use --clip.scope flat")


def _scale(clip: ClipSettings, privacy: PrivacyPlan, sensitivity: float) -> float:
    noises = [stretch.total_noise for stretch in privacy.stretches]
    count_noise = privacy.cohort / 20.0 if clip.count_noise is None else clip.count_noise
    # The largest z of a schedule: in the other rounds the counts are no noisier than planned.
    return attached_scale(max(noise or 0.0 for noise in noises), count_noise, sensitivity)
