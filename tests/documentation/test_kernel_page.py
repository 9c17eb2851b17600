"""The loops that docs/kernel.md shows, run as they stand."""

import json
from typing import Any

import numpy as np
import pytest
from pages import ROOT, blocks

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.privacy.rounds.verify_rounds import verify_rounds
from tests.conftest import dpfedmeta

CODE = [block for block in blocks(ROOT / "docs/kernel.md") if block.language == "python"]
LOOPS = [block for block in CODE if "PrivateRounds" in block.text]
(AUDIT,) = (block for block in CODE if "audit_rounds" in block.text)


def run(block, folder, monkeypatch, capsys, *, rounds):
    monkeypatch.setenv("DPFEDMETA_STATE", str(folder / "state"))
    monkeypatch.chdir(folder)
    text = block.text.replace("rounds=100,", f"rounds={rounds},")
    given: dict[str, Any] = {
        "model": {"w": np.zeros(3), "b": np.zeros((2, 2))},
        "local_update": lambda model, client: {name: np.sign(client % 3 - model[name] - 0.5) for name in model},
        "apply": lambda model, release: {name: model[name] + release[name] for name in model},
    }
    exec(compile(text, block.where, "exec"), given)
    private = given["private"]
    assert private.ended == "completed"
    assert private.released == rounds
    private.close()
    found = json.loads(dpfedmeta("account", "--verify", str(folder / "runs/mine"), "--json").out)["guarantees"]
    assert [cell["epsilon"] for cell in found] == [
        cell.epsilon if cell.epsilon < float("inf") else None for cell in private.guarantees
    ]
    assert 3.9 < found[0]["epsilon"] <= 4.0
    assert capsys.readouterr().out.count("(client, public)") == 2


@pytest.mark.parametrize("block", LOOPS, ids=lambda block: block.where)
def test_a_loop_of_the_page_runs_and_its_ledger_agrees(block, tmp_path, monkeypatch, capsys):
    run(block, tmp_path, monkeypatch, capsys, rounds=5)


@pytest.mark.slow
@pytest.mark.parametrize("block", LOOPS, ids=lambda block: block.where)
def test_a_loop_of_the_page_runs_with_all_of_its_rounds(block, tmp_path, monkeypatch, capsys):
    run(block, tmp_path, monkeypatch, capsys, rounds=100)


def test_the_audit_of_the_page_runs(capsys):
    def round_of_mine(state, updates, generator):
        clipped = sum(float(np.clip(update["w"].sum(), -1, 1)) for update in updates.values())
        return state, {"w": np.array([clipped + 8.0 * generator.normal()])}

    text = AUDIT.text.replace("rounds=4", "rounds=4, runs=200")
    exec(compile(text, AUDIT.where, "exec"), {"model": {"w": np.zeros(1)}, "round_of_mine": round_of_mine})
    assert capsys.readouterr().out.startswith("no violation of (client, public) epsilon 1.5")


def test_every_file_and_test_that_the_walk_names_is_there():
    text = (ROOT / "docs/kernel.md").read_text()
    rows = [line.split("|")[2:6] for line in text.splitlines() if line.startswith("| ") and "`" in line]
    for files, _, _, tests in rows:
        for name in files.split("`")[1::2]:
            assert list((ROOT / "dpfedmeta").rglob(name.rstrip("/"))), name
        for name in tests.split("`")[1::2]:
            if name.startswith("tests/"):
                assert (ROOT / name).exists(), name
            else:
                own = (ROOT / "tests/privacy/rounds/test_private_rounds.py").read_text()
                assert f"def {name.rstrip('.').rstrip('_')}" in own, name
    assert len(rows) >= 11


def test_nine_lines_make_a_loop_private(tmp_path, monkeypatch, capsys):
    """Both sides of the difference on the page run, and learn; the second one verifies."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    lines = (
        (ROOT / "docs/kernel.md")
        .read_text(encoding="utf-8")
        .split("```diff\n")[1]
        .split("```")[0]
        .replace("30", "6")
        .splitlines()
    )
    added = [line for line in lines if line.startswith("+")]
    assert len(added) == 9
    right = []
    for sign in "-+":
        program = "\n".join(line[1:] for line in lines if line[:1] in ("", " ", sign))
        held = {}
        exec(program, held)
        model, truth = held["model"]["w"], held["TRUTH"]
        right.append(model @ truth / np.linalg.norm(model) / np.linalg.norm(truth))
    assert right[0] > 0.95
    assert right[1] > 0.5
    held["private"].close()
    assert "(client, public)" in capsys.readouterr().out
    assert "6 rounds, hash chain intact" in verify_rounds(RunDirectory(tmp_path / "runs/mine")).remarks
