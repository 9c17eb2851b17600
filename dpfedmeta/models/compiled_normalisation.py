"""Normalisation, maximum over windows and ReLU in few passes over the images, by `fused_kernels`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dpfedmeta.models import fused_kernels
from dpfedmeta.models.convolution import under_torch_func

# Added to a variance before its root is divided by.
VARIANCE_FLOOR = 1e-5


@dataclass(frozen=True, kw_only=True)
class Coupling:
    """Which values share a mean and a variance.

    Attributes:
        counted: Batch normalisation: each channel of the first so many images, for all images. None: of each image.
        groups: Group normalisation: so many groups of its channels.
    """

    counted: int | None = None
    groups: int = 1

    def together(self, values: Any, *, counted_only: bool) -> Any:
        """Sums [n, channels] of the values that share a mean; of all images, or of those that count."""
        if self.counted is not None:
            total = (values[: self.counted] if counted_only else values).sum(0, keepdims=True)
            return np.broadcast_to(total, values.shape)
        count, channels = values.shape
        total = values.reshape(count, self.groups, -1).sum(2, keepdims=True)
        return np.broadcast_to(total, (count, self.groups, channels // self.groups)).reshape(values.shape)

    def size(self, shape: tuple[int, ...]) -> int:
        """Values that share a mean, of images [n, channels, height, width]."""
        pixels = shape[2] * shape[3]
        return pixels * (shape[1] // self.groups if self.counted is None else self.counted)

    def share(self, values: Any) -> Any:
        """[n, channels] with 0 for images that do not count."""
        if self.counted is not None:
            values = np.where(np.arange(len(values))[:, None] < self.counted, values, 0.0)
        return np.ascontiguousarray(values, np.float32)


Composed = Callable[[Tensor, Tensor, Tensor], Tensor]


def loops_apply(images: Tensor) -> bool:
    """Whether images are what the compiled loops are for."""
    plain = images.device.type == "cpu" and images.dtype == torch.float32 and not under_torch_func(images)
    plain = plain and len(images) > 0 and min(images.shape[2:]) > 1
    return plain and images.is_contiguous(memory_format=torch.channels_last)


def normalised(
    images: Tensor,
    weight: Tensor,
    bias: Tensor,
    coupling: Coupling,
    *,
    pooled: bool,
    rectified: bool,
    composed: Composed,
) -> Tensor:
    """Normalise, take the maximum over 2 x 2 windows if `pooled`, and ReLU if `rectified`.

    Args:
        images: [n, channels, height, width], `loops_apply` to them; where `pooled`, weights must not be negative.
        weight: [channels], or [n, channels] of each image: then its gradient is of that shape too.
        bias: Likewise.
        coupling: Which values share a mean and a variance.
        pooled: As above.
        rectified: As above.
        composed: The same function of the three in differentiable operations, for derivatives of derivatives.
    """
    out: Tensor = _Normalised.apply(images, weight, bias, coupling, pooled, rectified, composed)  # type: ignore[no-untyped-call]
    return out


class _Normalised(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        images: Tensor,
        weight: Tensor,
        bias: Tensor,
        coupling: Coupling,
        pooled: bool,
        rectified: bool,
        composed: Composed,
    ) -> Tensor:
        seen = see(images, coupling, pooled)
        factors = _per_image(weight, len(images))
        inverse = 1.0 / np.sqrt(seen.variance + VARIANCE_FLOOR)
        scale = (factors * inverse).astype(np.float32)
        shift = (_per_image(bias, len(images)) - factors * inverse * seen.mean).astype(np.float32)
        out, lowest = np.empty_like(seen.largest), np.float32(0.0 if rectified else -np.inf)
        fused_kernels.rescale(seen.largest, scale, shift, lowest, out)
        made = tensor_of(out)
        ctx.save_for_backward(images, weight, bias, made)
        ctx.seen, ctx.inverse, ctx.scale, ctx.lowest = seen, inverse, scale, lowest
        ctx.coupling, ctx.pooled, ctx.composed = coupling, pooled, composed
        return made

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, bias, out = ctx.saved_tensors
        if torch.is_grad_enabled():
            inputs, wanted = (images, weight, bias), ctx.needs_input_grad[:3]
            used = [value for value, needed in zip(inputs, wanted, strict=True) if needed]
            found = iter(torch.autograd.grad(ctx.composed(*inputs), used, grads, create_graph=True))
            return *(next(found) if needed else None for needed in wanted), *(None,) * 4
        seen, shape = ctx.seen, ctx.seen.mean.shape
        kept, sums, products = np.empty_like(seen.largest), np.zeros(shape), np.zeros(shape)
        fused_kernels.rescale_backward(
            seen.largest, array_of(out), array_of(_last(grads)), ctx.scale, ctx.lowest, kept, sums, products
        )
        centred = products - seen.mean * sums
        by_images = tensor_of(_with_moments(ctx, images, _per_image(weight, len(images)), kept, sums, centred))
        return by_images, _summed(ctx.inverse * centred, weight), _summed(sums, bias), *(None,) * 4


def _with_moments(ctx: Any, images: Tensor, factors: Any, kept: Any, sums: Any, centred: Any) -> Any:
    """`kept`, unpooled, with the paths through mean and variance."""
    coupling, inverse, seen = ctx.coupling, ctx.inverse, ctx.seen
    size = coupling.size(images.shape)
    slope = -(inverse**3) * coupling.together(factors * centred, counted_only=False) / size
    constant = -inverse * coupling.together(factors * sums, counted_only=False) / size - slope * seen.mean
    values, constant, slope = array_of(images), coupling.share(constant), coupling.share(slope)
    if not ctx.pooled:
        fused_kernels.add_moments(values, constant, slope, kept)
        return kept
    unpooled = np.empty_like(values)
    fused_kernels.unpool_with_moments(values, kept, seen.corner, constant, slope, unpooled)
    return unpooled


class Seen(NamedTuple):
    """What one pass over the images finds; moments [n, channels] in float64."""

    largest: Any
    corner: Any
    mean: Any
    variance: Any


def see(images: Tensor, coupling: Coupling, pooled: bool) -> Seen:
    """Maxima and moments; without pooling `largest` is the images themselves and `corner` None."""
    values = array_of(images)
    count, height, width, channels = values.shape
    sums, squares, shift = np.zeros((count, channels)), np.zeros((count, channels)), values[:, 0, 0].copy()
    largest, corner = values, None
    if pooled:
        half = (count, height // 2, width // 2, channels)
        largest, corner = np.empty(half, np.float32), np.empty(half, np.uint8)
        fused_kernels.pool_with_moments(values, largest, corner, shift, sums, squares)
    else:
        fused_kernels.moments(values, shift, sums, squares)
    size, pixels, shift = coupling.size(tuple(images.shape)), height * width, shift.astype(np.float64)
    mean = coupling.together(sums + pixels * shift, counted_only=True) / size
    apart = shift - mean
    around = squares + 2.0 * apart * sums + pixels * apart**2
    variance = coupling.together(around, counted_only=True) / size
    return Seen(largest, corner, mean, np.maximum(variance, 0.0))


def pooled_moments(images: Tensor, counted: int) -> tuple[Tensor, Tensor, Tensor]:
    """Maxima over 2 x 2 windows of all images; mean and variance, each [channels], of the first `counted` ones."""
    largest, mean, variance = _PooledMoments.apply(images, counted)  # type: ignore[no-untyped-call]
    return largest, mean, variance


class _PooledMoments(torch.autograd.Function):
    """Differentiable twice."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, counted: int) -> tuple[Tensor, Tensor, Tensor]:
        seen = see(images, Coupling(counted=counted), True)
        mean, variance = (torch.from_numpy(value[0].astype(np.float32)) for value in (seen.mean, seen.variance))
        ctx.save_for_backward(images, mean)
        ctx.counted, ctx.corner = counted, seen.corner
        return tensor_of(seen.largest), mean, variance

    @staticmethod
    def backward(ctx: Any, grad_largest: Tensor, grad_mean: Tensor, grad_variance: Tensor) -> tuple[Tensor, None]:
        images, mean = ctx.saved_tensors
        counted = (torch.arange(len(images)) < ctx.counted).to(images.dtype).unsqueeze(1)
        size = ctx.counted * images.shape[2] * images.shape[3]
        slope = grad_variance * (2.0 / size)
        constant = grad_mean / size - mean * slope
        return _Unpool.apply(images, grad_largest, counted * constant, counted * slope, ctx.corner), None  # type: ignore[no-untyped-call]


class _Unpool(torch.autograd.Function):
    """`fused_kernels.unpool_with_moments` and its derivative."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, grads: Tensor, constant: Tensor, slope: Tensor, corner: Any) -> Tensor:
        ctx.save_for_backward(images, slope)
        ctx.corner = corner
        out = torch.empty_like(images)
        fused_kernels.unpool_with_moments(
            array_of(images), array_of(_last(grads)), corner, constant.numpy(), slope.numpy(), array_of(out)
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        images, slope = ctx.saved_tensors
        by_images, at_maxima = torch.empty_like(images), np.empty(ctx.corner.shape, np.float32)
        sums, products = np.zeros(slope.shape), np.zeros(slope.shape)
        fused_kernels.unpool_with_moments_backward(
            array_of(images),
            array_of(_last(grads)),
            ctx.corner,
            slope.numpy(),
            at_maxima,
            array_of(by_images),
            sums,
            products,
        )
        found = (torch.from_numpy(value.astype(np.float32)) for value in (sums, products))
        return by_images, tensor_of(at_maxima), *found, None


def array_of(images: Tensor) -> Any:
    """[n, channels, height, width], channels last in memory -> [n, height, width, channels] of the same memory."""
    return images.detach().permute(0, 2, 3, 1).numpy()


def tensor_of(array: Any) -> Tensor:
    """The reverse of `array_of`."""
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _per_image(values: Tensor, count: int) -> Any:
    """[n, channels] in float64, of [channels] or [n, channels]."""
    own = values.detach().numpy().astype(np.float64)
    return np.broadcast_to(own, (count, own.shape[-1]))


def _summed(values: Any, like: Tensor) -> Tensor:
    """A gradient [n, channels] in the shape of what it belongs to."""
    total = values if like.ndim == 2 else values.sum(0)
    return torch.from_numpy(total.astype(np.float32))
