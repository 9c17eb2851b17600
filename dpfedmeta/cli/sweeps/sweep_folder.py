"""Folder of a sweep: which sweep it holds, its runs, how they are started, and how far they are."""

from __future__ import annotations

import fcntl
import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.run_directory import SUMMARY, WITH_RESULT, RunDirectory, append_lines, write_text
from dpfedmeta.core.worker_pool import available_cores

if TYPE_CHECKING:  # what is refused at once needs nothing heavy
    from dpfedmeta.cli.sweeps.sweep_file import Sweep, Trial, Value

MANIFEST, TRIALS, PROMISED = "sweep.json", "trials.jsonl", "private-sweep.json"
TRAIN = (sys.executable, "-m", "dpfedmeta", "train")


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Options of a sweep.

    Attributes:
        out: The folder of the sweep.
        jobs: Runs at a time.
        fixed: Settings of every run, stronger than the sweep's.
        data_folder: --data-dir.
        train: The words that start `dpfedmeta train`, from any directory.
        launched: Whether these start several ranks, which are the workers then.
    """

    out: Path
    jobs: int = 1
    fixed: Mapping[str, str] = field(default_factory=dict)
    data_folder: Path | None = None
    train: tuple[str, ...] = TRAIN
    launched: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError(f"--jobs {self.jobs}: at least 1")

    def words(self, trial: Trial) -> list[str]:
        """The command of a trial."""
        words = [*self.train, *(f"--{name}={value}" for name, value in trial.options.items())]
        words += [f"--run.name={trial.name}", f"--run.dir={SweepFolder(self.out.absolute()).runs}"]
        if "run.workers" not in trial.options and not self.launched:
            words.append(f"--run.workers={max(1, available_cores() // self.jobs)}")
        return [*words, f"--data-dir={self.data_folder.absolute()}"] if self.data_folder else words


def launched_words(launcher: str) -> tuple[str, ...]:
    """The words that start `dpfedmeta train` on the ranks of a launcher.

    Raises:
        InputError: They are no words, or name no program.
    """
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise InputError(f"--launch {launcher}: {error}") from error
    found = shutil.which(words[0]) or shutil.which(words[0], path=str(Path(sys.executable).parent)) if words else None
    if found is None:
        raise InputError(
            f"--launch {launcher}: there is no such program; as in 'torchrun --standalone --nproc-per-node 2'"
        )
    return (found, *words[1:], *TRAIN[1:])


class NotedTrial(NamedTuple):
    """A trial as its lines tell it: its place, its values, and its starts but for those that ended before it began."""

    number: int
    parameters: dict[str, Value]
    starts: int


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
        return any(self.started()) or any(noted.starts > 0 for noted in self.noted().values())

    def put_aside(self, trial: Trial) -> Path:
        """Move a half-finished run out of the way; nothing is deleted."""
        self.set_aside.mkdir(exist_ok=True)
        places = (self.set_aside / f"{trial.name}.{number}" for number in count(1))
        return self.run(trial).path.rename(next(place for place in places if not place.exists()))

    def note(self, trial: Trial, *, began: bool = True) -> None:
        """Write down what a run is, before it starts; afterwards, that this start ended before the run began."""
        line = {"number": trial.number, "name": trial.name, "key": trial.key, "parameters": dict(trial.parameters)}
        append_lines(self.path / TRIALS, [line if began else {**line, "began": False}])

    def noted(self) -> dict[str, NotedTrial]:
        """Every trial that was ever started, by the name of its run, in the order of the sweep.

        Raises:
            InputError: Damaged.
        """
        file, found = self.path / TRIALS, dict[str, NotedTrial]()
        lines = file.read_bytes().splitlines() if file.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                content = json.loads(line)
                name, starts = str(content["name"]), 1 if content.get("began", True) else -1
                starts += found[name].starts if name in found else 0
                found[name] = NotedTrial(int(content["number"]), dict(content["parameters"]), starts)
            except DAMAGED_JSON as error:
                if number < len(lines):  # the last one was cut short by a crash: that run never started
                    raise InputError(f"{file}, line {number}: damaged") from error
        return dict(sorted(found.items(), key=lambda item: item[1].number))


def is_sweep(path: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return (path / MANIFEST).is_file()


def is_finished(run: RunDirectory) -> bool:
    """Return whether a run has ended: completed, or stopped by its budget."""
    try:
        return run.read_json(SUMMARY).get("status") in WITH_RESULT
    except InputError:
        return False


def check_place(path: Path) -> None:
    """Refuse a folder that holds something else than a sweep, or than one that was cut off at once; nothing is written.

    Raises:
        InputError: It is a file, or not empty and no sweep.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path}: is a file; name a folder")
    if path.is_dir() and not is_sweep(path) and any(not each.name.startswith(".") for each in path.iterdir()):
        raise InputError(f"--out {path}: is not empty and holds no {MANIFEST}; choose another folder")


def check_same(path: Path, sweep: Sweep, fixed: Mapping[str, str], *, private: bool = False) -> dict[str, Any]:
    """Look into a folder without writing anything.

    Returns:
        The content of its sweep.json, as it is or shall be.

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
    parameters = {
        name: vars(parameter) if hasattr(parameter, "step") else list(parameter.values)
        for name, parameter in sweep.parameters.items()
    }
    wanted = {"version": 1, "method": sweep.method, "parameters": parameters, "fixed": dict(fixed)}
    held = RunDirectory(path).read_json(MANIFEST) if is_sweep(path) else wanted
    if held != wanted:
        differs = next(name for name in (*wanted, *held) if held.get(name, path) != wanted.get(name, path))
        raise InputError(f"--out {path}: holds another sweep (its {differs} differ); choose another folder")
    return wanted


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
    manifest, folder = check_same(path, sweep, fixed, private=private), SweepFolder(path)
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
            write_text(path / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        for part in (folder.runs, path / "logs"):
            part.mkdir(exist_ok=True)
        yield folder, lock.fileno()
