"""Ranks that are killed at random instants, and started again as torchrun does; see rank_kills.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_hundred_kills_of_random_ranks(tmp_path):
    words = [
        sys.executable,
        "-m",
        "tests.faults.rank_kills",
        "--kills",
        "100",
        "--real",
        "1",
        "--folder",
        tmp_path / "kills",
    ]
    done = subprocess.run(words, capture_output=True, cwd=ROOT, text=True, timeout=14400)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "kills/result.json").read_text())
    print("\nkills of ranks:", json.dumps(result["happened"]), "identical:", result["identical"])
    assert result["identical"]
    assert result["tried"] >= 100
