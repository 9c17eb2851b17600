"""The four hospitals, on files of made-up patients in the form of UCI's."""

import importlib.util
import sys
from pathlib import Path

import numpy as np

HEART = Path(__file__).parents[2] / "examples" / "heart" / "heart.py"


def loaded(monkeypatch):
    spec = importlib.util.spec_from_file_location("example_heart", HEART)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    return module


def write_hospitals(folder, names):
    """14 columns with commas; one patient of each hospital has a gap, and is left out."""
    generator = np.random.default_rng(0)
    folder.mkdir()
    for count, name in enumerate(names, start=9):
        rows = []
        for ill in generator.integers(0, 2, count).tolist():
            plain = [f"{value:.1f}" for value in generator.normal(10 + 5 * ill, 1, 14)]
            plain[2], plain[6], plain[13] = (
                f"{generator.integers(1, 5)}.0",
                f"{generator.integers(0, 3)}.0",
                str(3 * ill),
            )
            rows.append(plain)
        rows.append([*rows[0][:5], "?", *rows[0][6:]])
        (folder / f"processed.{name}.data").write_text("\n".join(",".join(row) for row in rows) + "\n")


def test_hospitals_are_read_split_trained_and_judged_beside_every_baseline(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    heart = loaded(monkeypatch)
    monkeypatch.setattr(heart, "TRAINING", {**heart.TRAINING, "server.rounds": 2, "evaluation.every": 2})
    write_hospitals(tmp_path / "data", heart.HOSPITALS)
    held = heart.read_hospitals(tmp_path / "data")
    assert [len(own.ill) for own in held.values()] == [9, 10, 11, 12]
    assert all(own.records.shape[1] == len(heart.MEAN) == 13 for own in held.values())
    trains = heart.split_of(12, 3, split=0)
    assert trains.sum() == 7
    assert (trains != heart.split_of(12, 3, split=1)).any()
    heart.main(["--data", str(tmp_path / "data"), "--out", str(tmp_path / "out"), "--splits", "2"])
    shown = capsys.readouterr().out
    for name in (
        "this run, adapted",
        "each alone: softmax regression",
        "majority of own classes",
        "all data in one place",
    ):
        assert f"| {name} | 0." in shown or f"| {name} | 1." in shown
    assert "nan" not in shown
