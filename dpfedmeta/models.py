"""Small stateless networks: no running statistics, no hidden state, weights always passed in."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.parameters import Params
from dpfedmeta.randomness import Purpose, public_generator

Norm = Literal["group", "batch", "none"]
BODY = "body."
HEAD = "head."
_GROUPS = 4


class ReferenceBatchNorm(nn.Module):
    """Batch normalisation whose statistics come from the first `reference` images only.

    With the support images first, no query image influences the prediction of another (inductive), and no
    statistic outlives the call.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, height, width] -> the same shape."""
        count, channels, height, width = images.shape
        # Rows of channels: a view of channels-last images, on which plain sums are far faster than var_mean.
        rows = images.permute(0, 2, 3, 1).reshape(-1, channels)
        size = rows.shape[0] if reference is None else reference * height * width
        mean = rows[:size].sum(0) / size
        variance = (rows[:size] - mean).square().sum(0) / size
        factor = self.weight * torch.rsqrt(variance + 1e-5)
        normalised = torch.addcmul(self.bias - mean * factor, rows, factor)
        return normalised.view(count, height, width, channels).permute(0, 3, 1, 2)


class Block(nn.Module):
    """3x3 convolution, normalisation, optional pooling, ReLU.

    Pooling before the ReLU gives the same values for a quarter of the ReLUs (maximum and ReLU commute).
    """

    def __init__(self, channels: int, width: int, norm: Norm, *, stride: int, pool: bool) -> None:
        super().__init__()
        # A bias before a normalisation that subtracts the mean would change nothing.
        self.convolution = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=norm != "batch")
        self.norm: nn.Module
        if norm == "group":
            self.norm = nn.GroupNorm(min(_GROUPS, width), width)
        elif norm == "batch":
            self.norm = ReferenceBatchNorm(width)
        else:
            self.norm = nn.Identity()
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, h, w] -> [n, width, about h/2, about w/2]."""
        hidden = self.convolution(images)
        coupled = isinstance(self.norm, ReferenceBatchNorm)
        hidden = self.norm(hidden, reference) if coupled else self.norm(hidden)
        pooled: Tensor = self.pool(hidden)
        return torch.relu(pooled)


class UnitScale(nn.Module):
    """Scale each feature vector to one fixed length, so that a per-record clip bound clips nothing needlessly."""

    def __init__(self, length: float) -> None:
        super().__init__()
        self.length = length

    def forward(self, features: Tensor) -> Tensor:
        """[n, d] -> [n, d], each row of norm `length`."""
        return self.length * nn.functional.normalize(features, dim=1)


class Body(nn.Module):
    """From images to features."""

    def __init__(self, layers: nn.ModuleList, scale: nn.Module) -> None:
        super().__init__()
        self.layers = layers
        self.scale = scale

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, height, width] -> [n, features]."""
        hidden = images
        for layer in self.layers:
            hidden = layer(hidden, reference) if isinstance(layer, Block) else layer(hidden)
        features: Tensor = self.scale(hidden.flatten(1))
        return features


class FewShotNetwork(nn.Module):
    """A body that computes features and a linear head; `meta.adapt: head` adapts the latter."""

    def __init__(self, body: Body, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def forward(self, images: Tensor, reference: int | None = None) -> Tensor:
        """[n, channels, height, width] -> logits [n, ways]."""
        logits: Tensor = self.head(self.body(images, reference))
        return logits


class NetworkFactory(Protocol):
    """What `model.name: package.module:factory` must name."""

    def __call__(self, *, channels: int, image_size: int, ways: int, width: int, norm: Norm) -> nn.Module:
        """A module from [n, channels, image_size, image_size] to logits [n, ways]."""
        ...


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """Everything that determines a network; picklable, so that workers build their own."""

    name: str
    channels: int
    image_size: int
    ways: int
    width: int
    norm: Norm
    feature_scale: float | None = None
    zero_head: bool = False


def _convolutional(spec: NetworkSpec, *, strided: bool) -> FewShotNetwork:
    blocks = nn.ModuleList()
    channels = spec.channels
    for _ in range(4):
        blocks.append(Block(channels, spec.width, spec.norm, stride=2 if strided else 1, pool=not strided))
        channels = spec.width
    side = spec.image_size
    for _ in range(4):
        side = (side + 1) // 2 if strided else side // 2
    if side < 1:
        raise InputError(f"model.name = {spec.name} needs images of at least 16 pixels, got {spec.image_size}")
    return _few_shot(blocks, spec, spec.width * side * side)


def _perceptron(spec: NetworkSpec) -> FewShotNetwork:
    size = spec.channels * spec.image_size**2
    layers = nn.ModuleList(
        [nn.Flatten(), nn.Linear(size, spec.width), nn.ReLU(), nn.Linear(spec.width, spec.width), nn.ReLU()]
    )
    return _few_shot(layers, spec, spec.width)


def _few_shot(layers: nn.ModuleList, spec: NetworkSpec, features: int) -> FewShotNetwork:
    scale = nn.Identity() if spec.feature_scale is None else UnitScale(spec.feature_scale)
    return FewShotNetwork(Body(layers, scale), nn.Linear(features, spec.ways))


_REGISTRY: Mapping[str, Callable[[NetworkSpec], nn.Module]] = {
    "conv4": lambda spec: _convolutional(spec, strided=False),
    "conv4-strided": lambda spec: _convolutional(spec, strided=True),
    "mlp": _perceptron,
}


def build_network(spec: NetworkSpec) -> nn.Module:
    """The network of a spec; its own weights are never used, see `initial_weights`.

    Raises:
        InputError: The name is not known, or the user's factory cannot be imported or called.
    """
    if spec.name in _REGISTRY:
        return _REGISTRY[spec.name](spec)
    if ":" not in spec.name:
        known = ", ".join(_REGISTRY)
        raise InputError(f"model.name = {spec.name}: known are {known}, or package.module:factory of your own")
    module, _, attribute = spec.name.partition(":")
    try:
        factory = cast(NetworkFactory, getattr(importlib.import_module(module), attribute))
        network = factory(
            channels=spec.channels,
            image_size=spec.image_size,
            ways=spec.ways,
            width=spec.width,
            norm=spec.norm,
        )
    except (ImportError, AttributeError, TypeError) as error:
        raise InputError(f"model.name = {spec.name}: {error}") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"model.name = {spec.name}: the factory returned {type(network).__name__}, not a Module")
    return network


def initial_weights(spec: NetworkSpec, seed: int) -> Params:
    """The initialisation before training, a function of (spec, seed)."""
    generator = public_generator(seed, Purpose.WEIGHTS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(generator.integers(2**62)))
        network = build_network(spec)
    weights = {name: value.detach().clone() for name, value in network.named_parameters()}
    if spec.zero_head:
        weights = {n: torch.zeros_like(v) if n.startswith(HEAD) else v for n, v in weights.items()}
    return weights


def apply(network: nn.Module, params: Mapping[str, Tensor], images: Tensor, reference: int | None) -> Tensor:
    """Logits [n, ways] under `params`; batch statistics, if any, come from the first `reference` images."""
    arguments = (images, reference) if isinstance(network, FewShotNetwork) else (images,)
    logits: Tensor = functional_call(network, dict(params), arguments)
    return logits


def channels_last(images: Tensor) -> Tensor:
    """The same images in the layout in which convolutions are fastest on the CPU.

    With one channel both layouts look alike to PyTorch and it would choose the slow one; the strides say
    which is meant.
    """
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


def check_has_head(network: nn.Module, name: str) -> None:
    """Refuse `meta.adapt: head` for a network that is not a body followed by a head."""
    children = {child for child, _ in network.named_children()}
    if children != {"body", "head"}:
        raise InputError(
            f"model.name = {name}: meta.adapt: head needs a module with exactly the children body and head, "
            f"where logits = head(body(images)); found {sorted(children)}; use --meta.adapt all"
        )


def check_records_uncoupled(network: nn.Module, spec: NetworkSpec) -> None:
    """Refuse a network in which one record can influence another's gradient (privacy rule 3).

    Raises:
        RefusedPlan: Names the module, and offers the converted model.
    """
    coupled = (nn.modules.batchnorm._BatchNorm, ReferenceBatchNorm)
    for name, module in network.named_modules():
        tracks = getattr(module, "track_running_stats", False)
        if isinstance(module, coupled) or tracks:
            offer = (
                "use --model.norm group"
                if spec.name in _REGISTRY
                else "opacus.validators.ModuleValidator.fix(model) converts it to GroupNorm"
            )
            raise RefusedPlan(
                f"model.norm: {name} ({type(module).__name__}) lets the records of a batch influence each "
                f"other's gradients, so record-level privacy would not hold; {offer}"
            )
