"""Projection onto the L2 ball: what gives a contribution its sensitivity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dpfedmeta.core.params import Params, flatten, float64, length_of, norm, same_type, unflatten, zeros_like

if TYPE_CHECKING:
    from torch import Tensor

# Factors are applied in float64, where the largest float32 gradient can still be scaled to the smallest bound.
# Rounding to float32 may lengthen a vector by a few parts in 10^8; shrinking by more than that keeps the norm at or
# below the bound.
ROUNDING = 1.0 - 1e-6


def clip(contribution: Mapping[str, Tensor], bound: float) -> Params:
    """Project onto the ball of radius `bound` (1-Lipschitz); an infinite bound changes nothing.

    Zero norms divide nothing. A contribution with NaN or Inf becomes 0 (privacy rule 4).
    """
    if not bound > 0:
        raise ValueError(f"a clip bound must be > 0, got {bound}")
    if not contribution:
        return {}
    values = flatten(contribution)
    # In float64 a norm is finite where every scalar is.
    if not math.isfinite(length := length_of(values)):
        return zeros_like(contribution)
    if length <= bound:
        return dict(contribution)
    shortened = same_type(float64(values) * (bound / length * ROUNDING), values)
    parts = unflatten(shortened, contribution)
    return {name: same_type(part, contribution[name]) for name, part in parts.items()}


def clip_per_layer(contribution: Mapping[str, Tensor], bound: float) -> Params:
    """Project each layer (the tensors of one module) onto a ball of radius bound/sqrt(layers).

    The whole keeps norm at most `bound`, so its sensitivity is the same as that of `clip`.
    """
    if not math.isfinite(norm(contribution)):
        return zeros_like(contribution)
    layers: dict[str, Params] = {}
    for name, value in contribution.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = value
    share = bound / math.sqrt(len(layers))
    clipped = {name: value for layer in layers.values() for name, value in clip(layer, share).items()}
    return {name: clipped[name] for name in contribution}
