"""Work that is ended at any place goes on as it says, and publishes what uninterrupted work does; see ended.py.

A sample: every twentieth place, from the first on. DPFEDMETA_ENDED=3/20 begins with the fourth, so that twenty shards
take all; DPFEDMETA_ENDED=0/1 takes all at once (seven hours of one core).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.ended import ready
from tests.faults.ended_kinds import KINDS
from tests.faults.ended_wire import QUESTIONS
from tests.faults.endings import FAULTS, Fault, printed

ROOT = Path(__file__).parents[2]
FIRST, EVERY = map(int, os.environ.get("DPFEDMETA_ENDED", "0/20").split("/"))
# Of kinds that take no time; kills.py and tests/federation have the like for others.
SAMPLED = {
    "rotation": (("SIGKILL", 14), ("ENOSPC", 21)),
    "keys": (("EIO", 9),),
    "operator": (("SIGKILL", 20),),
    "loop": (("SIGKILL", 40), ("EIO", 66), ("clock", 10)),
}


@pytest.fixture(autouse=True)
def own_state(monkeypatch, tmp_path):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))


@pytest.mark.parametrize("name", SAMPLED)
def test_a_few_endings(tmp_path, name):
    made = ready(tmp_path, name)
    if name == "loop":
        made.warm_up()
    made.begin()
    for kind, place in SAMPLED[name]:
        assert place < made.places
        made.ended_at(Fault(kind=kind, place=place))
    assert not made.wrong


@pytest.mark.slow
def test_a_server_and_a_client_that_are_ended_at_a_question(tmp_path):
    made = ready(tmp_path, "federation")
    made.begin()
    for how, at in (("server-before", 8), ("client-after", 7)):
        made.asked_at(how, at, "dp-agrlr-micro")
    assert not made.wrong


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("error: x; stopped: make room, then go on with: dpfedmeta train --resume 'my runs/a b'",
         ["train", "--resume", "my runs/a b"]),
        ("error: r: exists already; choose another run.name, or resume it (--resume r)", ["train", "--resume", "r"]),
        ("error: interrupted; go on with: dpfedmeta analyse --resume r", ["analyse", "--resume", "r"]),
        ("error: r: no space; stopped: make room, then type the same command again", ["train", "--algo=x"]),
        ("", ["train", "--algo=x"]),
    ],
)  # fmt: skip
def test_what_is_typed_next_is_what_was_printed(text, due):
    assert printed(text, ["train", "--algo=x"]) == due


def test_a_difference_is_seen(tmp_path):
    """Else nothing that the harness says would mean anything."""
    made = ready(tmp_path, "keys")
    made.begin()
    made.whole["name"] = "another"
    made.ended_at(Fault(kind="SIGKILL", place=3))
    assert "differs in ['name']" in made.wrong[0]


def harness(folder, *words):
    shard = ["--first", str(FIRST), "--every", str(EVERY)]
    command = [sys.executable, "-m", "tests.faults.ended", *shard, "--folder", folder, *words]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, timeout=14400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print("\nended:", json.dumps(found))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", KINDS)
def test_every_place(tmp_path, name, fault):
    found = harness(tmp_path, "--kind", name, "--faults", fault)
    assert found["ended"] == {fault: len(range(FIRST % EVERY, found["places"], EVERY))}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["federation", "federation-secure"])
def test_every_question(tmp_path, name):
    assert {*harness(tmp_path, "--kind", name, "--questions")["ended"]} == {*QUESTIONS}
