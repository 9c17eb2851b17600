"""Convolution whose second derivatives are convolutions too.

PyTorch's own compute them with batch and channels exchanged, in a layout for which its kernels are slow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Sizes = tuple[int, ...]


def convolution(images: Tensor, weight: Tensor, stride: Sizes, padding: Sizes) -> Tensor:
    """As torch.nn.functional.conv2d; differentiable twice."""
    if under_torch_func(images) or under_torch_func(weight):
        return torch.nn.functional.conv2d(images, weight, None, stride, padding)
    out: Tensor = _Convolution.apply(images, weight, stride, padding)  # type: ignore[no-untyped-call]
    return out


def under_torch_func(tensor: Tensor) -> bool:
    """Whether a tensor stands for several, without memory of its own (vmap), or is followed by torch.func.grad."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, stride: Sizes, padding: Sizes) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.sizes = stride, padding
        return torch.nn.functional.conv2d(images, weight, None, stride, padding)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        images, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        by_images, by_weight = _Gradients.apply(grad, images, weight, *ctx.sizes, wanted)  # type: ignore[no-untyped-call]
        return by_images if wanted[0] else None, by_weight if wanted[1] else None, None, None


class _Gradients(torch.autograd.Function):
    """The two gradients of a convolution, both linear in its output's gradient and each in the other operand."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, images: Tensor, weight: Tensor, stride: Sizes, padding: Sizes, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(grad, images, weight)
        ctx.sizes = stride, padding
        ctx.set_materialize_grads(False)
        return convolution_gradients(grad, images, weight, ctx.sizes, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_images: Tensor | None, by_weight: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, images, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        parts = []
        if by_images is not None:
            parts.append(torch.nn.functional.conv2d(by_images, weight, None, *ctx.sizes))
        if by_weight is not None:
            parts.append(torch.nn.functional.conv2d(images, by_weight, None, *ctx.sizes))
        to_grad = sum(parts[1:], parts[0]) if parts and wanted[0] else None
        to_images = to_weight = None
        if by_weight is not None and wanted[1]:
            to_images, _ = convolution_gradients(grad, images, by_weight, ctx.sizes, (True, False))
        if by_images is not None and wanted[2]:
            _, to_weight = convolution_gradients(grad, by_images, weight, ctx.sizes, (False, True))
        return to_grad, to_images, to_weight, None, None, None


def convolution_gradients(
    grad: Tensor, images: Tensor, weight: Tensor, sizes: tuple[Sizes, Sizes], wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """By images and by weight, those of the two that are wanted."""
    stride, padding = sizes
    by_images, by_weight, _ = torch.ops.aten.convolution_backward(
        grad, images, weight, None, stride, padding, (1, 1), False, (0, 0), 1, (*wanted, False)
    )
    return by_images, by_weight
