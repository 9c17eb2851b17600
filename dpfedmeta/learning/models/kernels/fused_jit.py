"""Compiled loops over channels-last arrays that read each value once; PyTorch takes a pass for every operation.

Everywhere: images and what has their shape are [n, height, width, channels] in float32, what belongs to the channels
of an image is [n, channels]. Sums over an image are of its rows' sums in float32, added up in float64.
"""

import numpy as np

from dpfedmeta.core.jit import compiled


@compiled
def moments_of(images, n, shift, sums, squares):
    """Sums of one image's values - shift, and of their squares.

    Args:
        images: All of them.
        n: Which.
        shift: Per image and channel, a value of that image's own, so that squares do not cancel.
        sums: Out: per image and channel.
        squares: Out: likewise.
    """
    _, height, width, channels = images.shape
    row_sums = np.empty(channels, dtype=np.float32)
    row_squares = np.empty(channels, dtype=np.float32)
    for i in range(height):
        row_sums[:] = 0.0
        row_squares[:] = 0.0
        for j in range(width):
            for c in range(channels):
                value = images[n, i, j, c] - shift[n, c]
                row_sums[c] += value
                row_squares[c] += value * value
        for c in range(channels):
            sums[n, c] += row_sums[c]
            squares[n, c] += row_squares[c]


@compiled
def pool_of(images, n, pooled, corner):
    """Maximum over 2 x 2 windows of one image.

    Args:
        images: All of them.
        n: Which.
        pooled: Out: [n, height // 2, width // 2, channels], the maxima.
        corner: Out: of the same shape, 0 to 3: where in its window the maximum lies; the first of equals, or nan.
    """
    _, height, width, channels = images.shape
    for i in range(height // 2):
        for j in range(width // 2):
            for c in range(channels):
                best, at = images[n, 2 * i, 2 * j, c], np.uint8(0)
                value = images[n, 2 * i, 2 * j + 1, c]
                at = np.uint8(1) if value > best or value != value else at
                best = value if value > best or value != value else best
                value = images[n, 2 * i + 1, 2 * j, c]
                at = np.uint8(2) if value > best or value != value else at
                best = value if value > best or value != value else best
                value = images[n, 2 * i + 1, 2 * j + 1, c]
                at = np.uint8(3) if value > best or value != value else at
                best = value if value > best or value != value else best
                pooled[n, i, j, c] = best
                corner[n, i, j, c] = at


@compiled
def moments(images, shift, sums, squares):
    """`moments_of` every image."""
    for n in range(len(images)):
        moments_of(images, n, shift, sums, squares)


@compiled
def pool_with_moments(images, pooled, corner, shift, sums, squares):
    """`pool_of` and `moments_of` every image, which the second of them reads from the cache."""
    for n in range(len(images)):
        pool_of(images, n, pooled, corner)
        moments_of(images, n, shift, sums, squares)


@compiled
def rescale(values, scale, shift, lowest, out):
    """Set out = max(values * scale + shift, lowest): normalisation, and ReLU where `lowest` is 0 and not -infinity.

    Args:
        values: As images.
        scale: Per image and channel.
        shift: Likewise.
        lowest: A number; nan stays nan.
        out: Out: as images.
    """
    count, height, width, channels = values.shape
    for n in range(count):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    value = values[n, i, j, c] * scale[n, c] + shift[n, c]
                    out[n, i, j, c] = lowest if value <= lowest else value


@compiled
def rescale_backward(values, out, grads, scale, lowest, kept, sums, products):
    """The backward pass of `rescale`.

    Args:
        values: As before.
        out: As before.
        grads: Of `out`.
        scale: As before.
        lowest: As before.
        kept: Out: scale * grads where `out` is above `lowest`, else 0.
        sums: Out: of those gradients before scaling, per image and channel.
        products: Out: of them times values, likewise.
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
                    kept[n, i, j, c] = scale[n, c] * grad
                    row_sums[c] += grad
                    row_products[c] += grad * values[n, i, j, c]
            for c in range(channels):
                sums[n, c] += row_sums[c]
                products[n, c] += row_products[c]


@compiled
def add_moments(images, constant, slope, out):
    """Add constant + slope * images: the share of mean and variance in a gradient.

    Args:
        images: As before.
        constant: Per image and channel.
        slope: Likewise.
        out: In and out: as images.
    """
    count, height, width, channels = images.shape
    for n in range(count):
        for i in range(height):
            for j in range(width):
                for c in range(channels):
                    out[n, i, j, c] += constant[n, c] + slope[n, c] * images[n, i, j, c]


@compiled
def unpool_with_moments(images, grads, corner, constant, slope, out):
    """Gradients of maxima to where they lie, and the share of mean and variance.

    Args:
        images: As before.
        grads: [n, height // 2, width // 2, channels], of the maxima.
        corner: As before.
        constant: As before.
        slope: As before.
        out: Out: as images.
    """
    count, height, width, channels = images.shape
    nothing = np.float32(0.0)
    for n in range(count):
        for i in range(height):
            # An odd row or column at the end is in no window.
            inside = width - width % 2 if i < height - height % 2 else 0
            for j in range(inside):
                place = 2 * (i % 2) + j % 2
                for c in range(channels):
                    grad = grads[n, i // 2, j // 2, c] if corner[n, i // 2, j // 2, c] == place else nothing
                    out[n, i, j, c] = constant[n, c] + slope[n, c] * images[n, i, j, c] + grad
            for j in range(inside, width):
                for c in range(channels):
                    out[n, i, j, c] = constant[n, c] + slope[n, c] * images[n, i, j, c]


@compiled
def take_of(images, n, corner, taken):
    """Read one image's values at the places of the maxima.

    Args:
        images: All images.
        n: Number of the image.
        corner: As before.
        taken: Out: [n, height // 2, width // 2, channels].
    """
    _, height, width, channels = taken.shape
    for i in range(height):
        for j in range(width):
            for c in range(channels):
                at = corner[n, i, j, c]
                upper = images[n, 2 * i, 2 * j + 1, c] if at == 1 else images[n, 2 * i, 2 * j, c]
                lower = images[n, 2 * i + 1, 2 * j + 1, c] if at == 3 else images[n, 2 * i + 1, 2 * j, c]
                taken[n, i, j, c] = lower if at >= 2 else upper


@compiled
def take_with_sums(images, others, corner, taken, sums, products):
    """Other values at the maxima of images, and what moments of both need.

    Args:
        images: As before.
        others: As images.
        corner: As before, or None: then every value is taken.
        taken: Out: `others` at the maxima.
        sums: Out: of others, per image and channel.
        products: Out: of others * images, likewise.
    """
    count, height, width, channels = images.shape
    row_sums = np.empty(channels, dtype=np.float32)
    row_products = np.empty(channels, dtype=np.float32)
    for n in range(count):
        if corner is None:
            taken[n] = others[n]
        else:
            take_of(others, n, corner, taken)
        for i in range(height):
            row_sums[:] = 0.0
            row_products[:] = 0.0
            for j in range(width):
                for c in range(channels):
                    row_sums[c] += others[n, i, j, c]
                    row_products[c] += others[n, i, j, c] * images[n, i, j, c]
            for c in range(channels):
                sums[n, c] += row_sums[c]
                products[n, c] += row_products[c]


@compiled
def rescale_second(given, lowest, constant, by_other, by_value, to_grads, kept, pairs):
    """The derivative of `rescale_backward`.

    Args:
        given: values, out and grads as there, and others: as values.
        lowest: As there.
        constant: Per channel.
        by_other: Per channel.
        by_value: Per channel.
        to_grads: Out: constant + by_other * others + by_value * values where `out` is above `lowest`, else 0.
        kept: Out: by_value * grads there, else 0.
        pairs: Out: sums of grads * others there, per image and channel.
    """
    values, out, grads, others = given
    count, height, width, channels = values.shape
    row_pairs = np.empty(channels, dtype=np.float32)
    nothing = np.float32(0.0)
    for n in range(count):
        for i in range(height):
            row_pairs[:] = nothing
            for j in range(width):
                for c in range(channels):
                    off = out[n, i, j, c] <= lowest
                    grad = nothing if off else grads[n, i, j, c]
                    other = others[n, i, j, c]
                    sloped = constant[c] + by_other[c] * other + by_value[c] * values[n, i, j, c]
                    to_grads[n, i, j, c] = nothing if off else sloped
                    kept[n, i, j, c] = by_value[c] * grad
                    row_pairs[c] += grad * other
            for c in range(channels):
                pairs[n, c] += row_pairs[c]
