"""Model parameters as values: a mapping from name to tensor, and the few operations the engine needs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameter name -> tensor. Gradients, updates, messages and aggregates have the same form."""
Arrays = Mapping[str, npt.NDArray[np.float32]]
"""The form in which parameters travel to worker processes."""


def dimension(params: Mapping[str, Tensor]) -> int:
    """d, the number of scalars."""
    return sum(value.numel() for value in params.values())


def norm(params: Mapping[str, Tensor]) -> float:
    """L2 norm over all tensors, in float64 so that a norm of 1e30 does not overflow."""
    return length_of(flatten(params)) if params else 0.0


def length_of(values: Tensor) -> float:
    """L2 norm of a vector, in float64."""
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def is_finite(params: Mapping[str, Tensor]) -> bool:
    """Return whether every scalar is finite."""
    return not params or bool(torch.isfinite(flatten(params)).all())


def scaled(params: Mapping[str, Tensor], factor: float) -> Params:
    """Factor * params."""
    return {name: value * factor for name, value in params.items()}


def zeros_like(params: Mapping[str, Tensor]) -> Params:
    """Zeros of the same names and shapes."""
    return {name: torch.zeros_like(value) for name, value in params.items()}


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Params:
    """Left - right."""
    return {name: value - right[name] for name, value in left.items()}


def detached(params: Mapping[str, Tensor]) -> Params:
    """The same values without their history."""
    return {name: value.detach() for name, value in params.items()}


def flatten(params: Mapping[str, Tensor]) -> Tensor:
    """All scalars as one vector, in the order of the mapping."""
    return torch.cat([value.reshape(-1) for value in params.values()]).detach()


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> Params:
    """Inverse of flatten for parameters of the form of `like`; the precision stays that of the vector."""
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(value.shape) for (name, value), part in zip(like.items(), parts, strict=True)}


def digest(params: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, forms and every bit, in the order of the names."""
    total = hashlib.sha256()
    for name, value in sorted(params.items()):
        array = value.detach().cpu().contiguous().numpy()
        total.update(f"{name} {array.dtype} {array.shape}\n".encode())
        total.update(array.tobytes())
    return total.hexdigest()


def added(samples: Iterable[Mapping[str, Tensor]]) -> Params:
    """The sum of several parameter values.

    Raises:
        ValueError: There is none.
    """
    total: Params = {}
    for sample in samples:
        total = {name: value + total[name] if total else value for name, value in sample.items()}
    if not total:
        raise ValueError("the sum of no parameters")
    return total


def arrays_of(params: Mapping[str, Tensor]) -> Arrays:
    """Parameters as they travel to worker processes."""
    return {name: value.detach().cpu().numpy() for name, value in params.items()}


def tensors_of(arrays: Arrays) -> Params:
    """Parameters that have travelled; a copy."""
    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}
