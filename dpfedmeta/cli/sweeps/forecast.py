"""Forecast of a sweep: every command, and about how long all of it takes."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence

from rich.console import Console

from dpfedmeta.cli.sweeps.definition import Sweep
from dpfedmeta.cli.sweeps.directory import SweepDirectory, is_finished
from dpfedmeta.cli.sweeps.runner import SweepOptions, prepare
from dpfedmeta.cli.sweeps.trials import Trial, check
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.terminal.progress_bar import clock

_SPEED = re.compile(r"at\s+(\d+(?:\.\d+)?)\s+clients/s")


def show_plan(sweep: Sweep, options: SweepOptions, console: Console) -> None:
    """Print the commands of what is not finished, and the time they need.

    The speed is measured by one `dpfedmeta train --dry-run`, which also finds what only the data can show to be wrong.

    Raises:
        InputError: A run would be refused.
    """
    left, trials = prepare(sweep, options)
    finished = [trial for trial in trials if is_finished(SweepDirectory(options.out).runs / trial.name)]
    waiting = [trial for trial in trials if trial not in finished]
    if left.method != "grid":
        console.print(f"{left.method}: {left.run_cap} runs; each has this form:", highlight=False)
        waiting = waiting[:1]
    for trial in waiting:
        console.print(shlex.join(options.words(trial)), highlight=False, soft_wrap=True, markup=False)
    count = len(waiting) if left.method == "grid" else left.run_cap or 0
    words = f"{count} runs" + (f", {len(finished)} finished before" if finished and left.method == "grid" else "")
    if waiting:
        clients = _participations(waiting) * count / len(waiting)
        seconds = clients / _speed(waiting[0], options)
        words += f"; about {clock(seconds)} of training in all, besides starting and evaluating"
    console.print(words, highlight=False, soft_wrap=True)


def _participations(trials: Sequence[Trial]) -> float:
    return sum(plan.expected_participations for plan in check(trials).values())


def _speed(trial: Trial, options: SweepOptions) -> float:
    """Clients per second of this machine, with all its cores."""
    words = [word for word in options.words(trial) if not word.startswith("--run.workers=")]
    # How fast rounds are does not depend on where the clip bound begins, and a forecast asks nobody.
    words = [word for word in words if not word.startswith("--clip.start=")]
    done = subprocess.run(
        [*words, "--clip.start=given", "--dry-run", "--calibration=1"], capture_output=True, text=True, check=False
    )
    found = _SPEED.search(done.stdout)
    if done.returncode != 0 or found is None:
        reason = (done.stderr.strip().splitlines() or ["it printed no speed"])[-1].removeprefix("error: ")
        raise InputError(f"{trial.name}: dpfedmeta train --dry-run: {reason}")
    return max(float(found[1]), 1.0)
