"""Clipping of many contributions at once, as rows of one matrix: per-example gradients, and messages on a GPU."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.core.params import Params
from dpfedmeta.privacy.clipping import ROUNDING
from dpfedmeta.privacy.per_example import clipping_jit as record_kernels
from dpfedmeta.privacy.units import Bounded, RecordUnit


def clip_rows(rows: Tensor, bound: float) -> Tensor:
    """Clip several contributions at once, as `clip` does, without waiting for the device.

    Args:
        rows: [n, d], one contribution in each row.
        bound: Radius of the ball.

    Returns:
        [n, d] of the same type; a row that is not finite is 0, one within the bound stays bit for bit as it is.
    """
    if not bound > 0:
        raise ValueError(f"a clip bound must be > 0, got {bound}")
    weights = _weights(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64), bound)[:, None]
    shortened = torch.where(weights < 1.0, (rows.double() * weights).to(rows.dtype), rows)
    return torch.where(weights > 0.0, shortened, 0.0)


def clip_rows_per_layer(rows: Tensor, bound: float, form: Mapping[str, Tensor]) -> Tensor:
    """Clip several contributions at once, as `clip_per_layer` does.

    Args:
        rows: [n, d], contributions of this form in the order of `flatten`.
        bound: Clip bound of a whole contribution.
        form: Names and shapes of the parameters.
    """
    layers: dict[str, list[int]] = {}
    for place, name in enumerate(form):
        layers.setdefault(name.rpartition(".")[0], []).append(place)
    pieces = list(torch.split(rows, [value.numel() for value in form.values()], dim=1))
    finite = torch.isfinite(torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64))[:, None]
    for places in layers.values():
        together = torch.cat([pieces[place] for place in places], dim=1)
        clipped = clip_rows(torch.where(finite, together, 0.0), bound / math.sqrt(len(layers)))
        sizes = [pieces[place].shape[1] for place in places]
        for place, piece in zip(places, torch.split(clipped, sizes, dim=1), strict=True):
            pieces[place] = piece
    return torch.cat(pieces, dim=1)


def clipped_record_sum(gradients: Mapping[str, Tensor], bound: float) -> Bounded[RecordUnit, Params]:
    """Sum of per-record gradients, each clipped to `bound` over all tensors together.

    Args:
        gradients: Per-record gradients, each tensor [records, *shape]; or gradients of parts that share no record.
        bound: C_s or C_q.

    Returns:
        The sum, with sensitivity `bound` under zero-out of one record. A record whose gradient is not
        finite counts as 0.
    """
    stored = {name: _as_stored(value) for name, value in gradients.items()}
    rows = {name: value.reshape(value.shape[0], -1) for name, value in stored.items()}
    weights = _weights(_lengths(list(rows.values())), bound)
    parts = {}
    for name, value in gradients.items():
        total = _weighted_sum(weights, rows[name]).view(stored[name].shape[1:])
        parts[name] = total.permute(_reverse(_order(value))).contiguous()
    return Bounded(value=parts, sensitivity=bound)


def _order(value: Tensor) -> list[int]:
    """The axes of one record as they lie in memory, slowest first."""
    return sorted(range(value.ndim - 1), key=lambda axis: -value.stride(axis + 1))


def _reverse(order: Sequence[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def _as_stored(value: Tensor) -> Tensor:
    """[records, ...], a record's axes as they lie in memory: its length does not change, and nothing is copied."""
    return value.permute(0, *(axis + 1 for axis in _order(value)))


def _lengths(rows: Sequence[Tensor]) -> Tensor:
    """Norms [records] in float64, over all tensors together."""
    if not all(_loops_apply(own) for own in rows):
        lengths: Tensor = torch.linalg.vector_norm(torch.cat([own.double() for own in rows], dim=1), dim=1)
        return lengths
    squares = np.zeros(len(rows[0]))
    for own in rows:
        record_kernels.add_squared_lengths(own.detach().numpy(), squares)
    return torch.from_numpy(np.sqrt(squares))


def _weights(lengths: Tensor, bound: float) -> Tensor:
    """min(1, bound / norm) for each record; 0 for one whose norm is not finite."""
    factors = torch.where(lengths > bound, bound / lengths.clamp_min(math.ulp(0.0)) * ROUNDING, 1.0)
    return torch.where(torch.isfinite(lengths), factors, 0.0)


def _weighted_sum(weights: Tensor, rows: Tensor) -> Tensor:
    """[d] in float64; a record of weight 0 adds nothing, whatever it holds."""
    if not _loops_apply(rows):
        total: Tensor = weights @ torch.where(weights[:, None] > 0, rows.double(), 0.0)
        return total
    sums = np.zeros(rows.shape[1])
    record_kernels.add_weighted_rows(rows.detach().numpy(), weights.numpy(), sums)
    return torch.from_numpy(sums)


def _loops_apply(rows: Tensor) -> bool:
    return rows.device.type == "cpu" and rows.dtype == torch.float32 and rows.is_contiguous()
