"""Model parameters as values: a mapping from name to array, and the few operations the engine needs.

The arrays are PyTorch's, or numpy's for whoever has no PyTorch: every function here takes both, computes the same
numbers with both, and imports PyTorch only for its tensors.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Params = dict[str, "Tensor"]
"""Parameter name -> tensor or numpy array. Gradients, updates, messages and aggregates have the same form."""
Arrays = Mapping[str, npt.NDArray[np.float32]]
"""The form in which parameters travel to worker processes."""


def is_numpy(values: object) -> bool:
    """Return whether an array is numpy's; else it is a tensor."""
    return isinstance(values, np.ndarray)


def host(values: Any) -> npt.NDArray[Any]:
    """The same numbers as a numpy array on the CPU."""
    return np.asarray(values if is_numpy(values) else values.detach().cpu().contiguous().numpy(), order="C")


def lost_as_array(values: Any) -> str | None:
    """Say what a plain array of these values would lose, a mask or names of places; None: nothing.

    A masked array hands out what lies under its mask, and a table or series (pandas, polars, xarray) its numbers in
    whatever order they stand.
    """
    if isinstance(values, list | tuple):
        return next((lost for lost in map(lost_as_array, values) if lost), None)
    if isinstance(values, np.ma.MaskedArray):
        return "a mask, under which numbers are missing" if np.ma.is_masked(values) else None
    named = any(hasattr(values, name) for name in ("index", "columns", "coords"))
    return "names, which plain arrays have by place" if named and hasattr(values, "to_numpy") else None


def check_plain(values: Any, what: str, *, named: bool = False) -> None:
    """Refuse what a plain array would lose something of: a mask, or names unless they may be lost.

    Raises:
        InputError: It has such.
    """
    lost = lost_as_array(values) if isinstance(values, np.ma.MaskedArray) or not named else None
    if lost:
        table = "; dpfedmeta.standardised(TASK, table) makes one of a table" if hasattr(values, "columns") else ""
        raise InputError(
            f"{what} have {lost}; hand over a plain array, without what is missing and in one order{table}"
        )


def in_order(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same numbers as torch takes them: no negative strides, in this machine's order of bytes."""
    turned = values.astype(values.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(turned) if any(step < 0 for step in turned.strides) else turned


def plain_tensor(values: Any) -> Tensor:
    """Arrays, and series by place, as a tensor; torch takes no negative strides, no other order of bytes, no views."""
    import torch

    given = np.asarray(values) if hasattr(values, "to_numpy") else values
    return torch.as_tensor(np.require(in_order(given), requirements="W") if isinstance(given, np.ndarray) else given)


def library_of(values: Any) -> Any:
    """numpy, or PyTorch, by the kind of an array: what both have under one name and with one meaning."""
    if is_numpy(values):
        return np
    import torch

    return torch


def plain_array(values: Any) -> npt.NDArray[Any]:
    """Arrays, series by place, lists and tensors as a numpy array."""
    if not hasattr(values, "detach"):
        return in_order(np.asarray(values))
    # Of floats all kinds: some are numpy's no more.
    found: npt.NDArray[Any] = (values.double() if values.is_floating_point() else values).numpy(force=True)
    return found


def same_kind(values: npt.NDArray[Any], like: Any) -> Any:
    """A numpy array as what `like` is: a numpy array, or a tensor on its device."""
    if is_numpy(like):
        return values
    import torch

    return torch.from_numpy(values).to(like.device)


def float64(values: Any) -> Any:
    """The same numbers in float64."""
    return values.astype(np.float64) if is_numpy(values) else values.double()


def same_type(values: Any, like: Any) -> Any:
    """The same numbers in the precision of `like`."""
    return values.astype(like.dtype, copy=False) if is_numpy(values) else values.to(like.dtype)


def int64(values: Any) -> Any:
    """The numbers without the places behind the point: rounded towards zero."""
    return values.astype(np.int64) if is_numpy(values) else values.long()


def dimension(params: Mapping[str, Tensor]) -> int:
    """d, the number of scalars."""
    return sum(math.prod(value.shape) for value in params.values())


def norm(params: Mapping[str, Tensor]) -> float:
    """L2 norm over all tensors, in float64 so that a norm of 1e30 does not overflow."""
    return length_of(flatten(params)) if params else 0.0


def length_of(values: Tensor) -> float:
    """L2 norm of a vector, in float64."""
    if is_numpy(values):
        # Not by BLAS, whose sums depend on the number of threads.
        with np.errstate(over="ignore"):
            return math.sqrt(np.sum(np.square(float64(values))))
    import torch

    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


def is_finite(params: Mapping[str, Tensor]) -> bool:
    """Return whether every scalar is finite."""
    if not params:
        return True
    values = flatten(params)
    if is_numpy(values):
        return bool(np.isfinite(values).all())
    import torch

    return bool(torch.isfinite(values).all())


def scaled(params: Mapping[str, Tensor], factor: float) -> Params:
    """Factor * params."""
    return {name: value * factor for name, value in params.items()}


def zeros_like(params: Mapping[str, Tensor]) -> Params:
    """Zeros of the same names and shapes."""
    return {name: zeros(value) for name, value in params.items()}


def zeros(like: Any) -> Any:
    """An array of zeros of the same kind, type and shape."""
    if is_numpy(like):
        return np.zeros_like(like)
    import torch

    return torch.zeros_like(like)


def difference(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> Params:
    """Left - right."""
    return {name: value - right[name] for name, value in left.items()}


def detached(params: Mapping[str, Tensor]) -> Params:
    """The same values without their history."""
    return {name: value.detach() for name, value in params.items()}


def flatten(params: Mapping[str, Tensor]) -> Tensor:
    """All scalars as one vector, in the order of the mapping."""
    parts: list[Any] = [value.reshape(-1) for value in params.values()]
    if is_numpy(parts[0]):
        joined: Any = np.concatenate(parts)
        return joined  # type: ignore[no-any-return]
    import torch

    return torch.cat(parts).detach()


def vector_of(params: Mapping[str, Tensor]) -> npt.NDArray[np.float64]:
    """All scalars as one vector on the CPU, in float64."""
    vector: npt.NDArray[np.float64] = host(flatten(params)).astype(np.float64, copy=False)
    return vector


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> Params:
    """Inverse of flatten for parameters of the form of `like`; the precision stays that of the vector."""
    found, start = {}, 0
    for name, value in like.items():
        end = start + math.prod(value.shape)
        found[name] = vector[start:end].reshape(tuple(value.shape))
        start = end
    if start != len(vector):
        raise ValueError(f"a vector of {len(vector)} for parameters of {start}")
    return found


def rounded_mean(total: Mapping[str, Tensor], added: npt.NDArray[np.float64] | None, denominator: float) -> Params:
    """(total + added) / denominator, computed in float64 and rounded to float32; of the kind of `total`.

    Args:
        total: A sum.
        added: One number for each coordinate; None: nothing.
        denominator: What the sum is divided by.
    """
    vector = float64(flatten(total))
    if added is not None:
        vector = vector + same_kind(added, vector)
    mean = vector / denominator
    return unflatten(mean.astype(np.float32) if is_numpy(mean) else mean.float(), total)


def digest(params: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, forms and every bit, in the order of the names."""
    total = hashlib.sha256()
    for name, value in sorted(params.items()):
        array = host(value)
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
        raise ValueError("there are no parameters to add up")
    return total


def arrays_of(params: Mapping[str, Tensor]) -> Arrays:
    """Parameters as they travel to worker processes."""
    return {name: value.detach().cpu().numpy() for name, value in params.items()}


def tensors_of(arrays: Arrays) -> Params:
    """Parameters that have travelled; a copy."""
    import torch

    return {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}


def placed(value: Tensor, device: torch.device) -> Tensor:
    """The same values on the device.

    A plain copy to a GPU lets the host wait until all that was asked of the GPU before is done, and then the GPU waits
    for the host. From pinned memory it takes its turn among the GPU's work instead.
    """
    if device.type == "cuda" and value.device.type == "cpu":
        return value.pin_memory().to(device, non_blocking=True)
    return value.to(device)
