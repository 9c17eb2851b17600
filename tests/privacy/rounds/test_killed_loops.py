"""Loops that kill -9 ends at random instants: the ledger is whole, no round is charged twice, one release a round."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds

PROGRAM, ROUNDS = Path(__file__).parent / "killed_loop.py", 6


def killed_at_random(folder, kills, chance, longest=0.0):
    """Start the loop again after each kill until it ends; (instants of kills, what it was handed)."""
    run, out, instants = folder / "mine", folder / "handed.jsonl", []
    words = [sys.executable, str(PROGRAM), str(run), str(out)]
    while True:
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as child:
            # From its first line on: before, nothing is written.
            assert child.stdout.readline() == "begun\n"
            begun = time.monotonic()
            if len(instants) < kills:
                instants.append(chance.uniform(0.0, longest))
                time.sleep(instants[-1])
                child.kill()
            child.wait()
        if child.returncode != -signal.SIGKILL:
            assert child.returncode == 0
            break
    return time.monotonic() - begun, len(instants), [json.loads(line) for line in out.read_text().splitlines()]


def check_lives(folder, handed):
    content = read_content(folder / "mine/ledger.jsonl")
    assert [(charge.round, charge.attempt) for charge in content.charges] == [(number, 0) for number in range(ROUNDS)]
    releases = {}
    for line in handed:
        releases.setdefault(line["round"], set()).add(line["release"])
    assert sorted(releases) == list(range(ROUNDS))
    assert {len(found) for found in releases.values()} == {1}
    verify_rounds(RunDirectory(folder / "mine"))


def many(tmp_path, monkeypatch, kills):
    chance, done, lives, longest = random.Random(48), 0, 0, 0.0
    while done < kills:
        folder = tmp_path / str(lives)
        folder.mkdir()
        monkeypatch.setenv("DPFEDMETA_STATE", str(folder / "state"))
        # The first loop is left alone: instants are spread over as long as it takes.
        taken, killed, handed = killed_at_random(folder, min(10, kills - done) if lives else 0, chance, longest)
        check_lives(folder, handed)
        done, lives, longest = done + killed, lives + 1, longest or taken


def test_a_few_kills(tmp_path, monkeypatch):
    many(tmp_path, monkeypatch, 2)


@pytest.mark.slow
def test_a_hundred_kills_at_random_instants(tmp_path, monkeypatch):
    many(tmp_path, monkeypatch, 100)
