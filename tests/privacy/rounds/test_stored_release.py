"""Digests of sums: an attempt whose sum was another one, in anything, is used up."""

from dataclasses import replace

import numpy as np
import pytest

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.stored_release import SumDigests
from dpfedmeta.privacy.units import Bounded

DATA = np.arange(3, dtype=np.float32)
SUM = Bounded(value={"x": np.zeros(0, dtype=np.float32), "y": DATA}, sensitivity=2.0, noise_variance=0.5)
OTHERS = {
    "sensitivity": replace(SUM, sensitivity=2.5),
    "noise": replace(SUM, noise_variance=0.25),
    "a bit": replace(SUM, value={**SUM.value, "y": np.nextafter(DATA, np.float32(9))}),
    "a name": replace(SUM, value={"x": SUM.value["x"], "z": DATA}),
    "a form": replace(SUM, value={**SUM.value, "y": DATA.reshape(1, 3)}),
    "a type": replace(SUM, value={**SUM.value, "y": DATA.view(np.int32)}),
    "an array less": replace(SUM, value={"y": DATA}),
    # The same bytes one after the other, as one array under a longer name.
    "where arrays end": replace(SUM, value={"x float32 (0,)y": DATA}),
}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "secret").mkdir()
    return RunDirectory(tmp_path)


@pytest.mark.parametrize("other", OTHERS)
def test_another_sum_uses_an_attempt_up(run, other):
    sums = SumDigests(run)
    assert sums.keep(0, 1, SUM)
    assert sums.keep(0, 1, replace(SUM, value=dict(SUM.value)))
    assert not sums.keep(0, 1, OTHERS[other])
    # Also if the first one comes again, and where another process reads what was kept.
    assert not sums.keep(0, 1, SUM)
    assert not SumDigests(run).keep(0, 1, SUM)
    assert SumDigests(run).used_up(0) == 1


def test_each_round_and_attempt_has_a_sum_of_its_own(run):
    sums = SumDigests(run)
    places = [(round_, attempt) for round_ in range(2) for attempt in range(2)]
    for place, other in zip(places, OTHERS.values(), strict=False):
        assert sums.keep(*place, other)
    assert [sums.used_up(round_) for round_ in range(2)] == [0, 0]
    assert len({digest for place in places for digest in sums.of(*place)}) == 4
