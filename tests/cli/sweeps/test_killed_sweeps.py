"""Sweeps with two jobs that are killed, torn, or out of room: each point is finished once, and every run is counted."""

import fcntl
import io
import json
import os
import random
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from dpfedmeta.cli.sweeps.runner import run_sweep
from dpfedmeta.cli.sweeps.sweep_file import read_sweep
from dpfedmeta.cli.sweeps.sweep_folder import SweepOptions
from dpfedmeta.core.errors import InputError
from tests.cli.sweeps.conftest import FILE
from tests.faults.endings import Fault, ended, started

FIXED = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}}
RANGE = {"min": 0.01, "max": 10.0, "distribution": "log_uniform_values"}


def grid(points):
    return {"run_cap": points, "parameters": FIXED | {"run.seed": {"values": [*range(points)]}}}


def search(points):
    return {"run_cap": points, "method": "bayes", "parameters": FIXED | {"clip.initial": RANGE}}


TOLD = "with open(Path(__file__).with_name('told'), 'a') as told: told.write(f'%s {options[\"run.name\"]}\\n')\n"


@pytest.fixture
def killed(tmp_path, program):
    """A sweep of runs that take a moment, and say when they begin and when they have ended."""
    slow = program.read_text().replace("run.mkdir(parents=True)", "run.mkdir(parents=True)\n" + TOLD % "begun")
    slow = slow.replace('accuracy = {"mean"', 'time.sleep(0.25)\naccuracy = {"mean"')
    program.write_text(slow + TOLD % "ended")
    return Killed(tmp_path / "out", program)


class Killed:
    """A sweep in a process of its own, and what must be there when it has ended at last."""

    def __init__(self, out: Path, program: Path) -> None:
        self.out, self.program, self.file = out, program, out.with_name("killed.yaml")

    def write(self, content) -> None:
        self.points = content["run_cap"]
        self.file.write_text(yaml.safe_dump(FILE | content))

    def go(self) -> None:
        options = SweepOptions(out=self.out, jobs=2, train=(sys.executable, str(self.program)))
        if (status := run_sweep(read_sweep(self.file), options, Console(file=io.StringIO()))) != "completed":
            sys.exit(status)

    def size(self) -> int:
        file = self.out / "trials.jsonl"
        return file.stat().st_size if file.exists() else 0

    def ends_at(self, seconds: float | None, *, alone: bool = False, full: int | None = None) -> int | None:
        """Kill it, its runs with it or `alone`: those that live on keep the folder. Or its disk is `full` at a place.

        Args:
            seconds: From the first run that it starts on; negative: from its own beginning; None: to its end.
            alone: Whether its runs live on.
            full: The place.

        Returns:
            Its exit code.
        """
        fault, before = None if full is None else Fault(kind="ENOSPC", place=full), self.size()
        sweep = started(self.go, self.out.parent, {}, fault, noted=full is not None)
        code = None
        while seconds is not None and seconds >= 0 and code is None and self.size() == before:
            code = ended(sweep, 0.01)
        code = ended(sweep, None if seconds is None else abs(seconds)) if code is None else code
        if code is None:
            children = Path(f"/proc/{sweep}/task/{sweep}/children").read_text().split()
            for each in (sweep, *([] if alone else map(int, children))):
                os.kill(each, signal.SIGKILL)
            code = ended(sweep, 10)
        self.wait()
        return code

    def wait(self) -> None:
        """Until runs that live on have ended."""
        if (self.out / ".lock").exists():
            with (self.out / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)

    def told(self, what: str) -> Counter[str]:
        file = self.program.with_name("told")
        lines = [line.split() for line in file.read_text().splitlines()] if file.exists() else []
        return Counter(name for said, name in lines if said == what)

    def check(self) -> None:
        begun, finished = self.told("begun"), self.told("ended")
        runs = sorted(path.name for path in (self.out / "runs").iterdir())
        assert len(runs) == self.points
        assert {*begun} == {*runs}
        assert {*finished.values()} == {1}
        rows = json.loads((self.out / "results.json").read_text())["settings"]
        assert sorted(run for row in rows for run in row["runs"]) == runs
        # Whatever began is there, or set aside.
        self.aside = aside = [path.stem for path in self.out.glob("set-aside/*")]
        assert Counter([*runs, *aside]) == begun
        notes = [json.loads(line) for line in (self.out / "trials.jsonl").read_text().splitlines()]
        pairs = {(note["number"], note["name"]) for note in notes}
        assert [number for number, _ in sorted(pairs)] == [*range(self.points)]
        noted = Counter(note["name"] for note in notes if note.get("began", True))
        assert all(noted[name] >= count for name, count in begun.items())


@pytest.mark.parametrize(
    ("content", "kills"),
    [
        (grid(5), 3),
        pytest.param(grid(24), 20, marks=pytest.mark.slow),
        pytest.param(search(24), 20, marks=pytest.mark.slow),
    ],
    ids=["grid-3", "grid-20", "bayes-20"],
)
def test_two_jobs_that_are_killed_finish_each_point_once(killed, content, kills):
    import optuna  # noqa: F401 (before the fork, else most of the kills would hit its import)

    killed.write(content)
    draw = random.Random(kills)
    at = [draw.uniform(0, 0.3) if number % 4 else -draw.uniform(0.02, 0.35) for number in range(kills)]
    codes = [killed.ends_at(seconds, alone=number % 2 == 1) for number, seconds in enumerate(at)]
    assert codes == [-signal.SIGKILL] * kills, (killed.out.parent / "output.txt").read_text()
    killed.go()
    killed.check()
    print(len(killed.aside), "set aside")


def test_a_run_that_outlives_a_killed_sweep_keeps_the_folder(killed):
    killed.write({"run_cap": 2, "parameters": FIXED | {"model.width": {"value": 14}, "run.seed": {"values": [0, 1]}}})
    sweep = started(killed.go, killed.out.parent, {}, None, noted=False)
    while killed.told("begun").total() < 2:
        assert ended(sweep, 0.01) is None
    os.kill(sweep, signal.SIGKILL)
    assert ended(sweep, 10) == -signal.SIGKILL
    try:
        with (killed.out / ".lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(InputError, match="a run that it started, is still working in this folder"):
            killed.go()
    finally:
        (killed.out / "go").touch()
    killed.wait()
    killed.go()
    killed.check()
    assert not killed.aside


@pytest.mark.parametrize("torn", [b'{"number": 3, "na', b"\0" * 80, b"\xff"], ids=["half", "zeros", "no text"])
def test_a_torn_line_of_the_trials_was_never_a_run(killed, torn):
    """A start is on disk before its run begins, so a line that is not whole is of none."""
    killed.write(grid(5))
    killed.ends_at(0.1)
    with (killed.out / "trials.jsonl").open("ab") as file:
        file.write(torn)
    killed.go()
    killed.check()


@pytest.mark.parametrize("place", [1, 5, 9, *(pytest.param(n, marks=pytest.mark.slow) for n in range(10, 40, 3))])
def test_a_full_disk_stops_the_runs_and_loses_none(killed, place):
    killed.write(grid(5))
    assert killed.ends_at(None, full=place) == 98
    assert "No space left on device" in (killed.out.parent / "output.txt").read_text()
    killed.go()
    killed.check()
