"""Compiled loops for per-record gradients of a convolution's kernel: a sum over places, one for each record.

They are matrix products of their own for each record, too small for PyTorch's library to be quick. Everything is in
float32, arrays lie channels last.
"""

from __future__ import annotations

from dpfedmeta.compiled import compiled


@compiled
def window_products(around, grads, products):
    """Each image's gradient of a convolution's kernel, for few input channels.

    Args:
        around: Padded inputs, as images.
        grads: Of the outputs: [n, height - size + 1, width - size + 1, outputs].
        products: In and out: [n, size, size, channels, outputs]; all in float32.
    """
    count, height, width, outputs = grads.shape
    size, channels = products.shape[1], products.shape[3]
    for n in range(count):
        for i in range(height):
            for j in range(width):
                for p in range(size):
                    for q in range(size):
                        for c in range(channels):
                            value = around[n, i + p, j + q, c]
                            for d in range(outputs):
                                products[n, p, q, c, d] += value * grads[n, i, j, d]


@compiled
def window_row_products(around, starts, pitch, grads, products):
    """Each image's gradient of a convolution's kernel, for many input channels.

    A row of a window is one piece of memory, all channels of it. Eight places are added at once, so that a sum is read
    and written once for eight products.

    Args:
        around: Padded inputs [n, height * width * channels].
        starts: [places]: where in them each output's window begins.
        pitch: From one row of a window to the next.
        grads: Of the outputs: [n, places, outputs].
        products: In and out: [n, outputs, size, length], where length = size * channels.
    """
    count, outputs, size, length = products.shape
    whole = len(starts) - len(starts) % 8
    for n in range(count):
        for k in range(size):
            at = starts + k * pitch
            for t in range(0, whole, 8):
                row0, row1 = around[n, at[t] : at[t] + length], around[n, at[t + 1] : at[t + 1] + length]
                row2, row3 = around[n, at[t + 2] : at[t + 2] + length], around[n, at[t + 3] : at[t + 3] + length]
                row4, row5 = around[n, at[t + 4] : at[t + 4] + length], around[n, at[t + 5] : at[t + 5] + length]
                row6, row7 = around[n, at[t + 6] : at[t + 6] + length], around[n, at[t + 7] : at[t + 7] + length]
                for d in range(outputs):
                    grad0, grad1, grad2, grad3 = (
                        grads[n, t, d],
                        grads[n, t + 1, d],
                        grads[n, t + 2, d],
                        grads[n, t + 3, d],
                    )
                    grad4, grad5, grad6, grad7 = (
                        grads[n, t + 4, d],
                        grads[n, t + 5, d],
                        grads[n, t + 6, d],
                        grads[n, t + 7, d],
                    )
                    sums = products[n, d, k]
                    for c in range(length):
                        low = grad0 * row0[c] + grad1 * row1[c] + grad2 * row2[c] + grad3 * row3[c]
                        high = grad4 * row4[c] + grad5 * row5[c] + grad6 * row6[c] + grad7 * row7[c]
                        sums[c] += low + high
            for t in range(whole, len(starts)):
                row = around[n, at[t] : at[t] + length]
                for d in range(outputs):
                    sums = products[n, d, k]
                    for c in range(length):
                        sums[c] += grads[n, t, d] * row[c]
