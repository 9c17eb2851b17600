"""Normalisation, maximum over windows and ReLU in few passes over the images, by `fused_kernels`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dpfedmeta.learning.models.kernels import fused_jit as fused_kernels
from dpfedmeta.learning.models.layers.convolution import under_torch_func

# Values that are not finite are a client's own; clipping counts them as 0 (privacy rule 4) and nobody needs a warning.
_as_it_comes = np.errstate(all="ignore")

# Added to a variance before its root is divided by.
VARIANCE_FLOOR = 1e-5


@dataclass(frozen=True, kw_only=True)
class Coupling:
    """Which values share a mean and a variance.

    Attributes:
        counted: Batch normalisation: each channel of the first so many images, for all images. None: of each image.
        groups: Group normalisation: so many groups of its channels.
        segments: Batch normalisation of so many segments of as many images each, every one by its own `counted` first.
    """

    counted: int | None = None
    groups: int = 1
    segments: int = 1

    def together(self, values: Any, *, counted_only: bool) -> Any:
        """Sums [n, channels] of the values that share a mean; of all images, or of those that count."""
        if self.counted is not None:
            own = values.reshape(self.segments, -1, values.shape[1])
            total = (own[:, : self.counted] if counted_only else own).sum(1, keepdims=True)
            return np.broadcast_to(total, own.shape).reshape(values.shape)
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
            places = np.arange(len(values)) % (len(values) // self.segments)
            values = np.where(places[:, None] < self.counted, values, 0.0)
        return np.ascontiguousarray(values, np.float32)


def loops_apply(images: Tensor) -> bool:
    """Return whether the compiled loops can compute these images: contiguous float32 channels last, on a CPU."""
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
) -> Tensor:
    """Normalise, take the maximum over 2 x 2 windows if `pooled`, and ReLU if `rectified`.

    Differentiable once; batch normalisation with one weight for all images twice.

    Args:
        images: [n, channels, height, width], `loops_apply` to them; where `pooled`, weights must not be negative.
        weight: [channels], or [k, channels] of each image or of each of k segments of as many images: then its
            gradient is of that shape too.
        bias: Likewise.
        coupling: Which values share a mean and a variance.
        pooled: As above.
        rectified: As above.
    """
    out: Tensor = _Normalised.apply(images, weight, bias, coupling, pooled, rectified)  # type: ignore[no-untyped-call]
    return out


class _Normalised(torch.autograd.Function):
    @staticmethod
    @_as_it_comes
    def forward(
        ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, coupling: Coupling, pooled: bool, rectified: bool
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
        ctx.done = _Forward(coupling, seen, inverse, scale, lowest)
        return made

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, ...]:
        images, weight, bias, out = ctx.saved_tensors
        found = _Gradients.apply(grads, images, weight, bias, out.detach(), ctx.done)  # type: ignore[no-untyped-call]
        return *found, None, None, None


class _Forward(NamedTuple):
    """Values of the forward pass that both backward passes use; arrays [n, channels]."""

    coupling: Coupling
    seen: ForwardMoments
    inverse: Any
    scale: Any
    lowest: Any


class _Gradients(torch.autograd.Function):
    """Gradients by images, weight and bias.

    With g = `grads` where ReLU lets it through, m the maxima, N the values behind a mean mu and a variance, whose
    inverse root is r:

        S = sum g,  Q = sum g (m - mu),  by_bias = S,  by_weight = r Q,
        by_images = unpool(w r g) - [counted] w r / N (S + r^2 Q (images - mu)).
    """

    @staticmethod
    @_as_it_comes
    def forward(
        ctx: Any, grads: Tensor, images: Tensor, weight: Tensor, bias: Tensor, out: Tensor, done: _Forward
    ) -> tuple[Tensor, Tensor, Tensor]:
        seen, shape = done.seen, done.seen.mean.shape
        kept, sums, products = np.empty_like(seen.largest), np.zeros(shape), np.zeros(shape)
        fused_kernels.rescale_backward(
            seen.largest, array_of(out), array_of(_last(grads)), done.scale, done.lowest, kept, sums, products
        )
        centred = products - seen.mean * sums
        ctx.save_for_backward(grads, images, weight, out)
        ctx.done, ctx.sums, ctx.centred = done, sums, centred
        by_images = _with_moments(done, images, _per_image(weight, len(images)), kept, sums, centred)
        return tensor_of(by_images), _summed(done.inverse * centred, weight), _summed(sums, bias)

    @staticmethod
    @once_differentiable
    @_as_it_comes
    def backward(ctx: Any, *found: Tensor) -> tuple[Tensor | None, ...]:
        """Differentiate <A, by_images> + <a, by_weight> + <b, by_bias> by the inputs; A, a, b = `found`."""
        done = ctx.done
        grads, images, weight, out = ctx.saved_tensors
        if done.coupling.counted is None or done.coupling.segments > 1 or weight.ndim != 1:
            raise NotImplementedError("compiled loops have second derivatives only for batch normalisation")
        seen, counted, size = done.seen, done.coupling.counted, done.coupling.size(images.shape)
        outer, at_maxima = array_of(_last(found[0])), np.empty_like(seen.largest)
        shape = seen.mean.shape
        sums, products, pairs = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        fused_kernels.take_with_sums(array_of(images), outer, seen.corner, at_maxima, sums, products)
        outer_sum, outer_product = sums[:counted].sum(0), products[:counted].sum(0)
        by_weight, by_bias = (value.detach().numpy().astype(np.float64) for value in found[1:])
        w, r, mean = weight.detach().numpy().astype(np.float64), done.inverse[0], seen.mean[0]
        s, q, covariance = ctx.sums.sum(0), ctx.centred.sum(0), outer_product - mean * outer_sum
        by_q = by_weight * r - r**3 * w * covariance / size
        by_covariance = -(r**3) * w * q / size
        to_grads, kept = np.empty_like(seen.largest), np.empty_like(seen.largest)
        fused_kernels.rescale_second(
            (seen.largest, array_of(out), array_of(_last(grads)), at_maxima),
            done.lowest,
            (by_bias - w * r * outer_sum / size - by_q * mean).astype(np.float32),
            (w * r).astype(np.float32),
            by_q.astype(np.float32),
            to_grads,
            kept,
            pairs,
        )
        t = pairs.sum(0)
        to_weight = r * (t - s * outer_sum / size - r**2 * q * covariance / size)
        by_r = w * (t - s * outer_sum / size - 3.0 * r**2 * q * covariance / size) + by_weight * q
        slope = -by_r * r**3 / size
        constant = -(by_q * s + by_covariance * outer_sum) / size - slope * mean
        share = partial(_share, done.coupling, len(images))
        to_images = _spread(array_of(images), kept, seen.corner, share(constant), share(slope))
        fused_kernels.add_moments(outer, share(np.zeros_like(slope)), share(by_covariance), to_images)
        return tensor_of(to_grads), tensor_of(to_images), torch.from_numpy(to_weight.astype(np.float32)), *(None,) * 3


def _share(coupling: Coupling, count: int, values: Any) -> Any:
    """[channels] for each image that counts, 0 for the others."""
    return coupling.share(np.broadcast_to(values, (count, len(values))))


def _with_moments(done: _Forward, images: Tensor, factors: Any, kept: Any, sums: Any, centred: Any) -> Any:
    """`kept`, unpooled, with the paths through mean and variance."""
    coupling, inverse, seen = done.coupling, done.inverse, done.seen
    size = coupling.size(tuple(images.shape))
    slope = -(inverse**3) * coupling.together(factors * centred, counted_only=False) / size
    constant = -inverse * coupling.together(factors * sums, counted_only=False) / size - slope * seen.mean
    return _spread(array_of(images), kept, seen.corner, coupling.share(constant), coupling.share(slope))


def _spread(values: Any, kept: Any, corner: Any, constant: Any, slope: Any) -> Any:
    """`kept` to where the maxima lie, if any were taken, plus constant + slope * values; may write into `kept`."""
    if corner is None:
        fused_kernels.add_moments(values, constant, slope, kept)
        return kept
    unpooled = np.empty_like(values)
    fused_kernels.unpool_with_moments(values, kept, corner, constant, slope, unpooled)
    return unpooled


class ForwardMoments(NamedTuple):
    """Maxima of the images and their moments, found in one pass; moments are [n, channels] in float64."""

    largest: Any
    corner: Any
    mean: Any
    variance: Any


def see(images: Tensor, coupling: Coupling, pooled: bool) -> ForwardMoments:
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
    return ForwardMoments(largest, corner, mean, np.maximum(variance, 0.0))


def array_of(images: Tensor) -> Any:
    """[n, channels, height, width], channels last in memory -> [n, height, width, channels] of the same memory."""
    return images.detach().permute(0, 2, 3, 1).numpy()


def tensor_of(array: Any) -> Tensor:
    """The reverse of `array_of`."""
    return torch.from_numpy(array).permute(0, 3, 1, 2)


def _last(images: Tensor) -> Tensor:
    return images.contiguous(memory_format=torch.channels_last)


def _per_image(values: Tensor, count: int) -> Any:
    """[n, channels] in float64, of [channels] or [k, channels]."""
    own = values.detach().numpy().astype(np.float64)
    if own.ndim == 2 and len(own) < count:
        return own.repeat(count // len(own), 0)
    return np.broadcast_to(own, (count, own.shape[-1]))


def _summed(values: Any, like: Tensor) -> Tensor:
    """A gradient [n, channels] in the shape of what it belongs to."""
    total = values.reshape(len(like), -1, values.shape[1]).sum(1) if like.ndim == 2 else values.sum(0)
    return torch.from_numpy(total.astype(np.float32))
