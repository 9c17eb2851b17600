"""Compiled loops from uniform words to normal and discrete normal values."""

import math

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.jit import compiled

_LAYERS = 256
# The start of the tail at which 256 layers of equal area meet the density's top exactly.
TAIL = 3.6541528853610088
_UNIT = 2.0**-53


def _edges() -> npt.NDArray[np.float64]:
    """Edges of the layers, the base first: its area, tail included, over its height. The last one is 0."""
    height = math.exp(-0.5 * TAIL**2)
    area = TAIL * height + math.sqrt(0.5 * math.pi) * math.erfc(TAIL / math.sqrt(2.0))
    edges = [area / height, TAIL]
    for _ in range(_LAYERS - 2):
        height += area / edges[-1]
        edges.append(math.sqrt(-2.0 * math.log(height)))
    return np.array([*edges, 0.0])


EDGES = _edges()
HEIGHTS = np.exp(-0.5 * EDGES**2)


@compiled
def fill_normal(words, values, edges, heights):
    """Turn words into standard normal values, in order, until either is used up.

    A value that lacks words is not given up, which would favour those that need few: it begins again at its first word
    when there are more.

    Args:
        words: uint64.
        values: Out: float64.
        edges: EDGES.
        heights: HEIGHTS, the density without its constant factor.

    Returns:
        (values made, words used).
    """
    made, used = 0, 0
    while made < len(values) and used < len(words):
        word = words[used]
        layer = np.int64(word & np.uint64(255))
        value = np.float64(word >> np.uint64(11)) * _UNIT * edges[layer]
        spent, kept = 1, True
        if value >= edges[layer + 1]:
            value, spent, kept = _at_the_edge(words[used:], layer, value, edges, heights)
            if spent == 0:
                break
        if kept:
            values[made] = -value if word & np.uint64(256) else value
            made += 1
        used += spent
    return made, used


@compiled
def _at_the_edge(words, layer, value, edges, heights):
    """Decide a value in the part of a layer that the density covers only partly.

    Returns:
        (value, words used with the first or 0 where there are too few, whether the value counts).
    """
    if layer > 0:
        if len(words) < 2:
            return value, 0, False
        share = np.float64(words[1] >> np.uint64(11)) * _UNIT
        height = heights[layer] + share * (heights[layer + 1] - heights[layer])
        return value, 2, height < np.exp(-0.5 * value * value)
    # The tail beyond the base: exponential, kept in the ratio of the two densities. Logarithms of (0, 1].
    for first in range(1, len(words) - 1, 2):
        beyond = -np.log(np.float64((words[first] >> np.uint64(11)) + np.uint64(1)) * _UNIT) / TAIL
        if -2.0 * np.log(np.float64((words[first + 1] >> np.uint64(11)) + np.uint64(1)) * _UNIT) > beyond * beyond:
            return TAIL + beyond, first + 2, True
    return value, 0, False


@compiled
def look_up(words, values, thresholds, guide, shift):
    """Discrete Gaussian values from uniform words, by the table of one variance.

    The lowest bit of a word is the sign, the others say where between 0 and 1 a number u lies. The value is how many
    thresholds lie below u. A word that equals a threshold does not say it.

    Args:
        words: [n] in uint64.
        values: Out: [n] in int64; the place of an undecided word in the table.
        thresholds: Ascending, uint64; the last one is larger than no word.
        guide: How many thresholds lie below every number whose first bits are these.
        shift: By which a number leaves its first bits.

    Returns:
        How many words do not decide; their places, in order, are in the second answer.
    """
    undecided = np.empty(8, dtype=np.int64)
    found = 0
    for i in range(len(words)):
        place = words[i] >> np.uint64(1)
        k = guide[np.int64(place >> np.uint64(shift))]
        while thresholds[k] < place:
            k += 1
        if thresholds[k] == place:
            if found == len(undecided):
                longer = np.empty(2 * found, dtype=np.int64)
                longer[:found] = undecided
                undecided = longer
            undecided[found] = i
            found += 1
        values[i] = -k if words[i] & np.uint64(1) else k
    return found, undecided
