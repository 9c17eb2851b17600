"""Compiled loops over per-record gradients: each is read twice and never copied."""

import numpy as np

from dpfedmeta.core.jit import compiled


@compiled
def add_squared_lengths(rows, lengths):
    """Add each row's sum of squares, in float64.

    Args:
        rows: [records, d] in float32.
        lengths: In and out: [records] in float64.
    """
    for n in range(len(rows)):
        total = 0.0
        for i in range(rows.shape[1]):
            value = np.float64(rows[n, i])
            total += value * value
        lengths[n] += total


@compiled
def add_weighted_rows(rows, weights, total):
    """Add weight * row of every row whose weight is not 0: the others may hold nan.

    Args:
        rows: [records, d] in float32.
        weights: [records] in float64.
        total: In and out: [d] in float64.
    """
    for n in range(len(rows)):
        weight = weights[n]
        if weight != 0.0:
            for i in range(rows.shape[1]):
                total[i] += weight * rows[n, i]
