"""The form of a message with what its clip policy asks for, and its clipping."""

from __future__ import annotations

import numpy as np

from dpfedmeta.core.params import Params, norm, same_kind
from dpfedmeta.privacy.clip_policy import ATTACHED, Attachment, bounded_numbers
from dpfedmeta.privacy.clipping import clip, clip_per_layer


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
