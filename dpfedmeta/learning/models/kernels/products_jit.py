"""A compiled loop for per-record gradients of a convolution's kernel: a sum over places, one for each record.

They are matrix products of their own for each record, too small for PyTorch's library to be quick.
"""

from dpfedmeta.core.jit import compiled

# The loop below names each of them.
AT_ONCE = 12


@compiled
def sums_over_places(rows, starts, pitch, factors, sums):
    """Set sums[n, d, k] to the sum over places of factors[n, place, d] * a piece of rows[n].

    AT_ONCE places are added together, so that a sum is read and written once for as many products.

    Args:
        rows: [n, values].
        starts: [places]: where each place's piece begins; that of k lies k * pitch further on.
        pitch: As above.
        factors: [n, places, outputs]; a multiple of AT_ONCE places, the last of them perhaps 0.
        sums: Out: [n, outputs, pieces, length].
    """
    count, outputs, pieces, length = sums.shape
    for n in range(count):
        sums[n] = 0.0
        own = rows[n]
        for k in range(pieces):
            for t in range(0, len(starts), AT_ONCE):
                at = starts[t : t + AT_ONCE] + k * pitch
                row0, row1, row2 = own[at[0] :][:length], own[at[1] :][:length], own[at[2] :][:length]
                row3, row4, row5 = own[at[3] :][:length], own[at[4] :][:length], own[at[5] :][:length]
                row6, row7, row8 = own[at[6] :][:length], own[at[7] :][:length], own[at[8] :][:length]
                row9, row10, row11 = own[at[9] :][:length], own[at[10] :][:length], own[at[11] :][:length]
                for d in range(outputs):
                    by0, by1, by2 = factors[n, t, d], factors[n, t + 1, d], factors[n, t + 2, d]
                    by3, by4, by5 = factors[n, t + 3, d], factors[n, t + 4, d], factors[n, t + 5, d]
                    by6, by7, by8 = factors[n, t + 6, d], factors[n, t + 7, d], factors[n, t + 8, d]
                    by9, by10, by11 = factors[n, t + 9, d], factors[n, t + 10, d], factors[n, t + 11, d]
                    total = sums[n, d, k]
                    for c in range(length):
                        low = by0 * row0[c] + by1 * row1[c] + by2 * row2[c] + by3 * row3[c]
                        middle = by4 * row4[c] + by5 * row5[c] + by6 * row6[c] + by7 * row7[c]
                        high = by8 * row8[c] + by9 * row9[c] + by10 * row10[c] + by11 * row11[c]
                        total[c] += low + middle + high
