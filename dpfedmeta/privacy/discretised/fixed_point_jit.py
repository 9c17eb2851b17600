"""Compiled loops over whole-number messages: rotation, rounding and sums."""

import numpy as np

from dpfedmeta.core.jit import compiled


@compiled
def hadamard(values):
    """Multiply by the Walsh-Hadamard matrix, without its factor 1/sqrt(d).

    Args:
        values: In and out: [d] in float64, d a power of two.
    """
    half = 1
    while half < len(values):
        for start in range(0, len(values), 2 * half):
            for i in range(start, start + half):
                left, right = values[i], values[i + half]
                values[i] = left + right
                values[i + half] = left - right
        half *= 2


@compiled
def round_at_random(values, words, rounded):
    """Each value up with the probability of its place between two whole numbers, else down.

    Args:
        values: [d] in float64.
        words: [d] in uint32, uniform.
        rounded: Out: [d] in int64.

    Returns:
        The squared length of what came out; inf where it is too long to say.
    """
    total = 0.0
    for i in range(len(values)):
        lower = np.floor(values[i])
        up = np.float64(words[i]) < (values[i] - lower) * 4294967296.0
        whole = lower + 1.0 if up else lower
        total += whole * whole
        rounded[i] = np.int64(whole)
    return total


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
