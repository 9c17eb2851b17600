"""The folder of a sweep: which sweep it holds, its runs, and what state they are in."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from dpfedmeta.cli.sweeps.definition import Sweep
from dpfedmeta.cli.sweeps.parameters import Choices, Value
from dpfedmeta.cli.sweeps.sweep_folder import MANIFEST, check_place, is_sweep
from dpfedmeta.cli.sweeps.trials import Trial, same_result, settings_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import CONFIG, SUMMARY, RunDirectory, append_lines, write_text

TRIALS = "trials.jsonl"
_FINISHED = ("completed", "budget")

State = Literal["absent", "half", "finished"]


@dataclass(frozen=True)
class SweepDirectory:
    """Paths of one sweep."""

    path: Path

    @property
    def runs(self) -> Path:
        """Parent of the run directories."""
        return self.path / "runs"

    @property
    def set_aside(self) -> Path:
        """Half-finished runs; they spent privacy, so they are kept and counted."""
        return self.path / "set-aside"

    def run(self, trial: Trial) -> RunDirectory:
        """Return the run directory of a trial."""
        return RunDirectory(self.runs / trial.name)

    def log(self, trial: Trial) -> Path:
        """Return the path of a trial's log, which holds the output of its train.py."""
        return self.path / "logs" / f"{trial.name}.log"

    def started(self) -> Iterator[RunDirectory]:
        """Every run that ever began, finished or not."""
        for parent in (self.runs, self.set_aside):
            yield from (RunDirectory(path) for path in sorted(parent.glob("*")) if path.is_dir())


def check_same(path: Path, sweep: Sweep, fixed: Mapping[str, str]) -> None:
    """Look into a folder without writing anything.

    Raises:
        InputError: It holds another sweep, or something that is no sweep.
    """
    check_place(path)
    if not is_sweep(path):
        return
    held = read_manifest(path)
    if held != _manifest(sweep, fixed):
        differs = next(name for name, value in _manifest(sweep, fixed).items() if held.get(name) != value)
        raise InputError(f"--out {path}: holds another sweep (its {differs} differ); choose another folder")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read sweep.json.

    Raises:
        InputError: Missing or damaged.
    """
    content: dict[str, Any] = RunDirectory(path).read_json(MANIFEST)
    return content


@contextmanager
def opened(path: Path, sweep: Sweep, fixed: Mapping[str, str]) -> Iterator[tuple[SweepDirectory, int]]:
    """Make the folder, or go on in it; one sweep.py at a time.

    Yields:
        The folder, and the handle of its lock, for the children to hold as well.

    Raises:
        InputError: It holds another sweep, or another sweep.py is at work in it.
    """
    check_same(path, sweep, fixed)
    directory = SweepDirectory(path)
    for folder in (directory.runs, path / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"{path}: another sweep.py, or a run that it left behind, is still at work here"
            ) from error
        if not is_sweep(path):
            write_text(path / MANIFEST, json.dumps(_manifest(sweep, fixed), indent=2) + "\n")
        yield directory, lock.fileno()


def _manifest(sweep: Sweep, fixed: Mapping[str, str]) -> dict[str, Any]:
    parameters = {
        name: list(parameter.values) if isinstance(parameter, Choices) else vars(parameter)
        for name, parameter in sweep.parameters.items()
    }
    return {"version": 1, "method": sweep.method, "parameters": parameters, "fixed": dict(fixed)}


def state(directory: SweepDirectory, trial: Trial) -> tuple[State, str]:
    """The state of a trial's run, and for a half-finished one what is wrong with it.

    A run is finished if its summary says so and its settings are those that the trial has today: a preset or a file
    of --config may have changed since.
    """
    run = directory.run(trial)
    if not run.path.exists():
        return "absent", ""
    try:
        status = run.read_json(SUMMARY).get("status")
        written = yaml.safe_load((run.path / CONFIG).read_text(encoding="utf-8"))
    except (InputError, OSError, ValueError, yaml.YAMLError):
        return "half", "it did not come to its end"
    if status not in _FINISHED:
        return "half", f"it was {status}"
    difference = same_result(settings_of(trial), written if isinstance(written, dict) else {})
    return ("half", difference) if difference else ("finished", "")


def is_finished(run: Path) -> bool:
    """Return whether a run has ended: completed, or stopped by its budget."""
    try:
        return RunDirectory(run).read_json(SUMMARY).get("status") in _FINISHED
    except InputError:
        return False


def put_aside(directory: SweepDirectory, trial: Trial) -> Path:
    """Move a half-finished run out of the way; nothing is deleted."""
    directory.set_aside.mkdir(exist_ok=True)
    taken = {path.name for path in directory.set_aside.iterdir()}
    number = next(number for number in range(1, len(taken) + 2) if f"{trial.name}.{number}" not in taken)
    return directory.run(trial).path.rename(directory.set_aside / f"{trial.name}.{number}")


def note_trial(directory: SweepDirectory, trial: Trial) -> None:
    """Write down what a run is, before it starts."""
    line = {"number": trial.number, "name": trial.name, "key": trial.key, "parameters": dict(trial.parameters)}
    append_lines(directory.path / TRIALS, [line])


def noted_trials(path: Path) -> dict[str, dict[str, Value]]:
    """The parameters of every trial that was ever started, by the name of its run, in the order of the sweep.

    Raises:
        InputError: Damaged.
    """
    file = path / TRIALS
    found: dict[str, tuple[int, dict[str, Value]]] = {}
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            content = json.loads(line)
            found[str(content["name"])] = int(content["number"]), dict(content["parameters"])
        except (ValueError, LookupError, TypeError) as error:
            if number == len(lines):  # cut short by a crash: that run never started
                break
            raise InputError(f"{file}, line {number}: damaged") from error
    return {name: parameters for name, (_, parameters) in sorted(found.items(), key=lambda item: item[1][0])}
