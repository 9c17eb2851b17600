"""Convolution whose second derivatives are convolutions too, in float32 or with operands in bfloat16.

PyTorch's own compute them with batch and channels exchanged, in a layout for which its kernels are slow.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d

from dpfedmeta.learning.models.spec import LEAST_SHORT_CHANNELS, Precision


def bfloat16_in_hardware() -> bool:
    """Return whether this processor multiplies bfloat16 itself (avx512_bf16, amx_bf16); PyTorch emulates it slowly."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@dataclass(frozen=True, kw_only=True)
class ConvolutionSpec:
    """Stride, padding and precision of a convolution.

    Attributes:
        stride: Stride of the kernel.
        padding: Padding with zeros.
        precision: bfloat16: operands and result are rounded to it (Micikevicius et al. 2018, Mixed Precision Training,
            https://arxiv.org/abs/1710.03740), unless there are few input channels. tf32 is a switch of PyTorch's for
            GPUs.
    """

    stride: tuple[int, int]
    padding: tuple[int, int]
    precision: Precision = "float32"

    def operands(self, *values: Tensor) -> list[Tensor]:
        """Images and kernel, or what takes their places, the kernel last: as they enter a product."""
        short = self.precision == "bfloat16" and values[-1].shape[1] >= LEAST_SHORT_CHANNELS
        return [value.bfloat16() for value in values] if short else list(values)


def convolution(images: Tensor, weight: Tensor, spec: ConvolutionSpec) -> Tensor:
    """Compute torch.nn.functional.conv2d, in the type of the images; differentiable twice."""
    followed = torch.is_grad_enabled() and (images.requires_grad or weight.requires_grad)
    if not followed or under_torch_func(images) or under_torch_func(weight):
        return _forward(images, weight, spec)
    out: Tensor = _Convolution.apply(images, weight, spec)  # type: ignore[no-untyped-call]
    return out


def under_torch_func(tensor: Tensor) -> bool:
    """Return whether a tensor is wrapped by torch.func: batched by vmap, or tracked by grad."""
    return torch._C._functorch.is_functorch_wrapped_tensor(tensor)


def _forward(images: Tensor, weight: Tensor, spec: ConvolutionSpec) -> Tensor:
    left, kernel = spec.operands(images, weight)
    return conv2d(left, kernel, None, spec.stride, spec.padding).to(images.dtype)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, spec: ConvolutionSpec) -> Tensor:
        ctx.save_for_backward(images, weight)
        ctx.spec = spec
        return _forward(images, weight, spec)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, weight = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        by_images, by_weight = _Gradients.apply(grad, images, weight, ctx.spec, wanted)  # type: ignore[no-untyped-call]
        return by_images if wanted[0] else None, by_weight if wanted[1] else None, None


class _Gradients(torch.autograd.Function):
    """The two gradients of a convolution, both linear in its output's gradient and each in the other operand."""

    @staticmethod
    def forward(
        ctx: Any, grad: Tensor, images: Tensor, weight: Tensor, spec: ConvolutionSpec, wanted: tuple[bool, bool]
    ) -> tuple[Tensor | None, Tensor | None]:
        ctx.save_for_backward(grad, images, weight)
        ctx.spec = spec
        ctx.set_materialize_grads(False)
        return convolution_gradients(grad, images, weight, spec, wanted)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_images: Tensor | None, by_weight: Tensor | None) -> tuple[Tensor | None, ...]:
        grad, images, weight = ctx.saved_tensors
        spec, wanted = ctx.spec, ctx.needs_input_grad
        parts = []
        if by_images is not None:
            parts.append(_forward(by_images, weight, spec))
        if by_weight is not None:
            parts.append(_forward(images, by_weight, spec))
        to_grad = sum(parts[1:], parts[0]) if parts and wanted[0] else None
        to_images = to_weight = None
        if by_weight is not None and wanted[1]:
            to_images, _ = convolution_gradients(grad, images, by_weight, spec, (True, False))
        if by_images is not None and wanted[2]:
            _, to_weight = convolution_gradients(grad, by_images, weight, spec, (False, True))
        return to_grad, to_images, to_weight, None, None


def convolution_gradients(
    grad: Tensor, images: Tensor, weight: Tensor, spec: ConvolutionSpec, wanted: tuple[bool, bool]
) -> tuple[Tensor | None, Tensor | None]:
    """By images and by weight, those of the two that are wanted, of the type of `grad`."""
    outward, inward, kernel = spec.operands(grad, images, weight)
    found = torch.ops.aten.convolution_backward(
        outward,
        inward,
        kernel,
        None,
        spec.stride,
        spec.padding,
        (1, 1),
        False,
        (0, 0),
        1,
        (*wanted, False),
    )
    by_images, by_weight = (None if value is None else value.to(grad.dtype) for value in found[:2])
    return by_images, by_weight
