"""Compiled loops over one update: its length, and its clipped whole numbers added to the sum."""

import numpy as np

from dpfedmeta.core.jit import compiled


@compiled
def squared_length(values):
    """Sum of squares of [d] in float32 or float64, in float64."""
    total = 0.0
    for i in range(len(values)):
        value = np.float64(values[i])
        total += value * value
    return total


@compiled
def add_shortened(values, factor, per_unit, total):
    """Shorten an update, round it towards zero to whole numbers, and add these.

    Args:
        values: In and out: [d]; shortened in their own precision, as `clipping.clip` does.
        factor: At most 1.
        per_unit: One over the unit of the whole numbers, a power of two.
        total: In and out: [d] in int64.
    """
    for i in range(len(values)):
        values[i] = np.float64(values[i]) * factor
        total[i] += np.int64(np.float64(values[i]) * per_unit)
