"""Runs the trials of a sweep, several at a time, each a `dpfedmeta train` of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rich.console import Console

from dpfedmeta.cli.sweeps.definition import Sweep
from dpfedmeta.cli.sweeps.directory import SweepDirectory, check_same, note_trial, opened, put_aside, state
from dpfedmeta.cli.sweeps.proposals import Outcome, check_can_search, propose
from dpfedmeta.cli.sweeps.results import PAGE, TABLE, results_table, write_results
from dpfedmeta.cli.sweeps.sweep_folder import check_jobs
from dpfedmeta.cli.sweeps.trials import Trial, check, corners, grid, without_fixed
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import SUMMARY
from dpfedmeta.core.worker_pool import available_cores
from dpfedmeta.reporting.compare.seed_groups import last_validation
from dpfedmeta.training.state.private_timings import at_most, coarse
from dpfedmeta.training.terminal.progress_bar import Heartbeat, clock

Status = Literal["completed", "failed", "interrupted"]

_POLL_SECONDS = 0.2
# A run that is told to stop finishes its round and writes a checkpoint.
_PATIENCE_SECONDS = 120.0


TRAIN = (sys.executable, "-m", "dpfedmeta", "train")


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

    def words(self, trial: Trial) -> list[str]:
        """The command of a trial."""
        words = [*self.train, *(f"--{name}={value}" for name, value in trial.options.items())]
        words += [f"--run.name={trial.name}", f"--run.dir={SweepDirectory(self.out.absolute()).runs}"]
        if "run.workers" not in trial.options and not self.launched:
            words.append(f"--run.workers={max(1, available_cores() // self.jobs)}")
        return [*words, f"--data-dir={self.data_folder.absolute()}"] if self.data_folder else words


def prepare(sweep: Sweep, options: SweepOptions) -> tuple[Sweep, tuple[Trial, ...]]:
    """Check everything that can be checked before the first run.

    Returns:
        What is left to sweep, and its trials: all of a grid, or for a search the combinations at its borders.

    Raises:
        InputError: A combination would be refused, Optuna is missing for a search, or the folder holds another sweep.
    """
    check_jobs(options.jobs)
    left = without_fixed(sweep, options.fixed)
    check_can_search(left.method)
    trials = grid(left, options.fixed) if left.method == "grid" else tuple(corners(left, options.fixed))
    if options.launched and any("run.workers" in trial.options for trial in trials):
        raise InputError("run.workers: the ranks that --launch starts are the workers; leave out run.workers")
    check_same(options.out, left, options.fixed)
    check(trials)
    return left, trials


def run_sweep(sweep: Sweep, options: SweepOptions, console: Console) -> Status:
    """Run what is not finished yet.

    Raises:
        InputError: As `prepare` says, before the first run.
    """
    left, trials = prepare(sweep, options)
    with opened(options.out, left, options.fixed) as (directory, lock), _terminable():
        work = _Work(sweep=left, options=options, directory=directory, lock=lock, console=console)
        status = work(trials if left.method == "grid" else None)
        work.report()
        return status


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends a sweep as Ctrl-C does: the children are stopped first."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@dataclass(kw_only=True)
class _Work:
    """The state of a running sweep."""

    sweep: Sweep
    options: SweepOptions
    directory: SweepDirectory
    lock: int
    console: Console
    running: dict[str, tuple[Trial, subprocess.Popen[bytes], float]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failed: list[Trial] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    heart: Heartbeat = field(init=False)

    def __post_init__(self) -> None:
        self.heart = Heartbeat(say=self._print).started()

    def __call__(self, listed: tuple[Trial, ...] | None) -> Status:
        """Until the list or the run_cap ends."""
        total = len(listed) if listed is not None else self.sweep.run_cap or 0
        self._say(f"{total} runs, {self.options.jobs} at a time, in {self.options.out}")
        try:
            for number in range(total):
                while len(self.running) >= self.options.jobs:
                    self._reap(total)
                trial = listed[number] if listed is not None else self._propose(number)
                self._begin(trial, total)
            while self.running:
                self._reap(total)
        except KeyboardInterrupt:
            self._stop()
            return "interrupted"
        return "failed" if self.failed else "completed"

    def report(self) -> None:
        """Table, picture and page of what has finished."""
        if any(outcome.value is not None for outcome in self.outcomes.values()):
            self.console.print(results_table(write_results(self.directory.path)))
            self._say(f"results: {self.directory.path / PAGE}, and {TABLE} beside it")

    def _propose(self, number: int) -> Trial:
        past = [outcome for outcome in self.outcomes.values() if outcome.trial not in self.failed]
        return propose(number, self.sweep, self.options.fixed, past)

    def _begin(self, trial: Trial, total: int) -> None:
        if trial.name in self.outcomes:  # a search over few values proposes some of them again
            return
        self.outcomes[trial.name] = Outcome(trial=trial, value=None)
        found, reason = state(self.directory, trial)
        if found == "finished":
            self._finish(trial, f"{trial.name}: finished before", total)
            return
        if found == "half":
            self._say(f"{trial.name}: set aside in {put_aside(self.directory, trial)}, {reason}; it is done again")
        note_trial(self.directory, trial)
        with self.directory.log(trial).open("wb") as log:
            child = subprocess.Popen(
                self.options.words(trial),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                # Its own group: Ctrl-C reaches it once, from here, and its workers with it.
                start_new_session=True,
                # A run that outlives a killed sweep keeps the folder locked.
                pass_fds=(self.lock,),
                # A background shell makes its children deaf to SIGINT, and they would pass that on.
                preexec_fn=_hear_interrupts,
            )
        self.running[trial.name] = (trial, child, time.monotonic())

    def _reap(self, total: int) -> None:
        ended = [name for name, (_, child, _) in self.running.items() if child.poll() is not None]
        if not ended:
            time.sleep(_POLL_SECONDS)
            # Which runs, and nothing of their rounds: when lines come would tell how long these take.
            self.heart.beat(f"running: {', '.join(self.running)}")
        for name in ended:
            trial, child, begun = self.running.pop(name)
            taken = time.monotonic() - begun
            if child.returncode == 0 and state(self.directory, trial)[0] == "finished":
                hidden = bool(self.directory.run(trial).read_json(SUMMARY).get("times"))
                self.seconds.append(coarse(taken) if hidden else taken)
                self._finish(trial, f"{name}: {at_most(taken) if hidden else clock(taken)}", total)
            else:
                self.failed.append(trial)
                self._say(f"{name}: failed with exit code {child.returncode}: {_last_line(self.directory.log(trial))}")

    def _finish(self, trial: Trial, text: str, total: int) -> None:
        value = last_validation(self.directory.run(trial).rounds())
        self.outcomes[trial.name] = Outcome(trial=trial, value=value.mean if value else None)
        done = sum(outcome.value is not None for outcome in self.outcomes.values())
        shown = f", validation {100 * value.mean:.1f}% ± {100 * value.ci95:.1f}" if value else ""
        left = ""
        if self.seconds and done < total:
            mean = sum(self.seconds) / len(self.seconds)
            left = f"; about {clock((total - done) * mean / self.options.jobs)} left"
        self._say(f"[{done}/{total}] {text}{shown}{left}")

    def _stop(self) -> None:
        """Ask every child to stop, wait, and say how to go on."""
        self._say(f"interrupted: stopping {len(self.running)} runs")
        for _, child, _ in self.running.values():
            _signal(child, signal.SIGINT)
        until = time.monotonic() + _PATIENCE_SECONDS
        for _, child, _ in self.running.values():
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                until = 0.0  # a second Ctrl-C: no more patience
            finally:
                _signal(child, signal.SIGKILL)
        self._say(
            "go on with the same command: finished runs stay, those that were stopped are set aside and done again"
        )

    def _say(self, text: str) -> None:
        self.heart.told(text)

    def _print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)


def _hear_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _signal(child: subprocess.Popen[bytes], which: signal.Signals) -> None:
    try:
        os.killpg(child.pid, which)
    except ProcessLookupError:
        return


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    # A launcher says more behind it.
    said = [line for line in lines if line.startswith("error: ")] or lines
    return f"{said[-1] if said else 'nothing printed'} (all of it in {log})"
