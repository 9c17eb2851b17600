"""Clip policies: pure state machines from released aggregates to the next clip bound.

A policy sees `Released` values and nothing else, so its bound is post-processing and enters no event.
"""

from dpfedmeta.privacy.policies.base import ATTACHED, Attachment, ClipPolicy, Mode, attached_scale
from dpfedmeta.privacy.policies.constant import Constant
from dpfedmeta.privacy.policies.quantile import BelowBound, Histogram, Median, Quantile
from dpfedmeta.privacy.policies.window import Window, observe
from dpfedmeta.privacy.policies.window_literal import WindowLiteral

__all__ = [
    "ATTACHED",
    "Attachment",
    "BelowBound",
    "ClipPolicy",
    "Constant",
    "Histogram",
    "Median",
    "Mode",
    "Quantile",
    "Window",
    "WindowLiteral",
    "attached_scale",
    "observe",
]
