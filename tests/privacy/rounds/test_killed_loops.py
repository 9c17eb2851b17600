"""Loops that kill -9 ends at random instants: the ledger is whole, no round is charged twice, one release a round."""

import json
import os
import random
import signal
import time
import traceback

import pytest

from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from tests.privacy.rounds import killed_loop

ROUNDS = 6


def started(folder, out):
    """(Number of a process with the loop, a pipe that ends when it has begun): forked, since it holds all libraries."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            killed_loop.main(folder, out, lambda: os.close(writer))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writer)
    return child, reader


def killed_at_random(folder, kills, chance, longest=0.0):
    """Start the loop again after each kill until it ends; (instants of kills, what it was handed)."""
    out, instants, code = folder / "handed.jsonl", [], -signal.SIGKILL
    while code == -signal.SIGKILL:
        child, reader = started(folder / "mine", out)
        # From its first round on: before, nothing is written.
        assert os.read(reader, 1) == b""
        os.close(reader)
        begun = time.monotonic()
        if len(instants) < kills:
            instants.append(chance.uniform(0.0, longest))
            time.sleep(instants[-1])
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code == 0
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
