"""Initial weights of training: random, with a body that is public already, or of another number of classes."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params
from dpfedmeta.core.random.random_sources import Purpose, global_generators_at, public_generator
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import BODY, BUILT_IN, HEAD, NetworkSpec, built_in_body
from dpfedmeta.learning.models.trainable import frozen_names

_LAYER = re.compile(r"^(body\.layers\.)(\d{1,6})\.")


def initial_weights(spec: NetworkSpec, seed: int) -> Params:
    """The initialisation before training, a function of (spec, seed) and of the file that spec.initial names.

    A head that is one linear layer begins at zero where it is not learned: no class is special then.

    Raises:
        InputError: There is no such file, it is damaged, or it is of another network.
    """
    generator = public_generator(seed, Purpose.WEIGHTS)
    first = int(generator.integers(2**62))
    # On a CPU whatever PyTorch's default device is: another one draws other numbers.
    with torch.device("cpu"), global_generators_at(python=first, numpy=first % 2**32, torch=first):
        network = build_network(spec)
    weights = {name: value.detach().clone() for name, value in network.named_parameters()}
    if spec.learn != "all" and isinstance(dict(network.named_children()).get("head"), nn.Linear):
        # Other heads stay as their factory made them: at zero most of them would pass no gradient on.
        frozen = frozen_names(network)
        weights = {n: torch.zeros_like(v) if n.startswith(HEAD) and n not in frozen else v for n, v in weights.items()}
    if spec.initial is not None:
        weights |= _public_body(spec, spec.initial, weights)
    return _with_first_gain(spec, weights)


def _with_first_gain(spec: NetworkSpec, weights: Params) -> Params:
    """The first kernel times spec.first_gain.

    The normalisation behind it undoes that, so the network computes the same, but the gradient by f times a kernel is
    1/f times as long: less of a clip bound goes to this layer, whose gradient is the longest, and more to the others.
    """
    if spec.first_gain == 1.0:
        return weights
    first = next(name for name, value in weights.items() if value.ndim == 4)
    return {**weights, first: spec.first_gain * weights[first]}


def _public_body(spec: NetworkSpec, initial: str, expected: Mapping[str, Tensor]) -> Params:
    """The body's part of a file: the head belongs to classes that nobody will see again."""
    content, where = _content(spec, initial)
    try:
        found: Params = load(content)
    except (SafetensorError, ValueError) as error:
        raise InputError(f"model.initial: {where}: is not a complete safetensors file ({error})") from error
    wanted = {name: tuple(value.shape) for name, value in expected.items() if name.startswith(BODY)}
    body = _renumbered({name: value for name, value in found.items() if name.startswith(BODY)}, list(wanted))
    if not wanted:
        raise InputError(f"model.initial: model.name = {spec.name} has no part named body, which it would set")
    for name in sorted(wanted.keys() | body.keys()):
        shape = tuple(body[name].shape) if name in body else "nothing"
        if shape != wanted.get(name, "nothing"):
            raise InputError(
                f"model.initial: {where}: {name}: expected {wanted.get(name, 'nothing')}, found {shape}; model.name, "
                "model.width, model.norm and the channels must be those of the run that trained it"
            )
        if not bool(torch.isfinite(body[name]).all()):
            raise InputError(f"model.initial: {where}: {name}: holds values that are not finite")
    return {name: value.to(expected[name].dtype) for name, value in body.items()}


def _renumbered(body: Params, wanted: list[str]) -> Params:
    """The first layer may be one that averages images (model.downscale): it has no weights, but it counts."""
    numbers, due = (sorted({int(n.split(".")[2]) for n in names if _LAYER.match(n)}) for names in (body, wanted))
    if len(numbers) != len(due):
        return body
    place = dict(zip(numbers, due, strict=True))
    return {_LAYER.sub(lambda found: f"{found[1]}{place[int(found[2])]}.", name): value for name, value in body.items()}


def _content(spec: NetworkSpec, initial: str) -> tuple[bytes, str]:
    if initial in BUILT_IN:
        file = built_in_body(spec)
        return file.read_bytes(), file.name
    path = Path(initial)
    if path.is_dir():
        path = path / "checkpoint" / "model.safetensors"
    try:
        return path.read_bytes(), str(path)
    except OSError as error:
        raise InputError(
            f"model.initial = {initial}: cannot be read ({error.strerror}); expected {', '.join(BUILT_IN)}, a run "
            "directory, or a safetensors file"
        ) from error


def check_weights(spec: NetworkSpec, weights: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights of another network, or with values that are not finite.

    Raises:
        InputError: Names the first parameter that does not fit.
    """
    expected = {name: tuple(value.shape) for name, value in build_network(spec).named_parameters()}
    for name in sorted(expected.keys() | weights.keys()):
        found = tuple(weights[name].shape) if name in weights else "nothing"
        if found != expected.get(name):
            raise InputError(f"{where}: {name}: expected {expected.get(name, 'nothing')}, found {found}")
        if not bool(torch.isfinite(weights[name]).all()):
            raise InputError(f"{where}: {name}: holds values that are not finite")


def with_ways(spec: NetworkSpec, weights: Mapping[str, Tensor], ways: int) -> tuple[NetworkSpec, Params]:
    """A network for another number of classes, from weights trained with `spec.ways`.

    What classes have of their own keeps its first rows; further classes start at the mean of the trained ones, since
    labels are dealt out at random in every episode and no class is special.

    Returns:
        The new specification and weights.
    """
    changed = replace(spec, ways=ways)
    if ways == spec.ways:
        return changed, dict(weights)
    shapes = {name: value.shape for name, value in build_network(changed).named_parameters()}

    def fits(name: str, value: Tensor) -> bool:
        # What an algorithm learns besides has the form of a weight (`rate/head.weight`), or none that classes change.
        return value.shape == shapes.get(name.rpartition("/")[2], value.shape)

    return changed, {name: value if fits(name, value) else _rows(value, ways) for name, value in weights.items()}


def _rows(value: Tensor, ways: int) -> Tensor:
    missing = max(0, ways - value.shape[0])
    further = value.mean(0, keepdim=True).expand(missing, *value.shape[1:])
    return torch.cat([value[:ways], further]).contiguous()
