"""The inner loop of a linear head, among the support records instead of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dpfedmeta.core.params import Params
from dpfedmeta.learning.models.spec import HEAD

WEIGHT, BIAS = f"{HEAD}weight", f"{HEAD}bias"


@dataclass(frozen=True, kw_only=True)
class LinearSupport:
    """A support set as the head sees it.

    Attributes:
        features: [..., n_s, d].
        labels: [n_s], or [..., n_s] where they differ.
    """

    features: Tensor
    labels: Tensor


def descended_head(initial: Mapping[str, Tensor], support: LinearSupport, steps: int, lr: float) -> Params:
    """theta_K of softmax regression: K gradient steps on the mean cross-entropy of the support set.

    Every gradient is a combination of the support features, so the logits follow from the n_s x n_s products of
    features alone: with R the sum of the steps' residuals (probabilities less targets), they are
    Z_0 - (lr / n_s) (X X^T + 1) R. The same steps, in a tenth of the operations, and differentiable once more in
    initial values and features by an ordinary backward pass.

    Args:
        initial: theta_0: `head.weight` [..., ways, d], and `head.bias` [..., ways] if the head has one.
        support: What to fit.
        steps: K.
        lr: Step size.

    Returns:
        theta_K by the same names.
    """
    features, weight, bias = support.features, initial[WEIGHT], initial.get(BIAS)
    scale = lr / features.shape[-2]
    products = features @ features.mT if bias is None else features @ features.mT + 1.0
    start = features @ weight.mT if bias is None else features @ weight.mT + bias.unsqueeze(-2)
    targets = (support.labels.unsqueeze(-1) == torch.arange(weight.shape[-2], device=features.device)).to(
        features.dtype
    )
    residuals = torch.softmax(start, -1) - targets
    for _ in range(steps - 1):
        residuals = residuals + (torch.softmax(start - scale * (products @ residuals), -1) - targets)
    if steps == 0:
        return dict(initial)
    found = {WEIGHT: weight - scale * (residuals.mT @ features)}
    return found if bias is None else {**found, BIAS: bias - scale * residuals.sum(-2)}
