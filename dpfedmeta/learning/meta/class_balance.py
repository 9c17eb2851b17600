"""Losses of a client whose classes differ in size: means over records, or over classes and then over the client."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import OWN_CLASSES

if TYPE_CHECKING:
    from torch import Tensor

Balance = Literal["classes", "records"]


def record_weights(labels: Tensor, ways: int) -> Tensor:
    """The weight of each record in a mean over classes: float32 [n], all of one class together n / (classes held).

    Args:
        labels: [n], in range(ways).
        ways: Classes that labels may name; those without a record count for nothing.
    """
    import torch

    counts = (labels[:, None] == torch.arange(ways, device=labels.device)).sum(0)
    each = len(labels) / ((counts > 0).sum() * counts[labels])
    return each.to(torch.float32)


def mean_loss(outputs: Tensor, labels: Tensor, balance: Balance, targets: TargetKind = OWN_CLASSES) -> Tensor:
    """The loss of outputs [n, ways]: its mean over records, or over classes of the mean over each one's records."""
    if balance == "records":
        return targets.loss(outputs, labels)
    return (record_weights(labels, outputs.shape[-1]) * targets.loss(outputs, labels, "none")).mean()
