"""Compiled loops over channels-last arrays that read each value once; PyTorch takes a pass for every operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

# Sums may be taken in any order, so that they use vector instructions; nan and infinities keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}


def compiled(kernel: Kernel) -> Kernel:
    """Compiled on the first call for this processor, and kept on disk where a folder for it can be written."""
    try:
        made = numba.njit(kernel, fastmath=_FAST, cache=True, nogil=True)
    except RuntimeError:  # nowhere to keep it
        made = numba.njit(kernel, fastmath=_FAST, nogil=True)
    return made  # type: ignore[no-any-return]


@compiled
def pool_with_moments(images, pooled, corner, shift, sums, squares, counted):  # type: ignore[no-untyped-def]
    """Maximum over 2 x 2 windows, and the sums that mean and variance need, in one pass.

    Args:
        images: [n, height, width, channels].
        pooled: Out: [n, height // 2, width // 2, channels], the maxima.
        corner: Out: of the same shape, 0 to 3: where in its window the maximum lies; the first of equals.
        shift: [channels], near the mean, so that squares do not cancel.
        sums: Out: [channels], of values - shift over the first `counted` images, in float64.
        squares: Out: [channels], of their squares, likewise.
        counted: How many images count.
    """
    count, height, width, channels = images.shape
    row_sums = np.empty(channels, dtype=np.float32)
    row_squares = np.empty(channels, dtype=np.float32)
    for n in range(count):
        for i in range(height // 2):
            for j in range(width // 2):
                for c in range(channels):
                    best, at = images[n, 2 * i, 2 * j, c], np.uint8(0)
                    value = images[n, 2 * i, 2 * j + 1, c]
                    at = np.uint8(1) if value > best else at
                    best = value if value > best else best
                    value = images[n, 2 * i + 1, 2 * j, c]
                    at = np.uint8(2) if value > best else at
                    best = value if value > best else best
                    value = images[n, 2 * i + 1, 2 * j + 1, c]
                    at = np.uint8(3) if value > best else at
                    best = value if value > best else best
                    pooled[n, i, j, c] = best
                    corner[n, i, j, c] = at
            if n < counted:
                for k in range(2 * i, height if 2 * i + 3 >= height else 2 * i + 2):
                    row_sums[:] = 0.0
                    row_squares[:] = 0.0
                    for j in range(width):
                        for c in range(channels):
                            value = images[n, k, j, c] - shift[c]
                            row_sums[c] += value
                            row_squares[c] += value * value
                    for c in range(channels):
                        sums[c] += row_sums[c]
                        squares[c] += row_squares[c]


@compiled
def unpool_with_moments(images, grads, corner, constant, slope, counted, out):  # type: ignore[no-untyped-def]
    """The backward pass of `pool_with_moments`: gradients of maxima to where they lie, and what mean and variance add.

    Args:
        images: As before.
        grads: [n, height // 2, width // 2, channels], of the maxima.
        corner: As before.
        constant: [channels]; every value of the first `counted` images gets constant + slope * value.
        slope: [channels].
        counted: As before.
        out: Out: of the shape of `images`.
    """
    count, height, width, channels = images.shape
    nothing = np.float32(0.0)
    for n in range(count):
        for i in range(height):
            if n < counted:
                for j in range(width):
                    for c in range(channels):
                        out[n, i, j, c] = constant[c] + slope[c] * images[n, i, j, c]
            else:
                out[n, i] = nothing
            # The rows of a window are still in the cache; all in one expression per value would not be vectorised.
            if i % 2 == 1:
                for j in range(width // 2):
                    for c in range(channels):
                        grad, at = grads[n, i // 2, j, c], corner[n, i // 2, j, c]
                        out[n, i - 1, 2 * j, c] += grad if at == 0 else nothing
                        out[n, i - 1, 2 * j + 1, c] += grad if at == 1 else nothing
                        out[n, i, 2 * j, c] += grad if at == 2 else nothing
                        out[n, i, 2 * j + 1, c] += grad if at == 3 else nothing
