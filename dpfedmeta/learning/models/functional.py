"""Networks as functions of their weights, which are always passed in."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpfedmeta.core.params import Params
from dpfedmeta.learning.models.layers.stateless_layers import Body, FewShotNetwork
from dpfedmeta.learning.models.spec import BODY, HEAD

T = TypeVar("T")


def apply(network: nn.Module, params: Mapping[str, Tensor], images: Tensor, reference: int | None) -> Tensor:
    """Logits [n, ways] under `params`; batch statistics, if any, come from the first `reference` images."""
    logits: Tensor = functional_call(network, dict(params), _arguments(network, images, reference))
    return logits


def _arguments(network: nn.Module, images: Tensor, reference: int | None) -> tuple[Any, ...]:
    return (images, reference) if isinstance(network, FewShotNetwork) else (images,)


class _Held(nn.Module):
    """A network whose parameters functional_call replaces once for several calls."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, work: Callable[[Callable[[Tensor], Tensor]], T]) -> T:
        """The result of `work`."""
        return work(lambda images: self.network(*_arguments(self.network, images, None)))


def apply_often(network: nn.Module, params: Mapping[str, Tensor], work: Callable[[Callable[[Tensor], Tensor]], T]) -> T:
    """The result of `work(logits)`, where logits(images) is `apply` under `params`, whose values `work` may change.

    To put parameters in takes longer than a small network's forward pass.
    """
    result: T = functional_call(_Held(network), {f"network.{name}": value for name, value in params.items()}, (work,))
    return result


def channels_last(images: Tensor) -> Tensor:
    """The same images in the layout in which convolutions are fastest on the CPU.

    With one channel both layouts look alike to PyTorch and it would choose the slow one; the strides say
    which is meant. Vectors and sequences lie as they are.
    """
    if images.ndim != 4:
        return images.contiguous()
    _, channels, height, width = images.shape
    if channels == 1:
        return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def apply_body(network: nn.Module, params: Mapping[str, Tensor], images: Tensor, reference: int | None) -> Tensor:
    """Features [n, d] under the body's part of `params`."""
    body = network.get_submodule("body")
    own = {name[len(BODY) :]: value for name, value in params.items() if name.startswith(BODY)}
    arguments = (images, reference) if isinstance(body, Body) else (images,)
    features: Tensor = functional_call(body, own, arguments)
    return features


def apply_head(network: nn.Module, params: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """Logits [n, ways] under the head's part of `params`."""
    logits: Tensor = functional_call(network.get_submodule("head"), without_prefix(params), (features,))
    return logits


def head_of(params: Mapping[str, Tensor]) -> Params:
    """The parameters that `meta.adapt: head` adapts, under their full names."""
    return {name: value for name, value in params.items() if name.startswith(HEAD)}


def without_prefix(head: Mapping[str, Tensor]) -> Params:
    """The head's parameters under the names that the head itself uses."""
    return {name[len(HEAD) :]: value for name, value in head.items() if name.startswith(HEAD)}
