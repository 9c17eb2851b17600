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
from tests.cli.sweeps.conftest import FILE
from tests.faults.endings import ended, started

POINTS = 12
FIXED = {"algo": {"value": "maml"}, "dataset": {"value": "strokes"}}
GRID = {"parameters": FIXED | {"run.seed": {"values": [*range(POINTS)]}}}
SEARCH = {
    "method": "bayes", "run_cap": POINTS,
    "parameters": FIXED | {"clip.initial": {"min": 0.01, "max": 10.0, "distribution": "log_uniform_values"}},
}  # fmt: skip
TOLD = "with open(Path(__file__).with_name('told'), 'a') as told: told.write(f'%s {options[\"run.name\"]}\\n')\n"


@pytest.fixture
def killed(tmp_path, program):
    """A sweep of runs that take a moment, and say when they begin and when they have ended."""
    slow = program.read_text().replace("run.mkdir(parents=True)", "run.mkdir(parents=True)\n" + TOLD % "begun")
    slow = slow.replace('accuracy = {"mean"', 'time.sleep(0.1)\naccuracy = {"mean"')
    program.write_text(slow + TOLD % "ended")
    return Killed(tmp_path / "out", program)


class Killed:
    """A sweep in a process of its own, and what must be there when it has ended at last."""

    def __init__(self, out: Path, program: Path) -> None:
        self.out, self.program, self.file = out, program, out.with_name("killed.yaml")

    def write(self, content) -> None:
        self.file.write_text(yaml.safe_dump(FILE | content))

    def go(self) -> None:
        options = SweepOptions(out=self.out, jobs=2, train=(sys.executable, str(self.program)))
        if (status := run_sweep(read_sweep(self.file), options, Console(file=io.StringIO()))) != "completed":
            sys.exit(status)

    def ends_at(self, seconds: float, *, alone: bool) -> int:
        """Kill it, its runs with it or `alone`: those that live on keep the folder. Whether it was not over before."""
        sweep = started(self.go, self.out.parent, {}, None, noted=False)
        code = ended(sweep, seconds)
        if code is None:
            children = Path(f"/proc/{sweep}/task/{sweep}/children").read_text().split()
            for each in (sweep, *([] if alone else map(int, children))):
                os.kill(each, signal.SIGKILL)
            code = ended(sweep, 10)
        assert code in (0, -signal.SIGKILL), (self.out.parent / "output.txt").read_text()
        if (self.out / ".lock").exists():
            with (self.out / ".lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # until those that live on have ended
        return int(code == -signal.SIGKILL)

    def check(self) -> None:
        told = [line.split() for line in self.program.with_name("told").read_text().splitlines()]
        begun, finished = (Counter(name for what, name in told if what == each) for each in ("begun", "ended"))
        runs = sorted(path.name for path in (self.out / "runs").iterdir())
        assert len(runs) == POINTS
        assert {*begun} == {*runs}
        assert {*finished.values()} == {1}
        rows = json.loads((self.out / "results.json").read_text())["settings"]
        assert sorted(run for row in rows for run in row["runs"]) == runs
        # Whatever began is there, or set aside.
        aside = [path.stem for path in self.out.glob("set-aside/*")]
        assert Counter([*runs, *aside]) == begun
        notes = [json.loads(line) for line in (self.out / "trials.jsonl").read_text().splitlines()]
        pairs = {(note["number"], note["name"]) for note in notes}
        assert [number for number, _ in sorted(pairs)] == [*range(POINTS)]
        noted = Counter(note["name"] for note in notes if note.get("began", True))
        assert all(noted[name] >= count for name, count in begun.items())


@pytest.mark.parametrize(
    ("content", "kills"),
    [(GRID, 3), pytest.param(GRID, 20, marks=pytest.mark.slow), pytest.param(SEARCH, 20, marks=pytest.mark.slow)],
    ids=["grid-3", "grid-20", "bayes-20"],
)
def test_two_jobs_that_are_killed_finish_each_point_once(killed, content, kills):
    import optuna  # noqa: F401 (before the fork, else most of the kills would hit its import)

    killed.write(content)
    draw = random.Random(kills)
    hits = sum(killed.ends_at(draw.uniform(0.02, 0.35), alone=number % 2 == 1) for number in range(kills))
    print("hits", hits)
    killed.go()
    killed.check()
