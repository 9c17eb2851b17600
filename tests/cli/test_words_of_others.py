"""What users of other programs type is refused with what to type here."""

import zipfile

import pytest

from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.cli.words_of_others import _COMMANDS, _OPTIONS, command_meant, no_run, option_meant, run_meant
from dpfedmeta.config.dotted_keys import SHORT_FORMS
from dpfedmeta.config.settings import setting_fields
from dpfedmeta.core.errors import InputError
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
