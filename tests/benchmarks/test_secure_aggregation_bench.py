from dataclasses import replace

import pytest

from benchmarks import secure_aggregation as bench
from dpfedmeta.core.errors import InputError
from dpfedmeta.secure_aggregation import simulated_round as in_process

TINY = bench.Crowd(clients=6, dimension=40, processes=1)


def test_a_row_says_what_a_round_took(tmp_path):
    (row,) = bench.rows(TINY, print)
    assert {"clients", "degree", "threshold", "dimension", "bits", "seconds", "bytes_per_client"} <= row.keys()
    assert (row["clients"], row["degree"], row["threshold"], row["bits"]) == (6, 5, 2, 16)
    # Keys, shares of four neighbours both ways and 80 bytes of vector are the least; headers come on top.
    assert 247 + 2 * 4 * 86 + 80 < row["bytes_per_client"] < 2 * (5 * 196 + 2 * 5 * 86 + 80 + 9 * 119)
    bench.save_plot(tmp_path / "curve.png", [row, {**row, "degree": 4}])
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_another_sum_is_no_measurement(monkeypatch):
    def other(*words, **named):
        found = in_process.run_round(*words, **named)
        return replace(found, sum=replace(found.sum, total=found.sum.total + 1))

    monkeypatch.setattr(bench, "run_round", other)
    with pytest.raises(AssertionError, match="plain sum"):
        bench.rows(TINY, print)


def test_crowds_that_cannot_be():
    with pytest.raises(InputError, match="stay"):
        bench.rows(replace(TINY, dropout=0.95), print)
