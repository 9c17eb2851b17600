"""Batch normalisation by reference images only, and a maximum over windows before it, where both commute."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from dpfedmeta.models import fused_kernels
from dpfedmeta.models.convolution import under_torch_func

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
        if _compiled_loops_apply(images):
            out: Tensor = _Normalised.apply(images, weight, self.bias, counted, self.pooled, rectified)  # type: ignore[no-untyped-call]
            return out
        return _normalised(images, weight, self.bias, counted, self.pooled, rectified)


def _normalised(images: Tensor, weight: Tensor, bias: Tensor, counted: int, pooled: bool, rectified: bool) -> Tensor:
    """In operations that autograd and torch.func know."""
    if pooled:
        largest, mean, variance = _pooled_moments(images, counted)
    else:
        largest, (mean, variance) = images, _moments(images[:counted])
    scale = weight * torch.rsqrt(variance + VARIANCE_FLOOR)
    count, channels, height, width = largest.shape
    rows = torch.addcmul(bias - scale * mean, _rows(largest), scale)
    rows = torch.relu(rows) if rectified else rows
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
    plain = images.device.type == "cpu" and images.dtype == torch.float32 and not under_torch_func(images)
    return plain and images.is_contiguous(memory_format=torch.channels_last)


def _array(images: Tensor) -> Any:
    """[n, channels, height, width], channels last in memory -> [n, height, width, channels] of the same memory."""
    return images.detach().permute(0, 2, 3, 1).numpy()


def _tensor(array: Any) -> Tensor:
    """The reverse of `_array`."""
    return torch.from_numpy(array).permute(0, 3, 1, 2)


class _Normalised(torch.autograd.Function):
    """`_normalised` in few passes. Its derivative, if that is to be differentiated again, is left to `_normalised`."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, counted: int, pooled: bool, rectified: bool
    ) -> Tensor:
        values = _array(images)
        seen = _see(values, counted, pooled)
        inverse = 1.0 / np.sqrt(seen.variance + VARIANCE_FLOOR)
        scale = (weight.detach().numpy() * inverse).astype(np.float32)
        shift = (bias.detach().numpy() - weight.detach().numpy() * inverse * seen.mean).astype(np.float32)
        out, lowest = np.empty_like(seen.largest), np.float32(0.0 if rectified else -np.inf)
        fused_kernels.rescale(seen.largest, scale, shift, lowest, out)  # type: ignore[no-untyped-call]
        made = _tensor(out)
        ctx.save_for_backward(images, weight, bias, made)
        ctx.seen, ctx.inverse, ctx.scale, ctx.lowest = seen, inverse, scale, lowest
        ctx.arguments = counted, pooled, rectified
        return made

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, bias, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            again = _normalised(images, weight, bias, *ctx.arguments)
            return *torch.autograd.grad(again, (images, weight, bias), grads, create_graph=True), None, None, None
        seen, (counted, pooled, _) = ctx.seen, ctx.arguments
        kept, sums, products = np.empty_like(seen.largest), np.zeros(len(weight)), np.zeros(len(weight))
        fused_kernels.rescale_backward(  # type: ignore[no-untyped-call]
            seen.largest, _array(out), _array(_last(grads)), ctx.scale, ctx.lowest, kept, sums, products
        )
        # sums: by the shift; centred: by the scale, with the path through the mean.
        centred = products - seen.mean * sums
        size = counted * images.shape[2] * images.shape[3]
        slope = -(ctx.inverse**3) * weight.detach().numpy() * centred / size
        constant = (-ctx.scale * sums / size - slope * seen.mean).astype(np.float32)
        slope = slope.astype(np.float32)
        if pooled:
            by_images = np.empty_like(_array(images))
            fused_kernels.unpool_with_moments(  # type: ignore[no-untyped-call]
                _array(images), kept, seen.corner, constant, slope, counted, by_images
            )
        else:
            by_images = kept
            fused_kernels.add_moments(_array(images), constant, slope, counted, by_images)  # type: ignore[no-untyped-call]
        found = ((ctx.inverse * centred).astype(np.float32), sums.astype(np.float32))
        return (_tensor(by_images), *(torch.from_numpy(value) for value in found), None, None, None)


class _Seen(NamedTuple):
    """What one pass over the images finds; moments in float64."""

    largest: Any
    corner: Any
    mean: Any
    variance: Any


def _see(values: Any, counted: int, pooled: bool) -> _Seen:
    """Of an array [n, height, width, channels]; without pooling `largest` is that array and `corner` None."""
    count, height, width, channels = values.shape
    sums, squares, shift = np.zeros(channels), np.zeros(channels), values[0, 0, 0].copy()
    largest, corner = values, None
    if pooled:
        half = (count, height // 2, width // 2, channels)
        largest, corner = np.empty(half, np.float32), np.empty(half, np.uint8)
        fused_kernels.pool_with_moments(values, largest, corner, shift, sums, squares, counted)  # type: ignore[no-untyped-call]
    else:
        fused_kernels.moments(values, 0, counted, shift, sums, squares)  # type: ignore[no-untyped-call]
    size = counted * height * width
    offset = sums / size
    return _Seen(largest, corner, offset + shift, np.maximum(squares / size - offset**2, 0.0))


class _PooledMoments(torch.autograd.Function):
    """`fused_kernels.pool_with_moments` and its derivative, which is differentiable once more."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, counted: int) -> tuple[Tensor, Tensor, Tensor]:
        seen = _see(_array(images), counted, True)
        mean, variance = (torch.from_numpy(value.astype(np.float32)) for value in (seen.mean, seen.variance))
        ctx.save_for_backward(images, mean)
        ctx.counted, ctx.corner = counted, seen.corner
        return _tensor(seen.largest), mean, variance

    @staticmethod
    def backward(ctx: Any, grad_largest: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, None]:
        images, mean = ctx.saved_tensors
        size = ctx.counted * images.shape[2] * images.shape[3]
        slope = grad_variance * (2.0 / size)
        constant = grad_mean / size - mean * slope
        return _Unpool.apply(images, grad_largest, constant, slope, ctx.corner, ctx.counted), None  # type: ignore[no-untyped-call]


class _Unpool(torch.autograd.Function):
    """`fused_kernels.unpool_with_moments` and its derivative."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, grads: Tensor, constant: Tensor, slope: Tensor, corner: Any, counted: int
    ) -> Tensor:
        ctx.save_for_backward(images, slope)
        ctx.corner, ctx.counted = corner, counted
        out = torch.empty_like(images)
        fused_kernels.unpool_with_moments(  # type: ignore[no-untyped-call]
            _array(images), _array(_last(grads)), corner, constant.numpy(), slope.numpy(), counted, _array(out)
        )
        return out

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        images, slope = ctx.saved_tensors
        by_images, at_maxima = torch.empty_like(images), np.empty(ctx.corner.shape, np.float32)
        sums, products = np.zeros(len(slope)), np.zeros(len(slope))
        fused_kernels.unpool_with_moments_backward(  # type: ignore[no-untyped-call]
            _array(images),
            _array(_last(grads)),
            ctx.corner,
            slope.numpy(),
            ctx.counted,
            at_maxima,
            _array(by_images),
            sums,
            products,
        )
        found = (torch.from_numpy(value.astype(np.float32)) for value in (sums, products))
        return by_images, _tensor(at_maxima), *found, None, None


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)
