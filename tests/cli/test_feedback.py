"""Mistakes of the first minutes are answered at once, before PyTorch, SciPy and the accountant are imported."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from dpfedmeta.cli.arguments import settings_from
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.models.registry import _REGISTRY
from dpfedmeta.learning.models.spec import NETWORKS
from dpfedmeta.planning import early_checks

# What needs the accountant, and neither PyTorch nor a network.
WINDOW = Path(__file__).parents[2] / "configs/sweeps/window.yaml"
ACCOUNTED = ("torch", "opacus", "numba", "matplotlib")
PROGRAM = """
import contextlib, io, json, sys
from dpfedmeta.__main__ import main
HEAVY = ("torch", "scipy", "dp_accounting", "opacus", "numba", "matplotlib")
found = []
for words in json.loads(sys.argv[1]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            main(words)
            code = None
        except SystemExit as left:
            code = left.code
    heavy = [name for name in HEAVY if name in sys.modules]
    found.append([code, said.getvalue(), heavy])
print(json.dumps(found))
"""


def answers(cases):
    """(exit code, what was said, which heavy libraries are there by then) of each command line, one after the other."""
    words = json.dumps(list(cases))
    done = subprocess.run([sys.executable, "-c", PROGRAM, words], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_nothing_heavy_is_imported_before_a_refusal(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    (tmp_path / "bad.yaml").write_text("method: grid\nparameters: [\n")
    sweep = ["sweep", str(WINDOW), "--out"]
    started = ["train", "--algo", "dp-agr", "--dataset", "strokes"]
    train = [*started, "--run.dir", str(tmp_path)]
    cases = {
        "exists already": [*train, "--run.name", "taken"],
        "letters, digits": [*train, "--run.name", "a/b"],
        "run.name = :": [*train, "--run.name", ""],
        "at most 200": [*train, "--run.name", "a" * 201],
        "is a file": [*started, "--run.dir", str(tmp_path / "file")],
        "to make it in": [*started, "--run.dir", str(tmp_path / "file" / "runs")],
        "no such folder": [*train, "--data-dir", str(tmp_path / "nowhere")],
        "did you mean strokes": ["train", "--algo", "dp-agr", "--dataset", "stroke"],
        "did you mean conv4": [*train, "--model.name", "conv5"],
        "model.initial": [*train, "--model.initial", str(tmp_path / "none")],
        "more than population.clients": [*train, "--clients", "5", "--cohort", "10"],
        "neither a target": [*train, "--epsilon", "null"],
        "holds no config.yaml": ["evaluate", str(tmp_path / "none")],
        "no such run directory": ["report", str(tmp_path / "none")],
        "none.yaml: cannot be read": ["sweep", str(tmp_path / "none.yaml")],
        "not valid YAML": ["sweep", str(tmp_path / "bad.yaml")],
        "none to make it in": [*sweep, str(tmp_path / "none" / "out")],
        "file: is a file": [*sweep, str(tmp_path / "file")],
        "holds no sweep.json": [*sweep, str(tmp_path)],
        "nowhere: there is no": [*sweep, str(tmp_path / "out"), "--data-dir", str(tmp_path / "nowhere")],
    }
    for words, (code, said, heavy) in zip(cases, answers(cases.values()), strict=True):
        assert words in said
        assert len(said.splitlines()) == 1
        assert code == 2
        assert heavy == [], words
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.yaml", "file", "taken"]


def test_what_the_accountant_refuses_needs_no_pytorch(tmp_path: Path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.yaml").write_text("algo: dp-agr\n")
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "ledger.jsonl").write_text("")
    train = ["train", "--algo", "dp-agr", "--dataset", "strokes", "--run.dir", str(tmp_path)]
    fixed = ["--population.sampler", "fixed", "--cohort"]
    cases = {
        "run: is this the directory of a run? it holds no": ["train", "--resume", str(run)],
        "directory of a run? it holds no ledger": ["train", "--extend", str(run), "--rounds", "5"],
        "--server.lr: a run goes on with the settings": ["train", "--resume", str(begun), "--server.lr", "3"],
        "a whole number under the fixed-size": [*train, *fixed, "10.5"],
        "noise_multiplier = 1e-05": [*train, "--epsilon", "null", "--server.noise_multiplier", "1e-5"],
        "there is no module nowhere": [*train, "--model.name", "nowhere.at_all:net"],
        "no module nowhere in": [*train, "--meta.method", "nowhere.at_all:Method"],
        "task.ways = 500, but the train split holds 400 classes": [*train, "--ways", "500"],
        "images per class, but every class of strokes holds 20": [*train, "--shots", "100"],
        "but the val split holds 60 classes": [*train, "--evaluation.ways", "70"],
        "give a window of 5 or less (--window)": [*train, "--rounds", "5", "--window", "9"],
        "use --aggregation secure": [*train, "--privacy.client.observer", "server"],
        "3 clients, ": [
            "train",
            "--config",
            "cross-silo",
            "--dataset",
            "strokes",
            "--clients",
            "3",
            "--cohort",
            "3",
            "--shots",
            "5",
            "--task.queries",
            "5",
            "--aggregation.adversarial",
            "0.4",
            "--run.dir",
            str(tmp_path),
        ],
        "is no promise to audit": ["audit", "--algo", "maml"],
        "--epsilon 0.0: a target": [
            "analyse",
            "quantile",
            "--algo",
            "dp-agr",
            "--dataset",
            "strokes",
            "--epsilon",
            "0",
        ],
        "/nothing: not there": [
            "federate",
            "client",
            "--data",
            str(tmp_path / "nothing"),
            "--invitation",
            "a",
            "--identity",
            "a",
        ],
        "the roster cannot be read": ["federate", "server", "--keys", "a", "--roster", str(tmp_path / "nothing")],
        "only correlated noise": [*train, "--population.separation", "4"],
        "/nothing: there is no ledger.jsonl": [*train, "--privacy.spent_before", str(tmp_path / "nothing")],
        "nowhere: there is no": ["evaluate", str(run), "--data-dir", str(tmp_path / "nowhere")],
        "directory of a run? it holds no ledger.": ["account", "--verify", str(run)],
        "run: is this the directory of a run?": ["account", "--realised", str(run)],
        "runs = 0": ["audit", "--algo", "dp-agr", "--dataset", "strokes", "--runs", "0"],
        "confidence = 2": ["audit", "--algo", "dp-agr", "--dataset", "strokes", "--confidence", "2"],
        "run: is this the directory of a run? it holds": ["archive", str(run)],
        "run: is this the directory of a run? it holds no ledger.jsonl": ["report", str(run)],
        "--jobs 0": ["sweep", str(WINDOW), "--out", str(tmp_path / "sweep"), "--jobs", "0"],
        "nothing is clipped": ["decompose", "--algo", "maml", "--dataset", "strokes"],
    }
    for words, (code, said, heavy) in zip(cases, answers(cases.values()), strict=True):
        assert words in said
        assert len(said.splitlines()) == 1
        assert code == 2
        assert not {*heavy} & {*ACCOUNTED}, words


def test_the_names_of_networks_are_those_of_the_registry():
    assert sorted(_REGISTRY) == sorted(NETWORKS)


@pytest.mark.parametrize("typed", ["1e6", "1000000", "1.0e+6"])
def test_a_whole_number_may_be_written_with_an_exponent(typed: str):
    clients = resolve("dp-agr", "omniglot", None, {"population.clients": typed}).population.clients
    assert (clients, type(clients)) == (1_000_000, int)


def test_what_is_not_whole_is_refused():
    with pytest.raises(InputError, match=r"population\.clients"):
        resolve("dp-agr", "omniglot", None, {"population.clients": "1.5e0"})


def test_a_key_that_stands_twice_is_refused_with_both_lines(tmp_path: Path):
    file = tmp_path / "twice.yaml"
    file.write_text("server:\n  rounds: 5\n  lr: 0.1\n  rounds: 6\n")
    with pytest.raises(InputError, match="rounds occurs twice, in lines 2 and 4"):
        resolve("dp-agr", "omniglot", file)


def test_the_end_of_a_name_suggests_all_that_end_so():
    with pytest.raises(InputError, match=r"--evaluation\.lr or --meta\.lr or --server\.lr"):
        settings_from(["--lr", "1"])


@pytest.mark.parametrize(("rounds", "window"), [("1", 2), ("2", 2), ("3", 3), ("4", 4), ("100", 4)])
def test_the_window_of_the_preset_follows_short_runs(rounds: str, window: int):
    assert resolve("dp-agr", "omniglot", None, {"server.rounds": rounds}).clip.window == window


def test_a_window_that_was_given_stays():
    given = {"server.rounds": "3", "clip.window": "9"}
    assert resolve("dp-agr", "omniglot", None, given).clip.window == 9


@pytest.mark.parametrize("part", ["train", "val", "test"])
def test_too_few_classes_of_any_part_are_refused_before_they_are_read(monkeypatch, part):
    task, splits = load_task("strokes")
    few = replace(task, split={**task.split, part: 4})
    monkeypatch.setattr(early_checks, "task_of", lambda settings: (few, splits))
    with pytest.raises(InputError, match=f"the {part} split holds 4 classes"):
        early_checks.check_first(resolve("dp-agr", "strokes", None, {"task.ways": "5"}))


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
@pytest.mark.parametrize("command", ["train", "account", "check-task"])
def test_what_a_terminal_cannot_show_ends_nothing(tmp_path, encoding, command):
    """An ascii terminal ended a run after its first round was charged."""
    rows = [f"{name},{n}.5" for name in ("\u017bab\u0105", "\u03b2", "z") for n in range(6)]
    (tmp_path / "t.csv").write_text("\n".join(["class,x", *rows]), encoding="utf-8")
    words = {
        "train": (
            "--algo dp-agr --dataset strokes --model.width 4 --clients 200 --cohort 10 --rounds 1 --noise-multiplier 1 "
            "--evaluation.episodes 2 --evaluation.validation_episodes 2 --evaluation.every 1 --run.workers 1"
        ),
        "account": "--algo dp-agr --clients 200 --cohort 10 --rounds 2",
        "check-task": "t.csv --ways 2 --shots 2 --task.queries 2 --evaluation.queries 2",
    }[command]
    environment = {
        **os.environ,
        "PYTHONIOENCODING": encoding,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "DPFEDMETA_STATE": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-m", "dpfedmeta", command, *words.split()],
        cwd=tmp_path, capture_output=True, env=environment,
    )  # fmt: skip
    shown = done.stdout + done.stderr
    assert b"Traceback" not in shown
    assert b"UnicodeEncodeError" not in shown
    assert done.returncode == (2 if command == "check-task" else 0), shown.decode(encoding)
