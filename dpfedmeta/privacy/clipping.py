"""Projection onto the L2 ball: what gives a contribution its sensitivity."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from dpfedmeta.parameters import Params, is_finite, norm, zeros_like
from dpfedmeta.privacy.units import Bounded, Record

# Factors are applied in float64, where the largest float32 gradient can still be scaled to the smallest bound.
# Rounding to float32 may lengthen a vector by a few parts in 10^8; shrinking by more than that keeps the norm at or
# below the bound.
_ROUNDING = 1.0 - 1e-6


def clip(contribution: Mapping[str, Tensor], bound: float) -> Params:
    """Project onto the ball of radius `bound` (1-Lipschitz); an infinite bound changes nothing.

    Zero norms divide nothing. A contribution with NaN or Inf becomes 0 (privacy rule 4).
    """
    if not bound > 0:
        raise ValueError(f"a clip bound must be > 0, got {bound}")
    if not is_finite(contribution):
        return zeros_like(contribution)
    length = norm(contribution)
    if length <= bound:
        return dict(contribution)
    factor = bound / length * _ROUNDING
    return {name: (value.double() * factor).to(value.dtype) for name, value in contribution.items()}


def clip_per_layer(contribution: Mapping[str, Tensor], bound: float) -> Params:
    """Project each layer (the tensors of one module) onto a ball of radius bound/sqrt(layers).

    The whole keeps norm at most `bound`, so its sensitivity is the same as that of `clip`.
    """
    if not is_finite(contribution):
        return zeros_like(contribution)
    layers: dict[str, Params] = {}
    for name, value in contribution.items():
        layers.setdefault(name.rpartition(".")[0], {})[name] = value
    share = bound / math.sqrt(len(layers))
    clipped = {name: value for layer in layers.values() for name, value in clip(layer, share).items()}
    return {name: clipped[name] for name in contribution}


def clipped_record_sum(gradients: Mapping[str, Tensor], bound: float) -> Bounded[Record, Params]:
    """Sum of per-record gradients, each clipped to `bound` over all tensors together.

    Args:
        gradients: Per-record gradients, each tensor [records, *shape]; or gradients of parts that share no record.
        bound: C_s or C_q.

    Returns:
        The sum, with sensitivity `bound` under zero-out of one record. A record whose gradient is not
        finite counts as 0.
    """
    flat = torch.cat([value.reshape(value.shape[0], -1) for value in gradients.values()], dim=1).double()
    weights = _weights(flat, bound)
    finite = torch.where(weights[:, None] > 0, flat, 0.0)
    return Bounded(value=_split(weights @ finite, gradients), sensitivity=bound)


def _weights(flat: Tensor, bound: float) -> Tensor:
    """min(1, bound / norm) for each row; 0 for a row that is not finite."""
    lengths = torch.linalg.vector_norm(flat, dim=1)
    factors = torch.where(lengths > bound, bound / lengths.clamp_min(math.ulp(0.0)) * _ROUNDING, 1.0)
    return torch.where(torch.isfinite(lengths), factors, 0.0)


def _split(vector: Tensor, gradients: Mapping[str, Tensor]) -> Params:
    parts = torch.split(vector, [value[0].numel() for value in gradients.values()])
    return {name: part.reshape(value.shape[1:]) for (name, value), part in zip(gradients.items(), parts, strict=True)}
