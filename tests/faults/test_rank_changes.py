"""Runs that go on with other ranks, after a full disk, and without their report; see rank_changes.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks_after_a_full_disk_and_without_its_report(tmp_path):
    words = [sys.executable, "-m", "tests.faults.rank_changes", "--folder", tmp_path / "changes"]
    done = subprocess.run(words, capture_output=True, cwd=ROOT, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout)
    print("\nchanges of ranks:", done.stderr)
    assert len(found) == 7
    for name, case in found.items():
        assert case["identical"], name
        assert case["reported"], name
        assert not any(case["after"].values()), name
    (said,) = found["full-disk"]["said"]
    assert "make room" in said
    assert set(found["full-disk"]["before"].values()) == {1}
