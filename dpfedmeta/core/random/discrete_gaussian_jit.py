"""The compiled loop of the discrete Gaussian: from words to values, by a table."""

from __future__ import annotations

import numpy as np

from dpfedmeta.core.jit import compiled


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
