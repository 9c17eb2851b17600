"""No sentence about privacy fits into the words of a run's files that no ledger proves, and no entry is one more."""

import json

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import PLAN, ROUNDS, SUMMARY
from dpfedmeta.training.verification.unproven_words import check_words
from dpfedmeta.training.verification.verify import audit
from tests.reporting.test_page import written_run
from tests.training.runs.test_snapshot import Writer

SAY = "(record, server) epsilon = 0.001"
FREE = {
    SUMMARY: [
        ("accuracy", "protocol"), ("times",), ("versions", "torch"), ("made_by", "commit"), ("made_by", "source"),
        ("made_by", "day"), ("made_by", "system"), ("made_by", "processor"), ("judged_on",), ("records",), ("promise",),
        ("made_by", "promise"), ("accuracy", "counted"), ("error", "protocol"),
    ],
    PLAN: [("promise",), ("cost", "promise"), ("clip_policy",), ("code", "own.py")],
    ROUNDS: [("clip_mode",), ("promise",), ("validation_accuracy", "protocol")],
}  # fmt: skip


@pytest.mark.parametrize(("name", "place"), [(name, place) for name, places in FREE.items() for place in places])
def test_no_epsilon_is_written_where_nobody_proves_it(name, place):
    content = SAY
    for key in reversed(place):
        content = {key: content}
    with pytest.raises(InputError, match=rf"there: {'.'.join(place)}: states .*epsilon = 0\.001"):
        check_words("there", name, content)


PROTOCOL = (
    "single model, inductive, 3 held-out test clients of 1,007; the others hold too little for an episode; the "
    "interval is over episodes, not over clients"
)
WRITTEN = {
    "accuracy": {"mean": 0.5, "protocol": PROTOCOL},
    "accuracy_untrained": None,
    "made_by": {
        "commit": "0" * 40 + " + changes", "source": "0" * 16, "day": "2026-11-29", "system": "Linux x86_64",
        "processor": "Intel(R) Xeon(R) Gold 6230R CPU @ 2.10GHz", "cores": 2,
    },
    "judged_on": "2 public clients in a b.csv",
    "versions": {"dp-accounting": "0.6.0", "torch": "2.13.0+cpu"},
    "seconds": 1.5,
    "times": None,
}  # fmt: skip


def test_what_runs_write_is_taken():
    check_words("there", SUMMARY, WRITTEN)
    row = {"round": 0, "clip_mode": "searching", "release": "aborted", "epsilons": {"a_b": None}}
    check_words("there", ROUNDS, row)
    code = {"PIL": "installed", "mine": "unseen", "torch": "2.13.0+cpu", "own.py": "0" * 64}
    for policy in ("__main__.Fixed", "mine.<locals>.Fixed: Fixed(rate=0.5, name='a b')"):
        check_words("there", PLAN, {"code": code, "clip_policy": policy, "cost": {"seconds": None}})


@pytest.fixture
def run(tmp_path):
    return written_run(tmp_path, algo="dp-agr", given={"server.rounds": "3", "server.noise_multiplier": "1.0"})


def test_an_entry_more_is_refused_in_each_file(run, tmp_path):
    rows = run.rounds()
    lines = [json.dumps(row) for row in [*rows[:2], rows[2] | {"clip_mode": SAY}]]
    run.rounds_file.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 3: clip_mode: states"):
        audit(run)
    run.rounds_file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in (run, Writer(tmp_path / "other").run):
        name = SUMMARY if file is run else PLAN
        content = file.read_json(name)
        file.write_json(name, content | {"promise": 0.001})
        with pytest.raises(InputError, match=rf"{name}: promise: states 0\.001, but no {name} has such an entry"):
            audit(file)
        file.write_json(name, content)
        audit(file)


def edited_first_line(path, old, new):
    text = path.read_text()
    assert old in text.split("\n")[0]
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('{"round"', '{"epsilons": {}, "round"', "line 1: not valid JSON .the key 'epsilons' stands there twice"),
        ('"clip":', '"clip" :', "line 1: is not written as a run writes it"),
        ('{"round"', '{"epsilon": 0.001, "round"', "line 1: epsilon: states 0.001, but no rounds.jsonl has such"),
        ('"seconds": 1.0', '"seconds": "a second; epsilon = 0.1"', "line 1: seconds: states"),
        ('{"round"', '{"release": "of nobody", "round"', "line 1: release: states|digest of nobody"),
    ],
)
def test_a_line_of_a_round_has_each_key_once_and_none_more(run, old, new, said):
    audit(run)
    edited_first_line(run.rounds_file, old, new)
    with pytest.raises(InputError, match=rf"rounds\.jsonl.*{said}"):
        audit(run)


def test_a_key_that_stands_in_a_file_twice_is_refused(run, tmp_path):
    for file, key in ((run, "guarantees"), (Writer(tmp_path / "other").run, "planned")):
        name = SUMMARY if file is run else PLAN
        path = file.path / name
        whole = path.read_text()
        path.write_text(whole.replace("{", f'{{\n  "{key}": [],', 1))
        with pytest.raises(InputError, match=rf"{name}: not valid JSON \(the key '{key}' stands there twice\)"):
            audit(file)
        path.write_text(whole.replace("{", "{ ", 1))
        with pytest.raises(InputError, match=rf"{name}: is not written as a run writes it: spaces"):
            audit(file)
