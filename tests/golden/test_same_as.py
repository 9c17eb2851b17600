"""A commit is compared with another bit for bit, and the smallest difference is said."""

import json
import math
import shutil
from pathlib import Path

import golden_runs
import pytest
import same_as

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("same")
    golden_runs.golden_run("maml", folder)
    return folder / "maml"


def rewritten(run, file, change, line=-1):
    lines = (run / file).read_text().splitlines()
    found = json.loads(lines[line])
    change(found)
    lines[line] = json.dumps(found)
    (run / file).write_text("\n".join(lines) + "\n")


def one_bit(run):
    """The last bit of the last weight; a safetensors file ends with it."""
    path = run / "checkpoint" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-4] ^= 1
    path.write_bytes(content)


def next_float(row, name):
    row[name] = math.nextafter(row[name], math.inf)


def of_summary(run):
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    summary["guarantees"][0]["delta"] *= 1.0000001
    path.write_text(json.dumps(summary))


PLANTED = {
    ".weights.": one_bit,
    ".rounds[3].aggregate_norm": lambda run: rewritten(
        run, "rounds.jsonl", lambda row: next_float(row, "aggregate_norm")
    ),
    ".ledger[4].round": lambda run: rewritten(run, "ledger.jsonl", lambda line: line.update(round=9), line=4),
    ".ledger[5].closed.rounds": lambda run: rewritten(
        run, "ledger.jsonl", lambda line: line["closed"].update(rounds=3)
    ),
    ".cohorts[3].clients": lambda run: rewritten(
        run, "secret/participations.jsonl", lambda line: line["clients"].pop()
    ),
    ".guarantees[0].delta": of_summary,
}


@pytest.mark.parametrize("where", PLANTED)
def test_a_planted_difference_is_said(where, run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    base = same_as.facts_of(run)
    assert [*same_as.differences(base, same_as.facts_of(tmp_path / "run"))] == []
    PLANTED[where](tmp_path / "run")
    (found,) = same_as.differences(base, same_as.facts_of(tmp_path / "run"))
    assert found.startswith(where)


def test_what_is_gone_or_new_or_of_another_kind_is_said():
    base, now = {"a": 1, "b": [1.0], "c": float("nan")}, {"b": [1], "c": float("nan"), "d": None}
    assert [*same_as.differences(base, now)] == [".a: is gone", ".b[0]: 1.0 became 1", ".d: is new"]
    assert [*same_as.differences({"a": [1]}, {"a": [1, 2]})] == [".a: [1] became [1, 2]"]


def test_a_run_that_fails_on_both_sides_is_not_the_same(monkeypatch, capsys, tmp_path):
    def of_tree(tree, folder, names=()):
        yield from ([{"name": name, "failed": "InputError: no"} for name in names] if names else [["one"]])

    monkeypatch.setattr(same_as, "of_tree", of_tree)
    assert same_as.compare(ROOT, ROOT, tmp_path) == 1
    assert "here: InputError: no" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="no run of both is called other"):
        same_as.compare(ROOT, ROOT, tmp_path, ["other"])


def test_runs_of_one_side_alone_are_named(monkeypatch, capsys, tmp_path):
    def of_tree(tree, folder, names=()):
        one = "old" if tree.name == "base" else "new"
        yield from ([{"name": name, "facts": {}} for name in names] if names else [["both", one]])

    monkeypatch.setattr(same_as, "of_tree", of_tree)
    assert same_as.compare(Path("base"), ROOT, tmp_path) == 0
    said = capsys.readouterr().out
    assert "not compared, only in the base: old\nnot compared, only here: new\nboth: the same\n" in said


def test_no_commit_of_that_name_is_said(tmp_path):
    with pytest.raises(SystemExit, match=r"error: nowhere: .*; type make same-as BASE=COMMIT"):
        same_as.exported("nowhere", tmp_path)


@pytest.mark.slow
def test_a_changed_source_is_seen_and_an_unchanged_one_is_not(tmp_path, capsys):
    base = tmp_path / "base"
    for name in ("dpfedmeta", "tests", "tasks", "configs"):
        shutil.copytree(ROOT / name, base / name, symlinks=True)
    assert same_as.compare(base, ROOT, tmp_path, ["maml"]) == 0
    adam = base / "dpfedmeta" / "learning" / "server_optimizers" / "adam_rule.py"
    adam.write_text(adam.read_text().replace("_FLOOR = 1e-8", "_FLOOR = 1e-7"))
    assert same_as.compare(base, ROOT, tmp_path, ["maml"]) == 1
    assert ".weights." in capsys.readouterr().out
