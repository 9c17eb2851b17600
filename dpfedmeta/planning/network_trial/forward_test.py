"""Test before the first round that a network returns logits, and the same ones each time."""

import random
import threading
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.models.functional import apply, apply_body, apply_head
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.local_training import records
from dpfedmeta.planning.network_trial.synthetic_clients import Rehearsal

# Rounding of float32 between two ways through the same layers.
_ALIKE = 1e-3
# Weights of this many times their initial size are tried for a bound that forward may hold them to.
_LARGER = 1e3


def check_forward(rehearsal: Rehearsal) -> None:
    """Refuse a network that does not turn images into logits, or into the same ones each time.

    Raises:
        InputError: Says what it returns, which layer draws random numbers, or which values differ from build to build.
    """
    spec = rehearsal.network
    if ":" in spec.name:
        _check_built_alike(spec)
    images = torch.cat([records(episode)[0] for episode in rehearsal.episodes(0)])
    network, weights, before = build_network(spec), initial_weights(spec, 0), drawn_so_far()
    given, seen = {name: value.clone() for name, value in weights.items()}, images.clone()
    with torch.no_grad():
        logits = apply(network, given, seen, None)
    check_draws_nothing(spec, before)
    if ":" in spec.name:
        _check_changes_nothing(spec, weights, images, given, seen)
    expected = (len(images), spec.ways)
    if not isinstance(logits, Tensor):
        raise InputError(
            f"model.name = {spec.name}: returns {type(logits).__name__}, expected a tensor of logits {expected} for "
            f"{len(images)} images: let forward return only the logits"
        )
    if (found := tuple(logits.shape)) != expected:
        raise InputError(
            f"model.name = {spec.name}: returns {found} for {len(images)} images and ways = {spec.ways}, expected "
            f"{expected}: one logit for each of the ways that are passed to the factory"
        )
    if not bool(torch.isfinite(logits).all()):
        raise InputError(
            f"model.name = {spec.name}: returns NaN or infinity for images of random pixels in [0, 0.25], with its "
            "initial weights: every client's message would count as zero"
        )
    if ":" in spec.name and rehearsal.algorithm.adaptation.adapt == "head":
        _check_is_body_and_head(rehearsal, images)


def _check_changes_nothing(
    spec: NetworkSpec, weights: Mapping[str, Tensor], images: Tensor, given: Mapping[str, Tensor], seen: Tensor
) -> None:
    """Refuse a network whose forward wrote into the weights or images that it was given.

    Small weights may pass below a bound that larger ones meet, as with nn.Embedding(max_norm): these are tried too.
    """
    network, larger = build_network(spec), {name: _LARGER * value for name, value in weights.items()}
    again = {name: value.clone() for name, value in larger.items()}
    with torch.no_grad():
        apply(network, again, images.clone(), None)
    changed = _differing(weights, given) or _differing(larger, again)
    if changed is not None:
        layer = changed.rpartition(".")[0]
        module = network.get_submodule(layer)
        bound = "max_norm = " if getattr(module, "max_norm", None) is not None else ""
        raise InputError(
            f"model.name = {spec.name}: forward changes the weight {changed} ({type(module).__name__}), so each worker "
            f"process would train other weights; "
            + (f"build {layer or 'it'} without {bound}{module.max_norm:g}" if bound else "write nothing into weights")
        )
    if not torch.equal(images, seen):
        raise InputError(
            f"model.name = {spec.name}: forward changes the images that it is given, which are used again after it; "
            "compute with copies: x.sub(a) in place of x.sub_(a), nn.ReLU() in place of nn.ReLU(inplace=True)"
        )


def check_keeps_nothing(spec: NetworkSpec, network: nn.Module) -> None:
    """Refuse a network that clients computed with, if a buffer changed.

    Running statistics of torch's own layers are let alone: a network that is in training mode does not read them.

    Raises:
        InputError: Names the buffer and its layer.
    """
    both = (build_network(spec), network)
    anew, now = ({n: value for n, value in each.named_buffers() if not _statistic(each, n)} for each in both)
    changed = _differing(anew, now)
    if changed is not None:
        layer = network.get_submodule(changed.rpartition(".")[0])
        raise InputError(
            f"model.name = {spec.name}: forward changes the buffer {changed} ({type(layer).__name__}), so each worker "
            "process would compute with other values; let forward keep nothing from one call to the next"
        )


def _statistic(network: nn.Module, name: str) -> bool:
    """Return whether a buffer is a running statistic, which nothing reads while its layer is in training mode."""
    layer = network.get_submodule(name.rpartition(".")[0])
    return isinstance(layer, nn.modules.batchnorm._NormBase) and layer.training


def drawn_so_far() -> tuple[object, ...]:
    """The state of all generators that a network may draw from without making one of its own."""
    kind, words, *place = np.random.get_state(legacy=True)  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), random.getstate(), (kind, np.asarray(words).tobytes(), *place)


class DrawsRandomNumbers(InputError):
    """A global generator moved while a network was tried out: it draws, or another thread of the process did."""


def check_draws_nothing(spec: NetworkSpec, before: tuple[object, ...]) -> None:
    """Refuse a network if a generator moved.

    Raises:
        DrawsRandomNumbers: Names the layer that drew.
    """
    if drawn_so_far() != before:
        raise draws_random_numbers(spec)


def draws_random_numbers(spec: NetworkSpec) -> DrawsRandomNumbers:
    """Why such a network is refused, and which of its layers draw."""
    # What a layer draws, it draws every time.
    again = _drawing_layers(spec)
    layers = [layer for layer in _drawing_layers(spec) if layer in again]
    return DrawsRandomNumbers(
        f"model.name = {spec.name}: draws random numbers in forward{': ' if layers else ''}{', '.join(layers)}, so the "
        "same records would give different gradients each time, and a resumed run would end differently; "
        f"take dropout and noise out of the network (nn.Dropout: p = 0){_or_another_thread()}"
    )


def _or_another_thread() -> str:
    """Second half of the error message: other threads that may be drawing instead; empty if there are none.

    If draws occur on every try, those of the network and those of another thread cannot be told apart.
    """
    others = [thread.name for thread in threading.enumerate() if thread is not threading.current_thread()]
    if not others:
        return ""
    return (
        f"; or another thread of this process ({', '.join(others)}) draws from the global generators of torch, "
        "numpy or random meanwhile: give that thread its own generator"
    )


def _drawing_layers(spec: NetworkSpec) -> list[str]:
    """The innermost modules that draw, by name and kind."""
    network = build_network(spec)
    found: list[nn.Module] = []
    entered: dict[nn.Module, tuple[tuple[object, ...], int]] = {}
    image = torch.zeros(2, spec.channels, spec.image_size, spec.image_size)

    def enter(module: nn.Module, _: object) -> None:
        entered[module] = (drawn_so_far(), len(found))

    def leave(module: nn.Module, *_: object) -> None:
        before, known = entered[module]
        if drawn_so_far() != before and len(found) == known:
            found.append(module)

    for module in network.modules():
        module.register_forward_pre_hook(enter)
        module.register_forward_hook(leave)
    try:
        with torch.no_grad():
            network(image)
    except Exception:  # found out otherwise, and said there
        return []
    names = {module: name for name, module in network.named_modules()}
    return [f"{names[module] or 'the network itself'} ({_kind(module)})" for module in dict.fromkeys(found)]


def _kind(module: nn.Module) -> str:
    share = getattr(module, "p", None)
    return f"{type(module).__name__}, p = {share:g}" if isinstance(share, float) else type(module).__name__


def _check_built_alike(spec: NetworkSpec) -> None:
    """Every process builds the network anew: what is not a learned weight must come out the same."""
    first, second = (dict(build_network(spec).named_buffers()) for _ in range(2))
    if (name := _differing(first, second)) is not None:
        raise InputError(
            f"model.name = {spec.name}: {name} is a buffer with different values each time the network is built, so "
            "each worker process would compute with another network; make it a frozen weight, nn.Parameter(values, "
            "requires_grad=False), which run.seed sets and checkpoints keep, or remove the layer"
        )
    weights = [initial_weights(spec, 0) for _ in range(2)]
    if (name := _differing(*weights)) is not None:
        raise InputError(
            f"model.name = {spec.name}: {name} starts with different values each time for the same run.seed: the "
            "factory draws from its own generator; let it draw from the global ones of torch, numpy or random, which "
            "run.seed sets"
        )


def _differing(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str | None:
    return next((n for n in first if not torch.equal(first[n].nan_to_num(), second[n].nan_to_num())), None)


def _check_is_body_and_head(rehearsal: Rehearsal, images: Tensor) -> None:
    """Check that forward is head(body(images)), which is what clients compute where only the head adapts."""
    spec, where = rehearsal.network, f"model.name = {rehearsal.network.name}"
    # Random weights: a head begins with zeros, behind which any body looks alike.
    model, rest = rehearsal.weights(1)
    weights = initial_weights(spec, 0)
    weights |= {name: value for name, value in {**model, **rest}.items() if _fits(weights, name, value)}
    with torch.no_grad():
        # Each time a fresh one, for what it may keep from one call to the next.
        whole, again = (apply(build_network(spec), weights, images, None) for _ in range(2))
        features = apply_body(build_network(spec), weights, images, None)
        if not isinstance(features, Tensor) or features.shape[:1] != (len(images),):
            found = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            raise InputError(
                f"{where}: its body returns {found} for {len(images)} images, expected a tensor with a row for each"
            )
        split = apply_head(build_network(spec), weights, features)
    if not torch.equal(whole, again):  # found out by the trial of what clients compute
        return
    share = float((split - whole).norm() / whole.norm().clamp_min(1e-12)) if split.shape == whole.shape else 1.0
    if not share <= _ALIKE:
        raise InputError(
            f"{where}: forward is not head(body(images)): they differ by {share:.2g} of their length, but with "
            "meta.adapt = head clients compute head(body(images)); put everything into body and head, or use "
            "--meta.adapt all"
        )


def _fits(weights: Mapping[str, Tensor], name: str, value: Tensor) -> bool:
    return name in weights and weights[name].shape == value.shape
