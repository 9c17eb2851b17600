"""A network whose weights are written down once for each unit, so that their gradients are those of each unit.

A unit is a record, or a part of a client's records (a micro-episode). The weights are one tensor seen as often as there
are units (`expand`), so nothing is copied, and a layer's backward pass returns what a sum over units would lose.
PyTorch's vmap does the same with grouped convolutions, which take longer.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from dpfedmeta.learning.models.functional import channels_last
from dpfedmeta.learning.models.kernels import products_jit as product_kernels
from dpfedmeta.learning.models.kernels.normalisation_jit import VARIANCE_FLOOR, Coupling, loops_apply, normalised
from dpfedmeta.learning.models.layers.convolution import ConvolutionSpec, convolution, convolution_gradients
from dpfedmeta.learning.models.layers.normalisation import ReferenceBatchNorm
from dpfedmeta.learning.models.layers.stateless_layers import (
    Block,
    Body,
    FewShotNetwork,
    RecordScale,
    SupportScale,
    TokenShares,
)

# With fewer, a row of a window is too short to be worth a loop; the outputs are what lies together then.
_FEW_CHANNELS = 4

# Those of models.registry; of a subclass nothing is known.
_LAYERS = (Block, nn.Linear, nn.Flatten, nn.ReLU, nn.AvgPool2d, nn.AdaptiveAvgPool2d, TokenShares)


def has_record_layers(module: nn.Module) -> bool:
    """Return whether `record_logits` supports the network: linear, or this package's without coupled records."""
    if type(module) is nn.Linear:
        return True
    coupled = any(isinstance(part, ReferenceBatchNorm | SupportScale) for part in module.modules())
    return has_part_layers(module) and not coupled


def has_part_layers(module: nn.Module) -> bool:
    """Return whether `part_features` supports the network: this package's networks with a linear head."""
    if type(module) is not FewShotNetwork or type(module.body) is not Body or type(module.head) is not nn.Linear:
        return False
    known = all(type(layer) in _LAYERS for layer in module.body.layers)
    return known and type(module.body.scale) in (nn.Identity, RecordScale, SupportScale)


def first_values(module: nn.Module, image: tuple[int, int]) -> int:
    """Return the number of values that the first convolution outputs for one image; 0 if there is none.

    Args:
        module: A network for which `has_part_layers` is true.
        image: Height and width of the image.
    """
    seen = torch.empty(1, 1, *image, device="meta")
    for layer in cast(FewShotNetwork, module).body.layers:
        if isinstance(layer, Block):
            down, across = layer.how.stride
            places = -(-seen.shape[2] // down) * -(-seen.shape[3] // across)
            return layer.convolution.out_channels * places
        if isinstance(layer, nn.AvgPool2d):
            seen = layer(seen)
    return 0


def record_logits(module: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits [n, ways].

    Args:
        module: `has_record_layers`.
        weights: Each [n, *shape]: n times the same.
        inputs: [n, ...].
    """
    if isinstance(module, nn.Linear):
        return _linear(inputs, weights, "")
    body = cast(FewShotNetwork, module).body
    return _linear(body.scale(_hidden(body, weights, inputs, None)), weights, "head.")


def part_features(module: nn.Module, weights: Mapping[str, Tensor], images: Tensor, reference: int) -> Tensor:
    """Features [parts, n, d] for one pass through the body.

    Args:
        module: `has_part_layers`.
        weights: Each [parts, *shape]: `parts` times the same.
        images: [parts, n, channels, height, width].
        reference: Statistics of a part, if any, are those of its first so many images.

    Guarantee:
        None by itself. No image of a part enters a value or gradient of another part.
    """
    body = cast(FewShotNetwork, module).body
    features = _hidden(body, weights, images.flatten(0, 1), reference)
    if isinstance(body.scale, SupportScale):
        return torch.stack([body.scale(own, reference) for own in features.chunk(len(images))])
    scaled: Tensor = body.scale(features)
    return scaled.view(*images.shape[:2], -1)


def _hidden(body: Body, weights: Mapping[str, Tensor], images: Tensor, reference: int | None) -> Tensor:
    """Compute the input of the body's scale: [n, d]."""
    hidden = channels_last(images)
    for index, layer in enumerate(body.layers):
        name = f"body.layers.{index}."
        if isinstance(layer, Block):
            hidden = _block(layer, weights, name, hidden, reference)
        else:
            hidden = _linear(hidden, weights, name) if isinstance(layer, nn.Linear) else layer(hidden)
    return hidden.flatten(1)


def _block(block: Block, weights: Mapping[str, Tensor], name: str, images: Tensor, reference: int | None) -> Tensor:
    kernel, how = weights[f"{name}convolution.weight"], block.how
    largest = isinstance(block.shrink, nn.MaxPool2d)
    if isinstance(block.norm, nn.Identity):
        bias = _of_images(weights[f"{name}convolution.bias"], len(images))
        return block.after(_convolved(images, kernel, how) + bias[:, :, None, None])
    scale, shift = weights[f"{name}norm.weight"], weights[f"{name}norm.bias"]
    if largest and isinstance(block.norm, ReferenceBatchNorm) and bool((scale < 0).any()):
        # Every channel has a mean of its own, so that its sign may move to the kernel.
        signs = torch.where(scale.detach() < 0, -1.0, 1.0).to(scale.dtype)
        kernel, scale = kernel * signs[:, :, None, None, None], scale * signs
    hidden = _convolved(images, kernel, how)
    coupling = _coupling(block.norm, len(kernel), reference)
    # A maximum commutes with what rises only.
    pooled = largest and bool((scale >= 0).all())
    maximum_last = largest and not pooled
    rectified = isinstance(block.nonlinearity, nn.ReLU) and not maximum_last
    if not loops_apply(hidden):
        scale, shift = (_of_images(value, len(images))[:, :, None, None] for value in (scale, shift))
        return block.after(_standardised(hidden, coupling) * scale + shift)

    hidden = normalised(hidden, scale, shift, coupling, pooled=pooled, rectified=rectified)
    if maximum_last:
        return block.after(hidden)
    hidden = hidden if rectified else block.nonlinearity(hidden)
    return cast(Tensor, hidden if pooled else block.shrink(hidden))


def _coupling(norm: nn.Module, parts: int, reference: int | None) -> Coupling:
    if isinstance(norm, nn.GroupNorm):
        return Coupling(groups=norm.num_groups)
    assert reference is not None
    return Coupling(counted=reference, segments=parts)


def _of_images(values: Tensor, count: int) -> Tensor:
    """[units, ...] -> [count, ...]: of the unit that an image belongs to."""
    return values if len(values) == count else values.repeat_interleave(count // len(values), 0)


def _convolved(images: Tensor, kernel: Tensor, how: ConvolutionSpec) -> Tensor:
    out: Tensor = _Convolution.apply(images, kernel, how)  # type: ignore[no-untyped-call]
    return out


def _standardised(images: Tensor, coupling: Coupling) -> Tensor:
    """In operations that autograd knows: mean 0 and variance 1."""
    if coupling.counted is None:
        return nn.functional.group_norm(images, coupling.groups)
    own = images.reshape(coupling.segments, -1, *images.shape[1:])
    counted = own[:, : coupling.counted]
    mean, variance = counted.mean((1, 3, 4), True), counted.var((1, 3, 4), correction=0, keepdim=True)
    return ((own - mean) * torch.rsqrt(variance + VARIANCE_FLOOR)).flatten(0, 1)


def _linear(inputs: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    out: Tensor = _Linear.apply(inputs, weights[f"{name}weight"])  # type: ignore[no-untyped-call]
    bias = weights.get(f"{name}bias")
    return out if bias is None else out + _of_images(bias, len(inputs))


class _Linear(torch.autograd.Function):
    """Linear layer with one matrix for all units, and a gradient of the matrix for each unit."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight[0])
        ctx.units = len(weight)
        return inputs @ weight[0].mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        if ctx.units == len(inputs):
            return grads @ weight, grads.unsqueeze(2) * inputs.unsqueeze(1)
        outward, inward = (value.reshape(ctx.units, -1, value.shape[1]) for value in (grads, inputs))
        return grads @ weight, outward.mT @ inward


class _Convolution(torch.autograd.Function):
    """Convolution with one kernel for all units, and a gradient of the kernel for each unit."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, how: ConvolutionSpec) -> Tensor:
        ctx.save_for_backward(images, weight[0])
        ctx.how, ctx.units = how, len(weight)
        return convolution(images, weight[0], how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, kernel = ctx.saved_tensors
        how: ConvolutionSpec = ctx.how
        by_images = by_weight = None
        if ctx.needs_input_grad[0]:
            by_images, _ = convolution_gradients(grads, images, kernel, how, (True, False))
        if ctx.needs_input_grad[1] and ctx.units == len(images):
            outward, inward, _ = (value.to(grads.dtype) for value in how.operands(grads, images, kernel))
            by_weight = kernel_gradients(inward, outward, kernel.shape[2], how.stride, how.padding)
        elif ctx.needs_input_grad[1]:
            by_weight = _part_gradients(grads, images, kernel, how, ctx.units)
        return by_images, by_weight, None


def _part_gradients(grads: Tensor, images: Tensor, kernel: Tensor, how: ConvolutionSpec, parts: int) -> Tensor:
    """Gradients of a convolution's kernel by each part: [parts, *kernel.shape]."""
    found = kernel.new_empty(parts, *kernel.shape)
    pairs = zip(grads.chunk(parts), images.chunk(parts), strict=True)
    for own, (outward, inward) in zip(found, pairs, strict=True):
        _, by_weight = convolution_gradients(outward, inward, kernel, how, (False, True))
        own.copy_(cast(Tensor, by_weight))
    return found


def kernel_gradients(
    images: Tensor, grads: Tensor, size: int, stride: tuple[int, ...], padding: tuple[int, ...]
) -> Tensor:
    """Gradients of a convolution's kernel by each record.

    Args:
        images: Inputs [n, c, height, width], channels last in memory.
        grads: Of the outputs [n, d, h, w].
        size: Of the square kernel.
        stride: Of the convolution.
        padding: Of the convolution.

    Returns:
        [n, d, c, size, size].
    """
    values, grads = images.permute(0, 2, 3, 1), grads.permute(0, 2, 3, 1)
    around = pad(values, (0, 0, padding[1], padding[1], padding[0], padding[0]))
    (count, high, wide, deep), channels = grads.shape, images.shape[1]
    few = channels < _FEW_CHANNELS
    if few or not loops_apply(images):
        columns = _columns(around, (high, wide), size, stride)
    if not loops_apply(images):
        products = torch.bmm(grads.reshape(count, -1, deep).mT, columns)
    elif few:
        places = np.arange(high * wide) * deep
        products = _sums_over_places(grads, places, columns, length=deep).view(count, -1, deep).mT
    else:
        places = np.arange(high)[:, None] * stride[0] * around.shape[2] + np.arange(wide) * stride[1]
        factors, pitch = grads.reshape(count, high * wide, deep), around.shape[2] * channels
        starts, length = places.ravel() * channels, size * channels
        products = _sums_over_places(around, starts, factors, length=length, pieces=size, pitch=pitch)
    return products.reshape(count, deep, size, size, channels).permute(0, 1, 4, 2, 3)


def _columns(around: Tensor, out: tuple[int, int], size: int, stride: tuple[int, ...]) -> Tensor:
    """Copy the values under the kernel at each place: [n, height, width, c] -> [n, places, size * size * c]."""
    (count, _, _, channels), (high, wide) = around.shape, out
    columns = around.new_empty(count, high, wide, size * size, channels)
    for place in range(size * size):
        row, column = place // size, place % size
        below, right = row + stride[0] * (high - 1) + 1, column + stride[1] * (wide - 1) + 1
        columns[:, :, :, place] = around[:, row : below : stride[0], column : right : stride[1]]
    return columns.view(count, high * wide, -1)


def _sums_over_places(
    values: Tensor, starts: Any, factors: Tensor, *, length: int, pieces: int = 1, pitch: int = 0
) -> Tensor:
    """See product_kernels: values [n, ...], factors [n, places, d] -> [n, d, pieces, length]."""
    count, places, deep = factors.shape
    if (missing := -places % product_kernels.AT_ONCE) > 0:
        starts, factors = np.append(starts, np.full(missing, starts[-1])), pad(factors, (0, 0, 0, missing))
    found = values.new_empty(count, deep, pieces, length)
    product_kernels.sums_over_places(
        values.reshape(count, -1).numpy(), starts, pitch, factors.contiguous().numpy(), found.numpy()
    )
    return found
