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
def moments(images, first, last, shift, sums, squares):  # type: ignore[no-untyped-def]
    """Sums that mean and variance need, in one pass.

    Args:
        images: [n, height, width, channels].
        first: Number of the first image to look at.
        last: Of the one after the last.
        shift: [channels], near the mean, so that squares do not cancel.
        sums: In and out: [channels], of values - shift, in float64.
        squares: In and out: [channels], of their squares.
    """
    _, height, width, channels = images.shape
    row_sums = np.empty(channels, dtype=np.float32)
    row_squares = np.empty(channels, dtype=np.float32)
    for n in range(first, last):
        for i in range(height):
            row_sums[:] = 0.0
            row_squares[:] = 0.0
            for j in range(width):
                for c in range(channels):
                    value = images[n, i, j, c] - shift[c]
                    row_sums[c] += value
                    row_squares[c] += value * value
            for c in range(channels):
                sums[c] += row_sums[c]
                squares[c] += row_squares[c]


@compiled
def pool(images, first, last, pooled, corner):  # type: ignore[no-untyped-def]
    """Maximum over 2 x 2 windows.

    Args:
        images: [n, height, width, channels].
        first: As before.
        last: As before.
        pooled: Out: [n, height // 2, width // 2, channels], the maxima.
        corner: Out: of the same shape, 0 to 3: where in its window the maximum lies; the first of equals.
    """
    _, height, width, channels = images.shape
    for n in range(first, last):
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


@compiled
def pool_with_moments(images, pooled, corner, shift, sums, squares, counted):  # type: ignore[no-untyped-def]
    """Both, image by image, so that each is read from the cache the second time; the first `counted` images count."""
    for n in range(len(images)):
        pool(images, n, n + 1, pooled, corner)
        if n < counted:
            moments(images, n, n + 1, shift, sums, squares)


@compiled
def rescale(values, scale, shift, lowest, out):  # type: ignore[no-untyped-def]
    """Set out = max(values * scale + shift, lowest): normalisation, and ReLU where `lowest` is 0 and not -infinity.

    Args:
        values: [n, height, width, channels].
        scale: [channels].
        shift: [channels].
        lowest: A number; nan stays nan.
        out: Out: of the shape of `values`.
    """
    count, height, width, channels = values.shape
    for n in range(count):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    value = values[n, i, j, c] * scale[c] + shift[c]
                    out[n, i, j, c] = lowest if value <= lowest else value


@compiled
def rescale_backward(values, out, grads, scale, lowest, kept, sums, products):  # type: ignore[no-untyped-def]
    """The backward pass of `rescale`.

    Args:
        values: As before.
        out: As before.
        grads: Of the shape of `out`: of `out`.
        scale: As before.
        lowest: As before.
        kept: Out: of the same shape: scale * grads where `out` is above `lowest`, else 0.
        sums: Out: [channels], of those gradients before scaling, in float64.
        products: Out: [channels], of them times values.
    """
    count, height, width, channels = values.shape
    row_sums = np.empty(channels, dtype=np.float32)
    row_products = np.empty(channels, dtype=np.float32)
    nothing = np.float32(0.0)
    for n in range(count):
        for i in range(height):
            row_sums[:] = nothing
            row_products[:] = nothing
            for j in range(width):
                for c in range(channels):
                    grad = nothing if out[n, i, j, c] <= lowest else grads[n, i, j, c]
                    kept[n, i, j, c] = scale[c] * grad
                    row_sums[c] += grad
                    row_products[c] += grad * values[n, i, j, c]
            for c in range(channels):
                sums[c] += row_sums[c]
                products[c] += row_products[c]


@compiled
def add_moments(images, constant, slope, counted, out):  # type: ignore[no-untyped-def]
    """Add constant + slope * images for the first `counted` images: the share of mean and variance in a gradient.

    Args:
        images: [n, height, width, channels].
        constant: [channels].
        slope: [channels].
        counted: How many images count.
        out: In and out: of the shape of `images`.
    """
    _, height, width, channels = images.shape
    for n in range(counted):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    out[n, i, j, c] += constant[c] + slope[c] * images[n, i, j, c]


@compiled
def unpool_with_moments(images, grads, corner, constant, slope, counted, out):  # type: ignore[no-untyped-def]
    """The backward pass of `pool` and `moments`: gradients of maxima to where they lie, and what mean and variance add.

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


@compiled
def unpool_with_moments_backward(images, grads, corner, slope, counted, at_maxima, by_images, sums, products):  # type: ignore[no-untyped-def]
    """The backward pass of `unpool_with_moments`, for second derivatives.

    Args:
        images: As before.
        grads: Of the shape of `images`: of `out`.
        corner: As before.
        slope: As before.
        counted: As before.
        at_maxima: Out: [n, height // 2, width // 2, channels]: `grads` where the maxima lie.
        by_images: Out: of the shape of `images`: slope * grads for images that count, else 0.
        sums: Out: [channels], of `grads` over images that count, in float64.
        products: Out: [channels], of grads * images, likewise.
    """
    count, height, width, channels = images.shape
    row_sums = np.empty(channels, dtype=np.float32)
    row_products = np.empty(channels, dtype=np.float32)
    nothing = np.float32(0.0)
    for n in range(count):
        for i in range(height):
            if n < counted:
                row_sums[:] = nothing
                row_products[:] = nothing
                for j in range(width):
                    for c in range(channels):
                        grad = grads[n, i, j, c]
                        by_images[n, i, j, c] = slope[c] * grad
                        row_sums[c] += grad
                        row_products[c] += grad * images[n, i, j, c]
                for c in range(channels):
                    sums[c] += row_sums[c]
                    products[c] += row_products[c]
            else:
                by_images[n, i] = nothing
            if i % 2 == 1:
                for j in range(width // 2):
                    for c in range(channels):
                        at = corner[n, i // 2, j, c]
                        upper = grads[n, i - 1, 2 * j + 1, c] if at == 1 else grads[n, i - 1, 2 * j, c]
                        lower = grads[n, i, 2 * j + 1, c] if at == 3 else grads[n, i, 2 * j, c]
                        at_maxima[n, i // 2, j, c] = lower if at >= 2 else upper
