"""Work that is ended at any place goes on as it says, and publishes what uninterrupted work does; see ended.py.

Slow: every place that differs from others. DPFEDMETA_ENDED=0/1 takes all places by all faults, whatever they are (seven
hours of one core), and DPFEDMETA_ENDED=3/20 every twentieth from the fourth on, so that twenty shards take all.
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
from tests.faults.endings import FAULTS, GROWS, Fault, Place, chosen, distinct, printed

ROOT = Path(__file__).parents[2]
FIRST, EVERY = map(int, os.environ.get("DPFEDMETA_ENDED", "0/0").split("/"))
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
        assert place < len(made.places)
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


LINES = (
    *("open r/a-1.json 01", "write r/a-1.json 02", "os.rename r/a-1.json 03"),
    *(f"write r/rows.jsonl 1{number % 2}" for number in range(12)),
    *("open r/a-2.json 01", "write r/a-2.json 02", "open r/b.json 01", "os.remove r/a-2.json 04"),
)


def places(*lines):
    return [Place.read(f"{number} {line}") for number, line in enumerate(lines)]


def test_places_that_differ_are_the_first_of_their_class_the_last_and_one_between():
    found = distinct(places(*LINES))
    assert [place.number for place, _ in found] == [0, 1, 2, 3, 4, 9, 10, 13, 14, 15, 16, 17, 18]
    assert [place.number for place, first in found if first] == [0, 1, 2, 3, 4, 17, 18]


def test_the_first_of_places_that_differ_is_ended_by_each_sort_of_fault_and_later_ones_by_one():
    due = [(fault.place, fault.kind) for fault in chosen(places(*LINES))]
    for place, first in distinct(places(*LINES)):
        kinds = {kind for number, kind in due if number == place.number} - {"clock"}
        assert len(kinds) == (3 if first else 1)
        if first:
            assert {"SIGKILL"} < kinds
            assert kinds & {"SIGINT", "SIGTERM"}
            assert kinds & ({"EIO", "ENOSPC"} if place.event in GROWS else {"EIO"})
    assert {kind for _, kind in due} == {*FAULTS} - {"group-SIGINT", "group-SIGTERM"}
    assert [place for place, kind in due if kind == "clock"] == [0]
    assert {fault.kind for fault in chosen(places(*LINES), children=True)} == {*FAULTS}


def test_a_place_that_another_kind_has_is_ended_once_by_all_sorts_in_turn():
    given = places(*(f"write r/{name}.json 01" for name in "ghijklmnopqrstuvw"), "open r/own.json 02")
    due = [fault for fault in chosen(given, given[:-1]) if fault.kind != "clock"]
    assert [fault.place for fault in due] == [*range(17), 17, 17, 17]
    assert {fault.kind for fault in due[:17]} == {"SIGKILL", "ENOSPC", "EIO", "SIGINT", "SIGTERM"}
    shared = [fault for fault in chosen(given, given, share=3) if fault.kind != "clock"]
    assert [fault.place for fault in shared] == [*range(2, 18, 3)]


def harness(folder, *words):
    shard = ["--first", str(FIRST), "--every", str(EVERY)]
    command = [sys.executable, "-m", "tests.faults.ended", *shard, "--folder", folder, *words]
    done = subprocess.run(command, capture_output=True, cwd=ROOT, text=True, timeout=14400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print("\nended:", json.dumps(found))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_place(tmp_path, name):
    found = harness(tmp_path, "--kind", name)
    if EVERY:
        counts = [len(range((FIRST + number) % EVERY, found["places"], EVERY)) for number in range(len(FAULTS))]
        assert found["ended"] == {fault: count for fault, count in zip(FAULTS, counts, strict=True) if count}
    else:
        assert {*found["ended"]} == {fault for fault in FAULTS if KINDS[name].children or "group" not in fault}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["federation", "federation-secure"])
def test_every_question(tmp_path, name):
    assert {*harness(tmp_path, "--kind", name, "--questions")["ended"]} == {*QUESTIONS}
