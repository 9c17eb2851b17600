import json
import math
import os
import stat

import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run
from dpfedmeta.core.files.run_directory import (
    CONFIG,
    LEDGER,
    RunDirectory,
    append_lines,
    create,
    load_weights,
    save_weights,
    write_text,
)
from dpfedmeta.core.random.fresh_seeds import keep_secret
from dpfedmeta.core.random.random_sources import GENERATOR, KeyedSource, OperatingSystemSource
from dpfedmeta.training.results.run_archive import check_archive_place


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def run(tmp_path):
    return create(tmp_path / "runs", "a")


def test_a_new_run_has_its_folders(run, tmp_path):
    assert run.path == tmp_path / "runs" / "a"
    assert sorted(path.name for path in run.path.iterdir()) == ["checkpoint", "secret"]


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_secrets_are_for_the_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        run = create(tmp_path, "a")
        keep_secret(run, KeyedSource(123))
        append_lines(run.secret / "participations.jsonl", [{"round": 0}], mode=0o600)
    finally:
        os.umask(before)
    assert mode(run.secret) == 0o700
    assert {path.name: mode(path) for path in run.secret.iterdir()} == {
        "noise_seed.json": 0o600,
        "participations.jsonl": 0o600,
    }
    assert json.loads((run.secret / "noise_seed.json").read_text()) == {"seed": 123, "generator": GENERATOR}


def test_without_a_seed_there_is_no_secret_to_keep(run):
    keep_secret(run, OperatingSystemSource())
    assert list(run.secret.iterdir()) == []


def test_an_existing_name_is_refused_and_left_alone(run):
    write_text(run.path / "summary.json", "{}")
    with pytest.raises(InputError, match="exists already"):
        create(run.path.parent, "a")
    assert (run.path / "summary.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("fails", "words"),
    [(lambda runs: create(runs, "a"), r"exists already; .*\(--resume .*a\)"),
     (lambda runs: (runs / "none" / "x").write_text(""), "cannot be created")],
)  # fmt: skip
def test_what_cannot_be_made_leaves_nothing_of_its_own(tmp_path, monkeypatch, fails, words):
    """Another process of the same second is faster; or the disk is full."""
    monkeypatch.setattr(os, "getpid", iter(range(10, 99)).__next__)
    begun = []

    def fill(run):
        keep_secret(run, KeyedSource(123))
        if not begun:
            begun.append(run)
            fails(tmp_path)

    with pytest.raises(InputError, match=words):
        create(tmp_path, "a", fill)
    assert [path.name for path in tmp_path.iterdir()] == ["a"] * ("exists" in words)


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/tmp/x", ".hidden", "-x", "a b", "a\n", "ä", "a\0"])
def test_a_name_that_is_no_plain_name_is_refused(tmp_path, name):
    with pytest.raises(InputError, match=r"run\.name"):
        create(tmp_path / "runs", name)
    assert not (tmp_path / "runs").exists()


def test_a_parent_that_cannot_hold_it_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"run\.dir .*file: is a file"):
        create(tmp_path / "file", "a")
    for missing in ("file", "none"):
        with pytest.raises(InputError, match=rf"run\.dir .*runs: there is no folder .*{missing} to make it in"):
            create(tmp_path / missing / "runs", "a")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_json_comes_back_and_replaces_what_was_there(run):
    for value in (1, 2):
        run.write_json("x.json", {"epsilon": None, "value": value})
        assert run.read_json("x.json") == {"epsilon": None, "value": value}
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_what_json_cannot_hold_is_not_written(run, value):
    run.write_json("x.json", {"value": 1})
    with pytest.raises(ValueError, match="JSON"):
        run.write_json("x.json", {"value": value})
    with pytest.raises(ValueError, match="JSON"):
        append_lines(run.path / "rounds.jsonl", [{"value": value}])
    assert run.read_json("x.json") == {"value": 1}


def test_a_crash_while_writing_keeps_the_old_file(run, monkeypatch):
    path = run.path / "x.json"
    write_text(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"
    assert sorted(entry.name for entry in run.path.iterdir()) == ["checkpoint", "secret", "x.json"]


@pytest.mark.parametrize(
    "content", [b"", b'{"a": ', b"\xff\xfe\x00", b"[" * 200_000, "{}".encode("utf-16"), b"1" * 5000]
)
def test_damaged_json_is_bad_input(run, content):
    (run.path / "summary.json").write_bytes(content)
    with pytest.raises(InputError, match=r"summary\.json: not valid JSON"):
        run.read_json("summary.json")


def test_json_that_is_no_object_is_bad_input(run):
    (run.path / "summary.json").write_text("[1]")
    with pytest.raises(InputError, match="expected a JSON object, found list"):
        run.read_json("summary.json")


def test_a_folder_that_is_no_run_is_bad_input(tmp_path):
    for read in (lambda run: run.read_json("summary.json"), RunDirectory.rounds):
        with pytest.raises(InputError, match="is this the directory of a run"):
            read(RunDirectory(tmp_path / "absent"))


def test_lines_are_appended(run):
    append_lines(run.path / "rounds.jsonl", [{"round": 0}])
    append_lines(run.path / "rounds.jsonl", [{"round": 1}, {"round": 2, "clip": None}])
    append_lines(run.path / "rounds.jsonl", [])
    assert run.rounds() == [{"round": 0}, {"round": 1}, {"round": 2, "clip": None}]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b'{"round": 1', "line 2"),
        (b"5", "line 2"),
        (b"", "line 2"),
        (b"\xff\xfe", "line 2: not valid"),
        (b"[" * 200_000, "line 2: not valid"),
    ],
)
def test_a_damaged_line_is_named(run, line, reason):
    (run.path / "rounds.jsonl").write_bytes(b'{"round": 0}\n' + line + b"\n")
    with pytest.raises(InputError, match=reason) as caught:
        run.rounds()
    assert "rounds.jsonl" in str(caught.value)


def test_weights_come_back_bit_for_bit(run):
    params = {"body.w": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)).t(), "head.b": torch.zeros(2)}
    for factor in (1, 2):
        saved = {name: value * factor for name, value in params.items()}
        save_weights(run.weights, saved)
        loaded = load_weights(run.weights)
        assert set(loaded) == set(saved)
        assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    assert [path.name for path in run.weights.parent.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("content", [None, b"", b"not safetensors at all", b"\xff" * 64])
def test_weights_that_cannot_be_read_are_bad_input(run, content):
    if content is not None:
        run.weights.write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: no readable weights"):
        load_weights(run.weights)


def test_truncated_weights_are_bad_input(run):
    save_weights(run.weights, {"w": torch.zeros(100)})
    run.weights.write_bytes(run.weights.read_bytes()[:-8])
    with pytest.raises(InputError, match="no readable weights"):
        load_weights(run.weights)


def test_a_folder_of_runs_is_told_what_it_holds(tmp_path):
    for name in ("b", "a"):
        (tmp_path / name).mkdir()
        (tmp_path / name / CONFIG).write_text("algo: maml\n")
    with pytest.raises(InputError, match=r"but 2 run\(s\); name one of them: .*/a$"):
        check_is_run(tmp_path)
    with pytest.raises(InputError, match=r"it holds no config\.yaml$"):
        check_is_run(tmp_path / "none")


@pytest.mark.parametrize("place", ["a/x.zip", "./b/../a/x.zip", "link/x.zip", "a/checkpoint/x.zip"])
def test_an_archive_does_not_lie_in_its_own_run(run, place, monkeypatch):
    """By any way of writing the place, from within the folder or not."""
    (run.path / LEDGER).write_text("{}\n")
    (run.path.parent / "b").mkdir()
    (run.path.parent / "link").symlink_to(run.path)
    monkeypatch.chdir(run.path.parent)
    for way in (place, str(run.path.parent / place)):
        for own in ("a", run.path, "link"):
            with pytest.raises(InputError, match="is inside the run directory"):
                check_archive_place(type(run.path)(own), type(run.path)(way))
    for right in ("b/x.zip", "b/x"):
        check_archive_place(run.path, type(run.path)(right))
    for wrong, why in (
        ("b/x.tar", "expected a .zip"),
        ("c/x.zip", "in a folder that exists"),
        ("a", "exists already"),
        ("a/new", "is inside the run directory"),
    ):
        with pytest.raises(InputError, match=why):
            check_archive_place(run.path, type(run.path)(wrong))
    (run.path.parent / "b" / "x.zip").touch()
    with pytest.raises(InputError, match="exists already"):
        check_archive_place(run.path, type(run.path)("b/x.zip"))
