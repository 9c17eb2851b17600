"""Folder of a sweep: which sweep it holds, its runs, and how far they are."""

from __future__ import annotations

import fcntl
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import check_output_folder
from dpfedmeta.core.files.run_directory import SUMMARY, WITH_RESULT, RunDirectory, append_lines, write_text

if TYPE_CHECKING:  # what is refused at once needs nothing heavy
    from dpfedmeta.cli.sweeps.sweep_file import Sweep, Value
    from dpfedmeta.cli.sweeps.trials import Trial

MANIFEST, TRIALS, PROMISED = "sweep.json", "trials.jsonl", "private-sweep.json"


@dataclass(frozen=True)
class SweepFolder:
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

    def shows_runs(self) -> bool:
        """Return whether an ordinary sweep started runs here, of which all may have been seen."""
        return any(self.started()) or any(count > 0 for count in self.starts().values())

    def put_aside(self, trial: Trial) -> Path:
        """Move a half-finished run out of the way; nothing is deleted."""
        self.set_aside.mkdir(exist_ok=True)
        places = (self.set_aside / f"{trial.name}.{number}" for number in count(1))
        return self.run(trial).path.rename(next(place for place in places if not place.exists()))

    def note(self, trial: Trial, *, began: bool = True) -> None:
        """Write down what a run is, before it starts; afterwards, that this start ended before the run began."""
        line = {"number": trial.number, "name": trial.name, "key": trial.key, "parameters": dict(trial.parameters)}
        append_lines(self.path / TRIALS, [line if began else {**line, "began": False}])

    def starts(self) -> Counter[str]:
        """Return the number of starts of each run, by its name, without starts that ended before it began.

        Raises:
            InputError: Damaged.
        """
        found: Counter[str] = Counter()
        for name, _, _, began in self._lines():
            found[name] += 1 if began else -1
        return found

    def _lines(self) -> Iterator[tuple[str, int, dict[str, Value], bool]]:
        """(name, number, parameters, whether a run was about to begin) of every line that was finished."""
        file = self.path / TRIALS
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                content = json.loads(line)
                found = str(content["name"]), int(content["number"]), dict(content["parameters"])
                began = bool(content.get("began", True))
            except DAMAGED_JSON as error:
                if number == len(lines):  # cut short by a crash: that run never started
                    break
                raise InputError(f"{file}, line {number}: damaged") from error
            yield (*found, began)

    def proposed(self) -> dict[int, dict[str, Value]]:
        """The parameters of every trial of a search that was ever started, by its number.

        Raises:
            InputError: Damaged.
        """
        return {number: parameters for _, number, parameters, _ in self._lines()}

    def noted(self) -> dict[str, dict[str, Value]]:
        """The parameters of every trial that was ever started, by the name of its run, in the order of the sweep.

        Raises:
            InputError: Damaged.
        """
        found: dict[str, tuple[int, dict[str, Value]]] = {}
        for name, number, parameters, _ in self._lines():
            found[name] = number, parameters
        return {name: parameters for name, (_, parameters) in sorted(found.items(), key=lambda item: item[1][0])}


def is_sweep(path: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return (path / MANIFEST).is_file()


def is_finished(run: RunDirectory) -> bool:
    """Return whether a run has ended: completed, or stopped by its budget."""
    try:
        return run.read_json(SUMMARY).get("status") in WITH_RESULT
    except InputError:
        return False


def check_request(file: Path, named: Path | None, jobs: int, *, writes: bool) -> Path:
    """Return the folder of a sweep, once it is clear that it can be one.

    Args:
        file: The sweep file, whose name the folder has by default.
        named: --out.
        jobs: --jobs.
        writes: Whether anything will be written.

    Raises:
        InputError: The folder is a file, holds something else, or can be neither written nor made; or no jobs.
    """
    path = named or Path("runs") / f"sweep-{file.stem}"
    check_place(path)
    if writes and named is not None:
        check_output_folder("--out", named)
    elif writes:
        check_output_folder("runs, the folder of --out:", Path("runs"))
    check_jobs(jobs)
    return path


def check_place(path: Path) -> None:
    """Refuse a folder that holds something else than a sweep, or than one that was cut off at once; nothing is written.

    Raises:
        InputError: It is a file, or not empty and no sweep.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path}: is a file; name a folder")
    if path.is_dir() and not is_sweep(path) and any(not each.name.startswith(".") for each in path.iterdir()):
        raise InputError(f"--out {path}: is not empty and holds no {MANIFEST}; choose another folder")


def check_jobs(jobs: int) -> None:
    """Refuse to run nothing at a time.

    Raises:
        InputError: Less than one run.
    """
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: at least 1")


def check_same(path: Path, sweep: Sweep, fixed: Mapping[str, str], *, private: bool = False) -> None:
    """Look into a folder without writing anything.

    Raises:
        InputError: It holds another sweep, a private one for an ordinary one or the reverse, or no sweep.
    """
    check_place(path)
    if SweepFolder(path).shows_runs() if private else (path / PROMISED).exists():
        kinds = ("an ordinary", "private") if private else ("a private", "ordinary")
        raise InputError(
            f"--out {path}: holds {kinds[0]} sweep. A private one's price is that of one run shown; choose another "
            f"folder for the {kinds[1]} one"
        )
    if is_sweep(path):
        held, wanted = read_manifest(path), _manifest(sweep, fixed)
        if held != wanted:
            differs = next(name for name in (*wanted, *held) if held.get(name, path) != wanted.get(name, path))
            raise InputError(f"--out {path}: holds another sweep (its {differs} differ); choose another folder")


def read_manifest(path: Path) -> dict[str, Any]:
    """Read sweep.json.

    Raises:
        InputError: Missing or damaged.
    """
    content: dict[str, Any] = RunDirectory(path).read_json(MANIFEST)
    return content


def _manifest(sweep: Sweep, fixed: Mapping[str, str]) -> dict[str, Any]:
    parameters = {
        name: vars(parameter) if hasattr(parameter, "step") else list(parameter.values)
        for name, parameter in sweep.parameters.items()
    }
    return {"version": 1, "method": sweep.method, "parameters": parameters, "fixed": dict(fixed)}


@contextmanager
def opened(
    path: Path, sweep: Sweep, fixed: Mapping[str, str], *, private: bool = False
) -> Iterator[tuple[SweepFolder, int]]:
    """Make the folder, or go on in it; one sweep at a time.

    Yields:
        The folder, and the handle of its lock, for the children to hold as well.

    Raises:
        InputError: It holds another sweep, or another sweep is at work in it.
    """
    check_same(path, sweep, fixed, private=private)
    folder = SweepFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    with (path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise InputError(
                f"{path}: another sweep, or a run that it started, is still working in this folder"
            ) from error
        if not is_sweep(path):
            # First of all: without it the folder is taken for something else.
            write_text(path / MANIFEST, json.dumps(_manifest(sweep, fixed), indent=2) + "\n")
        for part in (folder.runs, path / "logs"):
            part.mkdir(exist_ok=True)
        yield folder, lock.fileno()
