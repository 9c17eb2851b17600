"""Batch normalisation by reference images only, and a maximum over windows before it, where both commute."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpfedmeta.models import fused_kernels

# Added to a variance before its root is divided by.
VARIANCE_FLOOR = 1e-5


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

    def signs(self) -> Tensor:
        """[channels]: -1 where the weight is negative, else 1."""
        return torch.where(self.weight.detach() < 0, -1.0, 1.0).to(self.weight.dtype)

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, height, width] -> the same shape, or half the height and width."""
        counted = images.shape[0] if reference is None else reference
        if self.pooled:
            largest, mean, variance = _pooled_moments(images, counted)
            weight = self.weight * self.signs()
        else:
            largest, (mean, variance), weight = images, _moments(images[:counted]), self.weight
        scale = weight * torch.rsqrt(variance + VARIANCE_FLOOR)
        count, channels, height, width = largest.shape
        rows = torch.addcmul(self.bias - scale * mean, _rows(largest), scale)
        return rows.view(count, height, width, channels).permute(0, 3, 1, 2)


def _rows(images: Tensor) -> Tensor:
    """[n, channels, height, width] -> [n * height * width, channels], a view where channels lie last."""
    return images.permute(0, 2, 3, 1).reshape(-1, images.shape[1])


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


def _moments(images: Tensor) -> tuple[Tensor, Tensor]:
    mean, variance = _Moments.apply(_rows(images))  # type: ignore[no-untyped-call]
    return mean, variance


def _pooled_moments(images: Tensor, counted: int) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima over 2 x 2 windows of all images; mean and variance, each [channels], of the first `counted` ones."""
    if _compiled_loops_apply(images):
        largest, mean, variance = _PooledMoments.apply(images, counted)  # type: ignore[no-untyped-call]
        return largest, mean, variance
    return nn.functional.max_pool2d(images, 2), *_moments(images[:counted])


def _compiled_loops_apply(images: Tensor) -> bool:
    plain = images.device.type == "cpu" and images.dtype == torch.float32
    # Under torch.func a tensor stands for several, without memory of its own.
    plain = plain and not torch._C._functorch.is_functorch_wrapped_tensor(images)
    return plain and images.is_contiguous(memory_format=torch.channels_last)


def _array(images: Tensor) -> Any:
    """[n, channels, height, width], channels last in memory -> [n, height, width, channels] of the same memory."""
    return images.detach().permute(0, 2, 3, 1).numpy()


class _PooledMoments(torch.autograd.Function):
    """`fused_kernels.pool_with_moments` and its derivative, which is itself differentiable where that is asked for."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, counted: int) -> tuple[Tensor, Tensor, Tensor]:
        count, channels, height, width = images.shape
        half = (count, height // 2, width // 2, channels)
        largest, corner = np.empty(half, np.float32), np.empty(half, np.uint8)
        sums, squares = np.zeros(channels), np.zeros(channels)
        values = _array(images)
        shift = values[0, 0, 0].copy()
        fused_kernels.pool_with_moments(values, largest, corner, shift, sums, squares, counted)  # type: ignore[no-untyped-call]
        size = counted * height * width
        offset = sums / size
        mean = torch.from_numpy((offset + shift).astype(np.float32))
        variance = torch.from_numpy((squares / size - offset**2).astype(np.float32)).clamp_(min=0.0)
        ctx.save_for_backward(images, mean)
        ctx.counted, ctx.corner = counted, corner
        return torch.from_numpy(largest).permute(0, 3, 1, 2), mean, variance

    @staticmethod
    def backward(ctx: Any, grad_largest: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, None]:
        images, mean = ctx.saved_tensors
        size = ctx.counted * images.shape[2] * images.shape[3]
        slope = grad_variance * (2.0 / size)
        constant = grad_mean / size - mean * slope
        if torch.is_grad_enabled():
            return _unpool(images, grad_largest, ctx.corner, constant, slope, ctx.counted), None
        grad = torch.empty_like(images)
        at_maxima = grad_largest.contiguous(memory_format=torch.channels_last)
        fused_kernels.unpool_with_moments(  # type: ignore[no-untyped-call]
            _array(images),
            _array(at_maxima),
            ctx.corner,
            constant.numpy(),
            slope.numpy(),
            ctx.counted,
            _array(grad),
        )
        return grad, None


def _unpool(images: Tensor, grads: Tensor, corner: Any, constant: Tensor, slope: Tensor, counted: int) -> Tensor:
    """`fused_kernels.unpool_with_moments` in operations that can be differentiated again."""
    height, width = images.shape[2:]
    at = torch.from_numpy(corner.astype(np.int64)).permute(0, 3, 1, 2)
    rows = 2 * torch.arange(height // 2)[:, None] + at // 2
    columns = 2 * torch.arange(width // 2) + at % 2
    scattered = torch.zeros_like(images).flatten(2).scatter(2, (rows * width + columns).flatten(2), grads.flatten(2))
    share = torch.addcmul(constant.view(-1, 1, 1), images[:counted], slope.view(-1, 1, 1))
    return scattered.view(images.shape) + torch.cat([share, torch.zeros_like(images[counted:])])
