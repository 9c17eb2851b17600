"""Our protocol beside Prio3: rows of small rounds, the bytes of a round that is too large to run, and wrong sums."""

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import one_message_sums as bench
from dpfedmeta.secure_aggregation import simulated_round

# Where npm installed @divviup/prio3.
PRIO = os.environ.get("DPFEDMETA_PRIO3")


@pytest.mark.parametrize(("malicious", "messages"), [(True, (6, 5)), (False, (4, 3))])
def test_a_row_of_our_protocol(malicious, messages):
    row = bench.own(12, 40, malicious=malicious)
    assert (row["messages_up"], row["messages_down"]) == messages
    assert row["bytes_up"] > 40 * 2 + 11 * 2 * 32
    assert row["degree"] == 11


def test_another_sum_is_no_measurement(monkeypatch):
    def other(*words, **named):
        found = simulated_round.run_round(*words, **named)
        return replace(found, sum=replace(found.sum, total=found.sum.total + 1))

    monkeypatch.setattr(bench, "run_round", other)
    with pytest.raises(AssertionError, match="plain sum"):
        bench.own(12, 40, malicious=False)


@pytest.mark.slow
def test_the_bytes_of_a_large_round_follow_from_small_ones():
    """A round that the fit has not seen."""
    found = bench.layout()
    assert found["largest_miss"] < 0.01
    agreement = bench._agreement(120, 32, 0.05, 0.2, malicious=True)
    expected = np.array([1.0, 120, agreement.degree]) @ np.array(found["factors"])
    sent = [max(sums.values()) for sums in bench._bytes(bench._round(agreement, 0))]
    assert sent == pytest.approx(expected.tolist(), rel=0.01)


@pytest.mark.parametrize("right", [True, False])
def test_a_row_of_prio3_is_of_right_sums(monkeypatch, tmp_path, right):
    turn = {"client": 0.5, "servers": [0.1, 0.2], "sent": [100, 10], "between": [4, 4], "right": right}
    said = "\n".join(json.dumps({**turn, "client": client}) for client in (9.0, 0.5, 0.7, 0.6))
    monkeypatch.setattr(subprocess, "run", lambda *words, **named: SimpleNamespace(stdout=said))
    if not right:
        with pytest.raises(AssertionError, match="another sum"):
            bench.prio(tmp_path, 32, 0, 3)
        return
    row = bench.prio(tmp_path, 32, 0, 3)
    assert (row["client_bytes"], row["bytes_between_servers"]) == (110, 8)
    assert (row["client_cpu"], row["servers_cpu"]) == (0.6, pytest.approx(0.3))


@pytest.mark.skipif(PRIO is None, reason="DPFEDMETA_PRIO3 names no folder in which npm installed @divviup/prio3@0.8.0")
@pytest.mark.parametrize(("length", "bits"), [(8, 0), (8, 1), (5, 16)])
def test_prio3_adds_up(length, bits):
    row = bench.prio(Path(PRIO), length, bits, 1)
    assert row["client_bytes"] > 16 * length * max(bits, 1)
