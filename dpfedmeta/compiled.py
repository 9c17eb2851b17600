"""Loops that numba compiles for the processor at hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# Sums may be taken in any order, so that they use vector instructions; nan and infinities keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}


def compiled(kernel: Callable[..., Any]) -> Any:
    """Compiled on the first call, and kept on disk where a folder for it can be written."""
    try:
        return numba.njit(kernel, fastmath=_FAST, cache=True, nogil=True)
    except RuntimeError:  # nowhere to keep it
        return numba.njit(kernel, fastmath=_FAST, nogil=True)
