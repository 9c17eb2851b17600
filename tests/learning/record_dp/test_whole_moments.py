"""Moments in whole numbers: exact sensitivities for every record, unbiased rounding, and a sum that is read rightly."""

import math

import numpy as np
import pytest
import torch

from dpfedmeta.accounting.events.integer_sum import WholeSum
from dpfedmeta.core.params import flatten
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.learning.record_dp.moment_blocks import unpacked
from dpfedmeta.learning.record_dp.second_moments import SecondMoments
from dpfedmeta.learning.record_dp.whole_moments import WholeMoments
from tests.learning.record_dp.test_second_moments import COUNT, EACH, SIZE, WAYS, drawn

MOMENTS = SecondMoments(directions=4, constant=0.3, pair_bound=0.6, pair_weight=1.5)
WHOLE = [WholeMoments(moments=MOMENTS, records=COUNT, scale=scale) for scale in (3.0, 40.0)]


def coins(number):
    return KeyedSource(number).generator(Purpose.ROUNDING, 0, 0)


def exact(whole, z, u):
    return np.concatenate([(z.T @ z).ravel(), (u.T @ u).ravel()])


@pytest.mark.parametrize("whole", WHOLE, ids=lambda whole: f"s = {whole.scale:g}")
def test_no_rounded_record_is_longer_than_is_stated(whole):
    """By the traces of both blocks: the sums of squared lengths, with every record at its longest."""
    record, pair = (block.limit(whole.scale) for block in MOMENTS.parts)
    for seed in range(60):
        message = whole.message(MOMENTS.rows(drawn(seed)), coins(seed))
        total, within = np.split(message, [(MOMENTS.directions + 1) ** 2])
        assert np.trace(total.reshape(5, 5)) <= COUNT * record
        assert np.trace(within.reshape(4, 4)) <= WAYS * (EACH // 2) * pair
        assert np.abs(message).max() <= whole.tallest


@pytest.mark.parametrize("whole", WHOLE, ids=lambda whole: f"s = {whole.scale:g}")
def test_one_record_moves_whole_numbers_by_no_more_than_its_relation_says(whole):
    """The roundings of all other records stay: they have coins of their own. In exact arithmetic, with the worst."""
    record, pair = (block.limit(whole.scale) for block in MOMENTS.parts)
    rng, found = np.random.default_rng(0), {"zero-out": [], "in-place": []}

    def longest(size, limit):
        vector = rng.normal(size=size)
        vector = np.rint(vector * math.sqrt(limit) / np.linalg.norm(vector)).astype(np.int64)
        while vector @ vector > limit:
            vector[np.abs(vector).argmax()] -= np.sign(vector[np.abs(vector).argmax()])
        return vector

    for _ in range(500):
        z, other = longest(5, record), longest(5, record)
        u, changed = longest(4, pair), longest(4, pair)
        gone = exact(whole, z[None], u[None])
        found["zero-out"].append(float(gone @ gone))
        apart = gone - exact(whole, other[None], changed[None])
        found["in-place"].append(float(apart @ apart))
    for relation, squares in found.items():
        due = whole.longest * whole.blocks.moved(relation)
        assert math.sqrt(max(squares)) <= due
        # Small whole numbers reach few lengths.
        assert math.sqrt(max(squares)) > (0.9 if whole.scale > 10 else 0.6) * due


def test_a_null_record_adds_nothing_nor_does_its_pair():
    records = drawn(3)
    records[:, 1:] = math.nan
    one = WHOLE[1].message(MOMENTS.rows(records), coins(0))
    total, within = np.split(one, [25])
    assert not within.any()
    assert np.linalg.matrix_rank(total.reshape(5, 5)) <= WAYS
    assert not WHOLE[1].message(MOMENTS.rows(records * math.nan), coins(0)).any()


def test_rounding_is_unbiased_up_to_its_variance_on_the_diagonal():
    """The mean over many roundings is the exact message, and at most 1/(4 s^2) a record more on the diagonal."""
    whole, records = WHOLE[1], drawn(4)
    grid = whole.grid(sum_of(whole), torch.zeros(1))
    lengthened = whole.longest / (whole.scale**2 * MOMENTS.blocks.unit)
    assert 1.0 < lengthened < 1.06
    mean = (
        lengthened
        * sum(whole.message(MOMENTS.rows(records), coins(seed)).astype(float) for seed in range(400))
        / 400
        * grid.steps
    )
    read = grid.read({"": torch.from_numpy(mean)})
    for name, value in MOMENTS.message(records).items():
        side = 5 if name == "moments.total" else 4
        apart = (unpacked(read[name].double(), side) - unpacked(value, side)) * COUNT * MOMENTS.blocks.unit
        off = apart - torch.diag(apart.diagonal())
        assert float(off.abs().max()) < 0.02
        assert float(apart.diagonal().min()) > -0.02
        assert float(apart.diagonal().max()) < COUNT / (4 * whole.scale**2) + 0.02


def sum_of(whole, steps=1):
    return WholeSum(
        bits=31, dimension=whole.dimension, parts=COUNT, units=steps * whole.longest, deviation=9.0, least=2, most=9,
        dropout=0.0, unsure=1, exact=True,
    )  # fmt: skip


@pytest.mark.parametrize("steps", [1, 3])
def test_what_is_read_has_noise_of_one_deviation_in_every_number(steps):
    """A diagonal number has one entry, another is the mean of two over sqrt(1/2): both have the deviation of one."""
    whole = WHOLE[1]
    grid, own = whole.grid(sum_of(whole, steps), torch.zeros(1)), torch.Generator().manual_seed(0)
    found = [
        flatten(grid.read({"": torch.randn(whole.dimension, generator=own, dtype=torch.float64)})) for _ in range(3000)
    ]
    deviations = torch.stack(found).double().std(0) / grid.width
    assert deviations.shape == (15 + 10,)
    torch.testing.assert_close(deviations, torch.ones_like(deviations), atol=0.06, rtol=0)
    assert grid.steps == steps
    assert grid.width == pytest.approx(1.0 / (steps * COUNT * whole.longest))


def test_numbers_beyond_half_come_back_as_negative_ones():
    grid = WHOLE[0].grid(sum_of(WHOLE[0]), torch.zeros(1))
    assert grid.centred(np.array([2**31 - 1, 2**30, 2**30 - 1, -1])).tolist() == [-1, -(2**30), 2**30 - 1, -1]


def test_sizes_are_those_of_the_tables():
    assert WHOLE[1].dimension == 25 + 16
    assert MOMENTS.directions < SIZE
    record, pair = (block.limit(40.0) for block in MOMENTS.parts)
    assert 1600 < record < 1.06 * 1600
    assert WHOLE[1].longest == pytest.approx(math.hypot(record, pair))
