"""The same network for another number of classes, and whether weights fit a network at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec


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
        # What an algorithm learns besides (`rate/head.weight`) has the form of a weight.
        return value.shape == shapes[name.rpartition("/")[2]]

    return changed, {name: value if fits(name, value) else _rows(value, ways) for name, value in weights.items()}


def _rows(value: Tensor, ways: int) -> Tensor:
    missing = max(0, ways - value.shape[0])
    further = value.mean(0, keepdim=True).expand(missing, *value.shape[1:])
    return torch.cat([value[:ways], further]).contiguous()
