"""A network whose weights are written down once for each record, so that their gradients are those of each record.

The weights are one tensor seen n times (`expand`), so nothing is copied, and a layer's backward pass returns what a
sum over records would lose. PyTorch's vmap does the same with grouped convolutions, which take longer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from dpfedmeta.models.convolution import ConvolutionSpec, convolution, convolution_gradients
from dpfedmeta.models.functional import channels_last
from dpfedmeta.models.kernels import products as product_kernels
from dpfedmeta.models.kernels.normalisation import Coupling, loops_apply, normalised
from dpfedmeta.models.layers import Block, Body, FewShotNetwork, RecordScale
from dpfedmeta.models.normalisation import ReferenceBatchNorm
from dpfedmeta.models.text import TokenShares

# With fewer, a row of a window is too short to be worth a loop; the outputs are what lies together then.
_FEW_CHANNELS = 4

# Those of models.registry; of a subclass nothing is known.
_LAYERS = (Block, nn.Linear, nn.Flatten, nn.ReLU, nn.AvgPool2d, nn.AdaptiveAvgPool2d, TokenShares)


def has_record_layers(module: nn.Module) -> bool:
    """Whether `record_logits` knows all layers with weights: those of this package's uncoupled networks do."""
    if type(module) is nn.Linear:
        return True
    if type(module) is not FewShotNetwork or type(module.body) is not Body or type(module.head) is not nn.Linear:
        return False
    coupled = any(isinstance(part, ReferenceBatchNorm) for part in module.modules())
    known = all(type(layer) in _LAYERS for layer in module.body.layers)
    return known and not coupled and type(module.body.scale) in (nn.Identity, RecordScale)


def record_logits(module: nn.Module, weights: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """Logits [n, ways].

    Args:
        module: `has_record_layers`.
        weights: Each [n, *shape]: n times the same.
        inputs: [n, ...].
    """
    if isinstance(module, nn.Linear):
        return _linear(inputs, weights, "")
    network = cast(FewShotNetwork, module)
    hidden = channels_last(inputs)
    for index, layer in enumerate(network.body.layers):
        name = f"body.layers.{index}."
        if isinstance(layer, Block):
            hidden = _block(layer, weights, name, hidden)
        else:
            hidden = _linear(hidden, weights, name) if isinstance(layer, nn.Linear) else layer(hidden)
    return _linear(network.body.scale(hidden.flatten(1)), weights, "head.")


def _block(block: Block, weights: Mapping[str, Tensor], name: str, images: Tensor) -> Tensor:
    kernel = weights[f"{name}convolution.weight"]
    how = block.how
    if not isinstance(block.norm, nn.GroupNorm):
        return block.after(_convolved(images, kernel, how) + weights[f"{name}convolution.bias"][:, :, None, None])
    scale, shift = weights[f"{name}norm.weight"], weights[f"{name}norm.bias"]
    hidden, groups = _convolved(images, kernel, how), block.norm.num_groups
    # A maximum commutes with what rises only.
    pooled = isinstance(block.shrink, nn.MaxPool2d) and bool((scale >= 0).all())
    maximum_last = isinstance(block.shrink, nn.MaxPool2d) and not pooled
    rectified = isinstance(block.nonlinearity, nn.ReLU) and not maximum_last
    if not loops_apply(hidden):
        return block.after(_group_normalised(hidden, scale, shift, groups))

    coupling = Coupling(groups=groups)
    hidden = normalised(hidden, scale, shift, coupling, pooled=pooled, rectified=rectified)
    if maximum_last:
        return block.after(hidden)
    hidden = hidden if rectified else block.nonlinearity(hidden)
    return cast(Tensor, hidden if pooled else block.shrink(hidden))


def _convolved(images: Tensor, kernel: Tensor, how: ConvolutionSpec) -> Tensor:
    out: Tensor = _Convolution.apply(images, kernel, how)  # type: ignore[no-untyped-call]
    return out


def _group_normalised(images: Tensor, scale: Tensor, shift: Tensor, groups: int) -> Tensor:
    return nn.functional.group_norm(images, groups) * scale[:, :, None, None] + shift[:, :, None, None]


def _linear(inputs: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    out: Tensor = _Linear.apply(inputs, weights[f"{name}weight"])  # type: ignore[no-untyped-call]
    bias = weights.get(f"{name}bias")
    return out if bias is None else out + bias


class _Linear(torch.autograd.Function):
    """With one matrix for all records."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(inputs, weight[0])
        return inputs @ weight[0].mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor, Tensor]:
        inputs, weight = ctx.saved_tensors
        return grads @ weight, grads.unsqueeze(2) * inputs.unsqueeze(1)


class _Convolution(torch.autograd.Function):
    """With one kernel for all records."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, how: ConvolutionSpec) -> Tensor:
        ctx.save_for_backward(images, weight[0])
        ctx.how = how
        return convolution(images, weight[0], how)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, kernel = ctx.saved_tensors
        how: ConvolutionSpec = ctx.how
        by_images = by_weight = None
        if ctx.needs_input_grad[0]:
            by_images, _ = convolution_gradients(grads, images, kernel, how, (True, False))
        if ctx.needs_input_grad[1]:
            outward, inward, _ = (value.to(grads.dtype) for value in how.operands(grads, images, kernel))
            by_weight = kernel_gradients(inward, outward, kernel.shape[2], how.stride, how.padding)
        return by_images, by_weight, None


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
    """What lies under the kernel at each place: [n, height, width, c] -> [n, places, size * size * c]."""
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
