"""The form of a message with what its clip policy asks for."""

from __future__ import annotations

import torch

from dpfedmeta.core.params import Params
from dpfedmeta.privacy.clip_policy import ATTACHED, Attachment


def with_attachment(model: Params, attachment: Attachment | None) -> Params:
    """Return the form of a message: the model's parameters, and zeros in place of the attached numbers."""
    return {**model, ATTACHED: torch.zeros(attachment.size)} if attachment else dict(model)
