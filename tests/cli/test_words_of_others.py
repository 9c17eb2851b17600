"""What users of other programs type is refused with what to type here."""

import shlex
import zipfile
from pathlib import Path

import pytest

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.accounting.ledger.population_register import begin_register
from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.words_of_others import (
    _COMMANDS,
    _KEPT,
    _OPTIONS,
    command_meant,
    misplaced,
    no_run,
    option_meant,
    run_meant,
)
from dpfedmeta.config.dotted_keys import SHORT_FORMS
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import LEDGER
from tests.conftest import dpfedmeta


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["verify", "x"], "did you mean dpfedmeta account --verify RUN?"),
        (["certify", "x"], "did you mean dpfedmeta account --statement RUN?"),
        (["trian"], "did you mean train?"),
        (["train", "--task", "strokes"], "--task: unknown option; did you mean --dataset?"),
        (["train", "--epochs", "4"], "did you mean --rounds?"),
        (["account", "--certify", "x"], "did you mean --statement?"),
        (["train", "-rounds", "4"], "did you mean --rounds?"),
        (["train", "--rounds=", "4"], "--rounds=: a value is missing; write --rounds 4"),
        (
            ["train", "--algo", "dp-agr", "--dataset", "strokes", "--track.project", "me/mine"],
            "no / may stand in a name",
        ),
        (
            ["sweep", "window", "--window", "2,4"],
            "write into the sweep's file: parameters: {clip.window: {values: [2, 4]}}",
        ),
    ],
)
def test_a_line_says_what_to_type(words, told):
    assert told in " ".join(dpfedmeta(*words, code=2).error.split())


def test_every_remedy_is_there():
    known = {name for name, _, _ in setting_fields()} | {*SHORT_FORMS} | {"algo", "dataset", "statement"}
    assert set(_OPTIONS.values()) <= known
    for name in _COMMANDS:
        command = command_meant(name).split()[5]
        assert command.rstrip("?") in ("account", "archive", "evaluate", "federate", "report", "train")
    assert option_meant("task", {"rounds"}) == ""
    assert command_meant("tarin") == ""


def test_a_value_may_be_empty_where_nothing_stands_behind_it():
    assert settings_from(["--run.name="]) == {"run.name": ""}
    with pytest.raises(InputError, match="did you mean --rounds"):
        settings_from(["-rounds=4"])


def test_what_is_no_run_is_named(tmp_path):
    assert no_run(tmp_path / "x").endswith("there is no such run directory")
    (tmp_path / "t.csv").write_text("a")
    assert no_run(tmp_path / "t.csv").endswith("is a file; name the folder of a run, as runs/NAME")
    with zipfile.ZipFile(tmp_path / "r.zip", "w") as archive:
        archive.writestr("r/ledger.jsonl", "{}")
    assert "is an archive; unpack it" in dpfedmeta("account", "--verify", str(tmp_path / "r.zip"), code=2).error
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "ledger.jsonl").write_text("{}")
    assert run_meant(str(tmp_path / "runs")).endswith(f"dpfedmeta account --run {tmp_path / 'runs' / 'mine'}")
    assert "or --verify or --statement" in run_meant(str(tmp_path / "runs" / "mine"))
    assert run_meant("nothing") == ""


OPTIONS = ("run", "verify", "statement", "realised", "population")
# (kind, option): what the option takes; everything else is refused in words that name a command which takes it.
TAKEN = {
    "a run": {"run", "verify", "statement", "realised"},
    "a folder": {"run", "verify", "statement", "realised"},  # whoever opens it names the runs in it
    "a home": {"statement"},
    "a register": {"statement", "population"},
    "a run's ledger": set(),
    "a home's ledger": set(),
    "an archive": set(),
    "a file": {"population"},  # a damaged register
    "nothing": {"population"},
}


@pytest.fixture
def kinds(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    for name in ("a run", "a home", "a folder"):
        (tmp_path / name).mkdir()
    (tmp_path / "a run" / LEDGER).write_text('{"plan": {}}\n')
    ClientLedger(tmp_path / "a home" / LEDGER, RecordBudget(epsilon=3.0, delta=1e-5))
    begin_register(tmp_path / "a register", 4.0, 1e-5)
    with zipfile.ZipFile(tmp_path / "an archive", "w") as archive:
        archive.writestr("r/ledger.jsonl", "{}")
    (tmp_path / "a file").write_text("class,age\n")
    inside = {"a run's ledger": tmp_path / "a run" / LEDGER, "a home's ledger": tmp_path / "a home" / LEDGER}
    return {name: inside.get(name, tmp_path / name) for name in _KEPT}


@pytest.mark.parametrize("option", OPTIONS)
def test_whatever_an_option_of_account_is_given_it_reads_or_names_the_command_that_does(kinds, option):
    assert {*TAKEN} == {*_KEPT}
    for kind, path in kinds.items():
        assert (misplaced(path, option) is None) == (option in TAKEN[kind]), kind
        if option in TAKEN[kind] and kind not in ("a home", "a register"):
            continue
        code = 0 if option in TAKEN[kind] else 2
        found = dpfedmeta("account", f"--{option}", str(path), code=code)
        if not code:
            continue
        said = found.error
        # Not what another kind is told.
        assert f"{path}: {_KEPT[kind][0]}" in said
        if " dpfedmeta account " in said:
            words = shlex.split(said.partition(" dpfedmeta ")[2].partition(", or")[0])
            assert misplaced(Path(words[2]), words[1].removeprefix("--")) is None


def test_several_are_looked_at_one_by_one(kinds):
    said = dpfedmeta("account", "--verify", str(kinds["a run"]), str(kinds["a home"]), code=2).error
    assert f"is a client's home; dpfedmeta account --statement '{kinds['a home']}'" in said


def test_a_word_without_an_option_is_told_the_one_that_takes_it(kinds):
    said = dpfedmeta("account", str(kinds["a home"]), code=2).error
    assert f"it is a client's home: dpfedmeta account --statement '{kinds['a home']}'" in said
    assert "account --run" in run_meant(str(kinds["a run"]))
    assert "--population" in run_meant(str(kinds["a register"]))
    assert run_meant(str(kinds["a file"])) == ""
