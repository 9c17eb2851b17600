"""Batch normalisation by reference images only, and a maximum over windows before it, where both commute."""

from typing import Any

import torch
from torch import Tensor, nn

from dpfedmeta.learning.models.kernels.normalisation_jit import VARIANCE_FLOOR, Coupling, loops_apply, normalised
from dpfedmeta.learning.models.layers.convolution import under_torch_func


class ReferenceBatchNorm(nn.Module):
    """Batch normalisation whose statistics come from the first `reference` images only.

    With the support images first, no query image influences the prediction of another (inductive), and no
    statistic outlives the call.

    Attributes:
        pooled: Whether to take the maximum over 2 x 2 windows as well. A maximum commutes with what rises, so it is
            taken first, over a quarter of the work; for that, images must come multiplied by `signs()`.
    """

    def __init__(self, channels: int, *, pooled: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.pooled = pooled

    def signs(self) -> Tensor | None:
        """[channels]: -1 where the weight is negative, else 1; None where none is, as is usual."""
        negative = self.weight.detach() < 0
        if not under_torch_func(negative) and not negative.any():
            return None
        return torch.where(negative, -1.0, 1.0).to(self.weight.dtype)

    def forward(self, images: Tensor, reference: int | None = None, *, rectified: bool = False) -> Tensor:
        """[n, channels, height, width] -> the same shape, or half the height and width; with ReLU if `rectified`."""
        counted = images.shape[0] if reference is None else reference
        signs = self.signs() if self.pooled else None
        weight = self.weight if signs is None else self.weight * signs
        if not loops_apply(images) or counted < 1:
            return _normalised(images, weight, self.bias, counted=counted, pooled=self.pooled, rectified=rectified)
        coupling = Coupling(counted=counted)
        return normalised(images, weight, self.bias, coupling, pooled=self.pooled, rectified=rectified)


def _normalised(images: Tensor, weight: Tensor, bias: Tensor, *, counted: int, pooled: bool, rectified: bool) -> Tensor:
    """In operations that autograd and torch.func know."""
    largest, (mean, variance) = nn.functional.max_pool2d(images, 2) if pooled else images, _moments(images[:counted])
    scale = weight * torch.rsqrt(variance + VARIANCE_FLOOR)
    count, channels, height, width = largest.shape
    rows = torch.addcmul(bias - scale * mean, _rows(largest), scale)
    rows = torch.relu(rows) if rectified else rows
    return rows.view(count, height, width, channels).permute(0, 3, 1, 2)


def _rows(images: Tensor) -> Tensor:
    """[n, channels, height, width] -> [n * height * width, channels], a view where channels lie last."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _Moments.apply(_rows(images))  # type: ignore[no-untyped-call]
    return mean, variance


class _Moments(torch.autograd.Function):
    """Mean and variance of each column; autograd's own backward pass would take three times as many passes."""

    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor) -> tuple[Tensor, Tensor]:
        share = rows.new_full((rows.shape[0],), 1.0 / rows.shape[0])
        mean = share @ rows
        return mean, share @ (rows - mean).square()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], output[0])

    @staticmethod
    def backward(ctx: Any, grad_mean: Tensor, grad_variance: Tensor) -> Tensor:
        rows, mean = ctx.saved_tensors
        slope = grad_variance * (2.0 / rows.shape[0])
        return torch.addcmul(grad_mean / rows.shape[0] - mean * slope, rows, slope)
