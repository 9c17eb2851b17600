"""Shapes of the weights of built-in networks, and which of them are learned: for plans, which need no PyTorch."""

import math
from collections.abc import Callable, Collection, Mapping
from typing import Protocol, TypeVar

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.peak_memory import memory_of_machine
from dpfedmeta.core.random.random_sources import FloatArray
from dpfedmeta.data.episodes.shape import Kind
from dpfedmeta.learning.models.spec import BODY, HEAD, LEAST_SHORT_CHANNELS, NETWORKS, NetworkSpec

Shape = tuple[int, ...]
Shapes = dict[str, Shape]


class HasAxes(Protocol):
    """A tensor, or a stand-in of its shape."""

    @property
    def ndim(self) -> int:
        """How many axes it has."""
        ...


Value = TypeVar("Value", bound=HasAxes)
# Small networks on the features of an encoder (models.layers.adapters).
ADAPTERS = ("affine", "identity", "low-rank")
METRIC, GAUSSIAN = "metric", "gaussian"
# Of adapters. Added to a squared length, so that vectors of zeros have a gradient.
FLOOR = 1e-12
# Logits of cosine prototypes before training are cosines times this.
SHARPNESS = 16.0
# Of those that take more, or others, than images.
_TAKES: Mapping[str, tuple[Kind, ...]] = {
    **dict.fromkeys(ADAPTERS, ("vectors",)),
    METRIC: ("vectors",),
    GAUSSIAN: ("vectors",),
    "linear": ("images", "vectors"),
    "mlp": ("images", "vectors"),
    "text": ("tokens",),
}


def weight_shapes(spec: NetworkSpec) -> Shapes:
    """Names and shapes of all weights of a built-in network, in the order of its parameters.

    Raises:
        InputError: It does not take these records, or nothing is left of an image.
    """
    check_takes(spec)
    layers, features = _LAYERS[spec.name](spec)
    # A layer that averages the image stands before all others.
    first = 1 if downscale_of(spec) > 1 else 0
    body = {
        f"{BODY}layers.{first + place}.{name}": shape
        for place, layer in layers.items()
        for name, shape in layer.items()
    }
    return {**body, f"{HEAD}weight": (spec.ways, features), f"{HEAD}bias": (spec.ways,)}


def check_memory(spec: NetworkSpec) -> None:
    """Refuse a built-in network that needs more memory than this machine has.

    Raises:
        InputError: Says how much it needs.
    """
    weights = sum(math.prod(shape) for shape in weight_shapes(spec).values())
    # The weights, their gradient and the sum of a round, each in float32: less than any run holds.
    needed, there = 12 * weights, memory_of_machine()
    if needed > there:
        raise InputError(
            f"the network has {weights:,} weights: with their gradient and their sum {needed / 2**30:,.0f} GiB, and "
            f"this machine has {there / 2**30:,.1f} GiB; lower model.width or task.ways, or take another network"
        )


def stand_ins(shapes: Mapping[str, Shape]) -> dict[str, FloatArray]:
    """Zeros of these shapes that take no memory: what only names and counts weights needs no tensors."""
    return {name: np.broadcast_to(np.zeros(()), shape) for name, shape in shapes.items()}


def learned_part(spec: NetworkSpec, weights: Mapping[str, Value]) -> dict[str, Value]:
    """The parameters that the federation learns; the rest, and what is frozen, stays what `initial_weights` made it.

    Every learned scalar carries noise, so learning fewer of them raises the signal-to-noise ratio.

    Raises:
        InputError: Nothing would be learned.
    """
    frozen: Collection[str] = ()
    if ":" in spec.name:
        from dpfedmeta.learning.models.registry import build_network
        from dpfedmeta.learning.models.trainable import frozen_names

        frozen = frozen_names(build_network(spec))
    weights = {name: value for name, value in weights.items() if name not in frozen}
    if not weights:
        raise InputError(
            f"model.name = {spec.name}: all its weights are frozen (requires_grad_(False)), so nothing would be learned"
        )
    if spec.learn == "all":
        return weights
    body = {name: value for name, value in weights.items() if not name.startswith(HEAD)}
    if not body:
        raise InputError(
            f"meta.learn = {spec.learn}: model.name = {spec.name} has no {'free ' if frozen else ''}weights but its "
            "head's, so nothing would be learned; use --meta.learn all"
        )
    if spec.learn == "body":
        return body
    first = next(iter(body))
    return {name: value for name, value in body.items() if value.ndim == 1 or name == first}


def check_takes(spec: NetworkSpec) -> None:
    """Refuse records that a built-in network does not take.

    Raises:
        InputError: Says which network does.
    """
    takes = _TAKES.get(spec.name, ("images",))
    if spec.records not in takes:
        fitting = " or ".join(name for name in NETWORKS if spec.records in _TAKES.get(name, ("images",)))
        raise InputError(
            f"model.name = {spec.name}: takes {' or '.join(takes)}, and the records are {spec.form.words}; use "
            f"--model.name {fitting}, or package.module:factory of your own"
        )
    if spec.records != "images" and spec.downscale is not None:
        raise InputError(f"model.downscale = {spec.downscale}: {spec.records} cannot be averaged; leave it out")
    if side_of(spec) < 1:
        raise InputError(f"model.downscale = {spec.downscale}: images have only {spec.image_size} pixels a side")
    if spec.name.startswith("conv") and spec.norm == "group" and spec.width % (spec.groups or 1):
        raise InputError(
            f"model.width = {spec.width}: cannot be divided into model.groups = {spec.groups} groups of channels; give "
            f"a multiple of {spec.groups}, or --model.groups null (one for each channel)"
        )
    if spec.name.startswith("conv4") and _side_after_conv4(spec) < 1:
        raise InputError(f"model.name = {spec.name} needs images of at least 16 pixels, got {side_of(spec)}")


def built_in_channels(spec: NetworkSpec) -> tuple[int, ...]:
    """Input channels of this package's convolutions in a built-in network, for `check_convolutions`."""
    return (spec.channels, spec.width) if spec.name.startswith("conv") else ()


def check_convolutions(spec: NetworkSpec, channels: Collection[int]) -> None:
    """Refuse settings that a network would not notice, or that would change what it computes.

    Args:
        spec: Of the network.
        channels: Input channels of this package's convolutions in it.

    Raises:
        InputError: Says which setting to leave out.
    """
    least = LEAST_SHORT_CHANNELS if spec.precision == "bfloat16" else 1
    if spec.precision != "float32" and not any(count >= least for count in channels):
        raise InputError(
            f"run.precision = {spec.precision}: model.name = {spec.name} of width {spec.width} has none of this "
            f"package's convolutions with at least {least} input channels, so it has no effect; leave it out"
        )
    if spec.first_gain != 1.0 and not (channels and spec.norm != "none"):
        raise InputError(
            f"model.first_gain = {spec.first_gain:g}: model.name = {spec.name} with model.norm = {spec.norm} does not "
            "normalise after its first convolution, so this would change what the network computes; leave it out"
        )


def downscale_of(spec: NetworkSpec) -> int:
    """How many pixels a side are averaged before the first layer."""
    return spec.downscale or (2 if spec.name == "conv3-blur" else 1)


def side_of(spec: NetworkSpec) -> int:
    """Return the height and width of the images that the first layer sees."""
    return spec.image_size // downscale_of(spec)


def _side_after_conv4(spec: NetworkSpec) -> int:
    side = side_of(spec)
    for _ in range(4):
        side = (side + 1) // 2 if spec.name == "conv4-strided" else side // 2
    return side


# The layers that have weights, by their place in the body, and how many features the head gets.
_Layers = tuple[dict[int, Shapes], int]


def _block(channels: int, spec: NetworkSpec, kernel: int = 3) -> Shapes:
    kernels = {"convolution.weight": (spec.width, channels, kernel, kernel)}
    own = "convolution.bias" if spec.norm == "none" else "norm.weight"
    shift = {} if spec.norm == "none" else {"norm.bias": (spec.width,)}
    return {**kernels, own: (spec.width,), **shift}


def _dense(inputs: int, outputs: int) -> Shapes:
    return {"weight": (outputs, inputs), "bias": (outputs,)}


def _conv4(spec: NetworkSpec) -> _Layers:
    blocks = (_block(spec.channels, spec), *(3 * [_block(spec.width, spec)]))
    return dict(enumerate(blocks)), spec.width * _side_after_conv4(spec) ** 2


def _conv3_blur(spec: NetworkSpec) -> _Layers:
    side = (side_of(spec) + 3) // 4
    blocks = (_block(spec.channels, spec, kernel=5), _block(spec.width, spec), _block(spec.width, spec))
    return dict(enumerate(blocks)), spec.width * side**2


def _perceptron(spec: NetworkSpec) -> _Layers:
    size = spec.channels * side_of(spec) ** 2
    return {1: _dense(size, spec.width), 3: _dense(spec.width, spec.width)}, spec.width


def _linear(spec: NetworkSpec) -> _Layers:
    return {}, spec.channels if spec.records == "vectors" else spec.channels * spec.width**2


def _text(spec: NetworkSpec) -> _Layers:
    assert spec.vocabulary is not None  # of tokens only
    return {1: {"weight": (spec.width, spec.vocabulary)}, 2: _dense(spec.width, spec.width)}, spec.width


def _adapter(spec: NetworkSpec, own: Shapes) -> _Layers:
    return {1: own, 3: {"exponent": (1,)}}, spec.channels


def _affine(spec: NetworkSpec) -> _Layers:
    return _adapter(spec, {"gain": (spec.channels,), "shift": (spec.channels,)})


def _low_rank(spec: NetworkSpec) -> _Layers:
    return _adapter(spec, {"down.weight": (spec.width, spec.channels), "up.weight": (spec.channels, spec.width)})


def _metric(spec: NetworkSpec) -> _Layers:
    return {1: {"centre": (spec.channels,), "matrix": (spec.channels, spec.width)}, 3: {"exponent": (1,)}}, spec.width


_LAYERS: Mapping[str, Callable[[NetworkSpec], _Layers]] = {
    "affine": _affine,
    "conv3-blur": _conv3_blur,
    "conv4": _conv4,
    "conv4-strided": _conv4,
    GAUSSIAN: lambda spec: ({0: {"centre": (spec.channels,), "matrix": 2 * (spec.channels,)}}, spec.channels),
    "identity": lambda spec: _adapter(spec, {}),
    "linear": _linear,
    "low-rank": _low_rank,
    METRIC: _metric,
    "mlp": _perceptron,
    "text": _text,
}
