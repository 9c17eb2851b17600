import itertools

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.core.random import noise_jit as normal_kernels
from dpfedmeta.core.random.noise_jit import EDGES, HEIGHTS, TAIL


def fill(words, size):
    values = np.full(size, np.nan)
    made, used = normal_kernels.fill_normal(np.asarray(words, dtype=np.uint64), values, EDGES, HEIGHTS)
    assert np.isfinite(values[:made]).all()
    assert np.isnan(values[made:]).all()
    return values[:made], used


def words_of(seed, count):
    return np.random.default_rng(seed).integers(2**64, size=count, dtype=np.uint64)


def word(layer, place, sign=0):
    """A word for this layer at this share of its width."""
    return int(place * 2**53) << 11 | sign << 8 | layer


def test_the_layers_have_equal_areas_and_cover_the_density_from_top_to_tail():
    strips = EDGES[1:-1] * np.diff(HEIGHTS[1:])
    base = TAIL * HEIGHTS[1] + stats.norm.sf(TAIL) * np.sqrt(2 * np.pi)
    assert strips == pytest.approx(np.full(255, base), rel=1e-13)
    assert EDGES[0] * HEIGHTS[1] == pytest.approx(base, rel=1e-14)
    assert (EDGES[-1], HEIGHTS[-1]) == (0.0, 1.0)
    assert (np.diff(EDGES) < 0).all()


def test_how_words_are_cut_into_pieces_changes_nothing():
    """A value at the end of a piece waits for its words; given up, values that need few would be favoured."""
    words, size = words_of(1, 6000), 5000
    whole, _ = fill(words, size)
    assert len(whole) == size
    cuts = np.random.default_rng(2)
    pieces, rest, given = [], words[:0], 0
    while sum(map(len, pieces)) < size:
        more = int(cuts.integers(1, 4))
        rest, given = np.concatenate([rest, words[given : given + more]]), given + more
        values, used = fill(rest, size)
        pieces.append(values)
        rest = rest[used:]
    assert np.array_equal(np.concatenate(pieces)[:size], whole)


def test_nothing_is_left_over_when_there_is_room_and_no_word_is_used_when_there_is_none():
    assert fill(words_of(3, 10), 0)[1] == 0
    assert fill([], 4)[1] == 0
    # One word inside each layer's sure part is one value.
    values, used = fill([word(layer, 0.01) for layer in range(255)], 300)
    assert (len(values), used) == (255, 255)
    assert values == pytest.approx(0.01 * EDGES[:255], rel=1e-9)


def test_each_of_the_53_bits_of_a_place_counts_and_the_two_spare_bits_do_not():
    first = word(50, 0.3)
    flipped = [fill([first ^ 1 << bit, 0], 1)[0][0] for bit in range(9, 63)]
    assert flipped[:2] == [fill([first], 1)[0][0]] * 2
    assert len(set(flipped)) == 53


def test_the_sign_is_a_bit_of_its_own():
    words = words_of(4, 3000)
    values, used = fill(words, 2000)
    mirrored, _ = fill(words ^ np.uint64(256), 2000)
    # Later words of one value may be flipped too: their bit 8 is not read.
    assert np.array_equal(values, -mirrored)
    assert used < 3000


def test_extreme_words_never_give_a_value_that_is_not_finite():
    extremes = [0, 1, 255, 256, 2**11, 2**53, 2**63, 2**64 - 1, 2**64 - 256, word(0, 1 - 2**-53), word(0, 0.99)]
    for words in itertools.product(extremes, repeat=4):
        values, used = fill(words, 4)
        assert used <= 4
        assert (np.abs(values) <= 12.3).all()


def test_the_tail_goes_far_beyond_what_one_uniform_would_reach():
    # Excess -log(u) / TAIL with u = 2^-40, kept since the second exponential is larger: 2 log(2) 53 > excess^2.
    (value,), used = fill([word(0, 1 - 2**-53), word(0, 2**-40) - 2**11, 0], 1)
    assert used == 3
    assert value == pytest.approx(TAIL + 40 * np.log(2) / TAIL, abs=1e-9)
    assert value > 11


def test_between_edge_and_density_a_place_counts_as_often_as_the_density_says():
    layer = 100
    value = (EDGES[layer] + EDGES[layer + 1]) / 2
    place = value / EDGES[layer]
    share = (np.exp(-(value**2) / 2) - HEIGHTS[layer]) / (HEIGHTS[layer + 1] - HEIGHTS[layer])
    assert 0.05 < share < 0.95
    for second, counts in ((share - 1e-6, True), (share + 1e-6, False)):
        values, used = fill([word(layer, place), word(0, second)], 1)
        assert used == 2
        assert len(values) == counts
