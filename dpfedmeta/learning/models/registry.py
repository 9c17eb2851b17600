"""Construction of networks from a specification, their learned parameters, and the reasons to refuse one."""

from collections.abc import Callable, Mapping
from typing import Protocol, cast

from torch import nn

from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.user_code import own_object, raised
from dpfedmeta.learning.models.layers.adapters import Affine, LowRank, Metric, adapter_layers
from dpfedmeta.learning.models.layers.normalisation import ReferenceBatchNorm
from dpfedmeta.learning.models.layers.stateless_layers import (
    Block,
    Body,
    FewShotNetwork,
    OverlappingAverage,
    RecordScale,
    SupportScale,
    text_layers,
)
from dpfedmeta.learning.models.spec import NetworkSpec, Norm
from dpfedmeta.learning.models.weight_shapes import check_takes, downscale_of, side_of


class NetworkFactory(Protocol):
    """Signature of the factory that `model.name: package.module:factory` names."""

    def __call__(self, *, channels: int, image_size: int, ways: int, width: int, norm: Norm) -> nn.Module:
        """A module from [n, channels, image_size, image_size] to logits [n, ways].

        Vectors come as [n, channels], with image_size = 1; so do sequences of tokens, whose factory also gets
        `vocabulary`: float32 that are whole numbers, 0 for padding.
        """
        ...


def _conv4(spec: NetworkSpec, *, strided: bool) -> FewShotNetwork:
    """Four blocks that halve the image, by pooling or by strides.

    Vinyals et al. 2016 (https://arxiv.org/abs/1606.04080).
    """
    blocks = nn.ModuleList()
    channels, side = spec.channels, side_of(spec)
    for _ in range(4):
        pool = None if strided else nn.MaxPool2d(2)
        blocks.append(Block(channels, spec, stride=2 if strided else 1, pool=pool))
        channels, side = spec.width, (side + 1) // 2 if strided else side // 2
    return _few_shot(blocks, spec, spec.width * side * side)


def _conv3_blur(spec: NetworkSpec) -> FewShotNetwork:
    """Three blocks with overlapping average pooling: few parameters, little aliasing; images are halved by default.

    For training under record-level noise, where every parameter costs signal-to-noise ratio.
    """
    layers = nn.ModuleList(
        [
            Block(spec.channels, spec, kernel=5, pool=_blur()),
            Block(spec.width, spec),
            Block(spec.width, spec, pool=_blur(), active=False),
        ]
    )
    side = side_of(spec)
    for _ in range(2):
        side = (side + 1) // 2
    return _few_shot(layers, spec, spec.width * side * side)


def _blur() -> nn.Module:
    return OverlappingAverage(3, stride=2, padding=1)


def _perceptron(spec: NetworkSpec) -> FewShotNetwork:
    size = spec.channels * side_of(spec) ** 2
    layers = nn.ModuleList(
        [nn.Flatten(), nn.Linear(size, spec.width), nn.ReLU(), nn.Linear(spec.width, spec.width), nn.ReLU()]
    )
    return _few_shot(layers, spec, spec.width)


def _linear(spec: NetworkSpec) -> FewShotNetwork:
    """A linear model of a vector, or of the image averaged to width x width: the fewest parameters that learn."""
    if spec.records == "vectors":
        return _few_shot(nn.ModuleList([nn.Flatten()]), spec, spec.channels)
    layers = nn.ModuleList([nn.AdaptiveAvgPool2d(spec.width), nn.Flatten()])
    return _few_shot(layers, spec, spec.channels * spec.width**2)


def _few_shot(layers: nn.ModuleList, spec: NetworkSpec, features: int) -> FewShotNetwork:
    if (downscale := downscale_of(spec)) > 1:
        layers.insert(0, nn.AvgPool2d(downscale))
    scale: nn.Module = nn.Identity()
    if spec.features != "raw":
        scale = (RecordScale if spec.features == "record" else SupportScale)(spec.feature_scale)
    return FewShotNetwork(Body(layers, scale), nn.Linear(features, spec.ways))


def _text(spec: NetworkSpec) -> FewShotNetwork:
    """The mean of the embeddings of a sequence's tokens, padding left out, and one hidden layer."""
    assert spec.vocabulary is not None  # of tokens only
    layers = text_layers(spec.vocabulary, spec.width)
    return _few_shot(layers, spec, spec.width)


def _adapter(spec: NetworkSpec, layer: nn.Module, features: int | None = None) -> FewShotNetwork:
    """An adapter on the features of an encoder, which begins as the identity."""
    return _few_shot(adapter_layers(layer), spec, features or spec.channels)


_REGISTRY: Mapping[str, Callable[[NetworkSpec], nn.Module]] = {
    "affine": lambda spec: _adapter(spec, Affine(spec.channels)),
    "conv3-blur": _conv3_blur,
    "conv4": lambda spec: _conv4(spec, strided=False),
    "conv4-strided": lambda spec: _conv4(spec, strided=True),
    "gaussian": lambda spec: _few_shot(nn.ModuleList([Metric(spec.channels, spec.channels)]), spec, spec.channels),
    "identity": lambda spec: _adapter(spec, nn.Identity()),
    "linear": _linear,
    "low-rank": lambda spec: _adapter(spec, LowRank(spec.channels, spec.width)),
    "metric": lambda spec: _adapter(spec, Metric(spec.channels, spec.width), spec.width),
    "mlp": _perceptron,
    "text": _text,
}


# What wraps a module for speed: it hides the children, and cannot be called with the weights of another client.
_WRAPPERS = ("OptimizedModule", "ScriptModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel")


def _check_plain(network: nn.Module, name: str) -> None:
    forms = (form.__name__ for module in network.modules() for form in type(module).__mro__)
    wrapper = next((form for form in forms if form in _WRAPPERS), None)
    if wrapper is not None:
        raise InputError(
            f"model.name = {name}: its factory returns a compiled, scripted or parallel module ({wrapper}); return the "
            "plain one (run.workers and cluster launches spread the work)"
        )


def build_network(spec: NetworkSpec) -> nn.Module:
    """The network of a spec; its own weights are never used, see `initial_weights`.

    Raises:
        InputError: The name is not known, the user's factory cannot be imported or called, or nothing is left of an
            image.
    """
    if spec.name in _REGISTRY:
        check_takes(spec)
        return _REGISTRY[spec.name](spec)
    if ":" not in spec.name:
        known = ", ".join(_REGISTRY)
        raise InputError(f"model.name = {spec.name}: known are {known}, or package.module:factory of your own")
    if spec.downscale is not None:
        raise InputError(f"model.downscale: does not apply to {spec.name}; average images inside the network")
    factory = cast(NetworkFactory, own_object("model.name", spec.name))
    try:
        network = factory(
            channels=spec.channels,
            image_size=spec.image_size,
            ways=spec.ways,
            width=spec.width,
            norm=spec.norm,
            **({} if spec.vocabulary is None else {"vocabulary": spec.vocabulary}),
        )
    except (Exception, SystemExit) as error:  # the user's own code
        raise InputError(f"model.name = {spec.name}: the factory failed ({raised(error)})") from error
    if not isinstance(network, nn.Module):
        raise InputError(f"model.name = {spec.name}: the factory returned {type(network).__name__}, not a Module")
    _check_plain(network, spec.name)
    return network


def check_has_head(network: nn.Module, name: str) -> None:
    """Refuse `meta.adapt: head` for a network that is not a body followed by a head."""
    children = {child for child, _ in network.named_children()}
    if children != {"body", "head"}:
        raise InputError(
            f"model.name = {name}: meta.adapt: head needs a module with exactly the children body and head, "
            f"where logits = head(body(images)); found {sorted(children)}; use --meta.adapt all"
        )


def convolved_channels(network: nn.Module) -> tuple[int, ...]:
    """Input channels of this package's convolutions in a network, for `check_convolutions`."""
    return tuple(block.convolution.in_channels for block in network.modules() if isinstance(block, Block))


def check_records_uncoupled(network: nn.Module, spec: NetworkSpec, *, inside_micro_episodes: bool = False) -> None:
    """Refuse a network in which one record can influence another's gradient (privacy rule 3).

    Inside a micro-episode, which is clipped as one, records may; statistics that a network keeps would carry them
    out of it.

    Raises:
        RefusedPlan: Names the module, and offers the converted model.
    """
    coupled = (nn.modules.batchnorm._BatchNorm, ReferenceBatchNorm, SupportScale)
    for name, module in network.named_modules():
        tracks = getattr(module, "track_running_stats", False)
        mixes = isinstance(module, coupled) and not inside_micro_episodes
        if tracks or mixes:
            raise RefusedPlan(
                f"model.norm, model.features: {name} ({type(module).__name__}) lets the records of a batch influence "
                "each other's gradients, so record-level privacy would not hold; "
                f"{_uncoupled_offer(spec, only_tracks=not mixes)}"
            )


def _uncoupled_offer(spec: NetworkSpec, *, only_tracks: bool) -> str:
    if spec.name in _REGISTRY:
        return "use --model.norm group and --model.features record"
    if only_tracks:
        return "build it with track_running_stats=False"
    return (
        "track_running_stats=False helps with --record.release micro-episodes only, which are clipped as a whole; else "
        "opacus.validators.ModuleValidator.fix(model) converts it to GroupNorm"
    )
