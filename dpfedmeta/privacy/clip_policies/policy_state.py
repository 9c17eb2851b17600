"""State of a clip policy as plain values and arrays, for the files from which a run goes on."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any

import numpy as np

from dpfedmeta.core.params import host

# Under this name stand the vectors that a clip policy remembers; the text has their names in their place.
_POLICY = "policy"


def packed(value: Any, arrays: MutableMapping[str, Any]) -> Any:
    """`value` with the name of an array, new in `arrays`, wherever it held a vector."""
    if isinstance(value, np.ndarray):
        name = f"{_POLICY}/{len(arrays):06d}"
        arrays[name] = value
        return {_POLICY: name}
    if isinstance(value, dict):
        return {key: packed(inner, arrays) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [packed(inner, arrays) for inner in value]
    return value


def unpacked(value: Any, arrays: MutableMapping[str, Any]) -> Any:
    """Undo `packed`: put the vectors back, and remove them from `arrays`."""
    if isinstance(value, dict):
        if set(value) == {_POLICY}:
            return host(arrays.pop(value[_POLICY]))
        return {key: unpacked(inner, arrays) for key, inner in value.items()}
    return [unpacked(inner, arrays) for inner in value] if isinstance(value, list) else value
