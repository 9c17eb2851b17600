import os
import stat

import pytest
import torch

from dpfedmeta.errors import InputError
from dpfedmeta.tracking.run_directory import (
    RunDirectory,
    append_lines,
    create,
    load_weights,
    save_weights,
    write_text,
)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_run_has_a_closed_room_for_secrets(tmp_path):
    run = create(tmp_path / "runs", "first")
    assert mode(run.secret) == 0o700
    write_text(run.secret / "seed", "1", mode=0o600)
    append_lines(run.secret / "lines", [{"a": 1}], mode=0o600)
    assert {mode(file) for file in run.secret.iterdir()} == {0o600}


def test_an_existing_name_and_names_that_leave_the_folder_are_refused(tmp_path):
    create(tmp_path, "a")
    with pytest.raises(InputError, match="exists already"):
        create(tmp_path, "a")
    for name in ("../b", "", ".hidden", "a/b", "a b"):
        with pytest.raises(InputError, match=r"run\.name"):
            create(tmp_path, name)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, monkeypatch):
    path = tmp_path / "f"
    write_text(path, "old")

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert path.read_text() == "old"


def test_weights_come_back_bit_for_bit_and_damage_is_said(tmp_path):
    weights = {"a.b": torch.randn(3, 4), "c": torch.zeros(2)}
    save_weights(tmp_path / "w.safetensors", weights)
    again = load_weights(tmp_path / "w.safetensors")
    assert all(torch.equal(weights[n], again[n]) for n in weights)
    (tmp_path / "w.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="no readable weights"):
        load_weights(tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="no readable weights"):
        load_weights(tmp_path / "missing")


def test_missing_and_damaged_files_name_themselves(tmp_path):
    run = RunDirectory(tmp_path)
    for read in (lambda: run.read_json("summary.json"), run.rounds):
        with pytest.raises(InputError, match="directory of a run"):
            read()
    (tmp_path / "summary.json").write_text("{")
    (tmp_path / "rounds.jsonl").write_text('{"round": 0}\n{"rou')
    with pytest.raises(InputError, match=r"summary\.json: not valid JSON"):
        run.read_json("summary.json")
    with pytest.raises(InputError, match=r"rounds\.jsonl, line 2"):
        run.rounds()


def test_nan_never_reaches_a_json_file(tmp_path):
    run = create(tmp_path, "a")
    with pytest.raises(ValueError, match="not JSON compliant"):
        run.write_json("summary.json", {"x": float("nan")})
    assert not (run.path / "summary.json").exists()
