"""Training that is killed at random instants ends as if nobody had touched it; see kills.py."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kills import trial

ROOT = Path(__file__).parents[2]


def harass(kills, folder, seconds):
    words = [sys.executable, "-m", "tests.faults.kills", "--kills", str(kills), "--folder", folder]
    done = subprocess.run(words, capture_output=True, cwd=ROOT, text=True, timeout=seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((folder / "result.json").read_text())


def test_a_few_kills(tmp_path, monkeypatch):
    # This process holds the libraries already; many kills have one of their own.
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    result = trial(2, 0, tmp_path)
    assert result["identical"]
    assert result["tried"] == 2


@pytest.mark.slow
def test_two_hundred_kills(tmp_path):
    result = harass(200, tmp_path / "kills", 7200)
    print("\nkills:", json.dumps(result["happened"]), "identical:", result["identical"])
    assert result["identical"]
    assert result["tried"] >= 200
