"""`dpfedmeta sweep`: what is given on the line reaches every run, and is stronger than what the file says."""

from pathlib import Path

import pytest
from rich.console import Console

from dpfedmeta.cli.arguments import DONE, FAILED, INTERRUPTED
from dpfedmeta.cli.commands.sweep_command import main
from dpfedmeta.cli.sweeps import runner, sweep_folder
from dpfedmeta.core.errors import InputError

WORDS = ["${env}", "${interpreter}", "${program}", "--server.rounds=3", "--server.lr=0.5", "${args}"]


@pytest.fixture
def started(sweep_file, tmp_path, monkeypatch):
    """The options of a sweep that is begun by these words, and the exit code."""
    found = []

    def run(*words, status="completed", **changes):
        monkeypatch.setattr(runner, "run_sweep", lambda sweep, options, console: found.append(options) or status)
        given = [str(sweep_file(**{"command": WORDS, **changes})), "--out", str(tmp_path / "out"), *words]
        code = main(given, Console(quiet=True))
        return found[-1], code

    return run


@pytest.mark.parametrize(
    ("words", "due"),
    [
        ((), {"server.rounds": "3", "server.lr": "0.5"}),
        (("--server.rounds", "5"), {"server.rounds": "5", "server.lr": "0.5"}),
        (("--rounds", "5"), {"server.rounds": "5", "server.lr": "0.5"}),
        (("--cohort", "7"), {"server.rounds": "3", "server.lr": "0.5", "population.cohort": "7"}),
        (("--algo", "maml"), {"server.rounds": "3", "server.lr": "0.5", "algo": "maml"}),
        (("--server.lr=1", "--dataset", "x", "--config", "y"),
         {"server.rounds": "3", "server.lr": "1", "dataset": "x", "config": "y"}),
    ],
)  # fmt: skip
def test_settings_of_the_line_are_stronger_than_those_of_the_file(started, words, due):
    assert dict(started(*words)[0].fixed) == due


def test_every_option_of_a_sweep_arrives(started, tmp_path):
    (tmp_path / "data").mkdir()
    plain, _ = started()
    assert (plain.out, plain.jobs, plain.data_folder, plain.train, plain.launched) == (
        tmp_path / "out", 1, None, sweep_folder.TRAIN, False,
    )  # fmt: skip
    chosen, _ = started("--jobs", "2", "--data-dir", str(tmp_path / "data"), "--launch", "torchrun --standalone")
    assert (chosen.jobs, chosen.data_folder, chosen.launched) == (2, Path(tmp_path / "data"), True)
    assert chosen.train == sweep_folder.launched_words("torchrun --standalone")


@pytest.mark.parametrize(("status", "code"), [("completed", DONE), ("failed", FAILED), ("interrupted", INTERRUPTED)])
def test_the_exit_code_says_how_a_sweep_ended(started, status, code):
    assert started(status=status)[1] == code


@pytest.mark.parametrize("words", [("--eta", "1"), ("--cap", "3"), ("--cap", "0")])
def test_the_law_of_a_private_sweep_is_nothing_to_an_ordinary_one(started, words):
    with pytest.raises(InputError, match="--eta and --cap belong to --private"):
        started(*words)
