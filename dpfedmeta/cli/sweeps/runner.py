"""Runs the trials of a sweep, several at a time, each a `dpfedmeta train` of its own."""

import os
import re
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

from dpfedmeta.cli.sweeps.sweep_file import SET_BY_THE_SWEEP, Sweep
from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder, check_jobs, check_same, is_finished, opened
from dpfedmeta.cli.sweeps.trials import (
    Outcome,
    Trial,
    check,
    check_can_search,
    corners,
    grid,
    propose,
    same_result,
    settings_of,
    without_fixed,
)
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import CONFIG, SUMMARY
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml
from dpfedmeta.core.signals import deferred
from dpfedmeta.core.still_working import EVERY_SECONDS
from dpfedmeta.core.worker_pool import available_cores
from dpfedmeta.training.state.private_timings import at_most, coarse
from dpfedmeta.training.state.resume import edited_since
from dpfedmeta.training.terminal.progress_bar import Heartbeat, clock

Status = Literal["completed", "failed", "interrupted"]

_POLL_SECONDS = 0.2
# A run that is told to stop finishes its round and writes a checkpoint.
_PATIENCE_SECONDS = 120.0
_SPEED = re.compile(r"at\s+(\d+(?:\.\d+)?)\s+clients/s")
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

    def __post_init__(self) -> None:
        check_jobs(self.jobs)

    def words(self, trial: Trial) -> list[str]:
        """The command of a trial."""
        words = [*self.train, *(f"--{name}={value}" for name, value in trial.options.items())]
        words += [f"--run.name={trial.name}", f"--run.dir={SweepFolder(self.out.absolute()).runs}"]
        if "run.workers" not in trial.options and not self.launched:
            words.append(f"--run.workers={max(1, available_cores() // self.jobs)}")
        return [*words, f"--data-dir={self.data_folder.absolute()}"] if self.data_folder else words


def prepare(sweep: Sweep, options: SweepOptions, *, private: bool = False) -> tuple[Sweep, tuple[Trial, ...]]:
    """Check everything that can be checked before the first run.

    Returns:
        What is left to sweep, and its trials: all of a grid, or for a search the combinations at its borders.

    Raises:
        InputError: A combination would be refused, Optuna is missing for a search, or the folder holds another sweep.
    """
    if own := next((name for name in options.fixed if name in SET_BY_THE_SWEEP), None):
        raise InputError(f"{own}: the sweep sets it for each run; leave it out (--out names the folder of the sweep)")
    left = without_fixed(sweep, options.fixed)
    check_can_search(left)
    trials = grid(left, options.fixed) if left.method == "grid" else corners(left, options.fixed)
    if options.launched and any("run.workers" in trial.options for trial in trials):
        raise InputError("run.workers: the ranks that --launch starts are the workers; leave out run.workers")
    check_same(options.out, left, options.fixed, private=private)
    check(trials)
    return left, trials


def show_plan(sweep: Sweep, options: SweepOptions, console: Console) -> None:
    """Print the commands of what is not finished, and the time they need.

    The speed is measured by one `dpfedmeta train --dry-run`, which also finds what only the data can show to be wrong.

    Raises:
        InputError: A run would be refused.
    """
    left, trials = prepare(sweep, options)
    waiting = [trial for trial in trials if not is_finished(SweepFolder(options.out).run(trial))]
    finished = len(trials) - len(waiting)
    if left.method != "grid":
        console.print(f"{left.method}: {left.run_cap} runs; each has this form:", highlight=False)
        waiting, finished = waiting[:1], 0
    for trial in waiting:
        console.print(shlex.join(options.words(trial)), highlight=False, soft_wrap=True, markup=False)
    count = len(waiting) if left.method == "grid" else left.run_cap or 0
    words = f"{count} runs" + (f", {finished} finished before" if finished else "")
    if waiting:
        clients = sum(plan.expected_participations for plan in check(waiting).values()) * count / len(waiting)
        seconds = clients / _clients_per_second(waiting[0], options)
        words += f"; about {clock(seconds)} of training in all, plus start-up and evaluation"
    console.print(words, highlight=False, soft_wrap=True)


def _clients_per_second(trial: Trial, options: SweepOptions) -> float:
    """The speed of this machine, with all its cores."""
    # How fast rounds are does not depend on where the clip bound begins, and a forecast asks nobody.
    left_out = ("--run.workers=", "--clip.start=")
    words = [word for word in options.words(trial) if not word.startswith(left_out)]
    words += ["--clip.start=given", "--dry-run", "--calibration=1"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    found = _SPEED.search(done.stdout)
    if done.returncode != 0 or found is None:
        reason = (done.stderr.strip().splitlines() or ["it printed no speed"])[-1].removeprefix("error: ")
        raise InputError(f"{trial.name}: dpfedmeta train --dry-run: {reason}")
    return max(float(found[1]), 1.0)


def why_not_finished(folder: SweepFolder, trial: Trial) -> str | None:
    """Return what is wrong with a trial's run, or None if it has finished.

    A run has finished if its summary says so and its settings and code are those that the trial has today: a preset, a
    file of --config or a module of the user's own may have changed since.
    """
    run = folder.run(trial)
    if not is_finished(run):
        return "it did not finish"
    try:
        written = read_yaml((run.path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, *YAML_ERRORS):
        return f"its {CONFIG} cannot be read"
    settings = settings_of(trial)
    return same_result(settings, written if isinstance(written, dict) else {}) or edited_since(run, settings)


def run_sweep(sweep: Sweep, options: SweepOptions, console: Console) -> Status:
    """Run what is not finished yet.

    Raises:
        InputError: As `prepare` says, before the first run.
    """
    left, trials = prepare(sweep, options)
    with opened(options.out, left, options.fixed) as (folder, lock), _terminable():
        work = _Work(sweep=left, options=options, folder=folder, lock=lock, console=console)
        status = work(trials if left.method == "grid" else None)
        if any(outcome.value is not None for outcome in work.outcomes.values()):
            # With its plots, which a sweep that is refused needs not.
            from dpfedmeta.cli.sweeps.results import PAGE, TABLE, results_table, write_results

            console.print(results_table(write_results(folder.path)))
            work.say(f"results: {folder.path / PAGE}, and {TABLE} beside it")
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
    folder: SweepFolder
    lock: int
    console: Console
    running: dict[str, tuple[Trial, subprocess.Popen[bytes], float]] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    failed: list[Trial] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    total: int = 0
    heart: Heartbeat = field(init=False)
    mark: float = EVERY_SECONDS

    def __post_init__(self) -> None:
        self.heart = Heartbeat(
            say=lambda text: self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        ).started()
        self.say = self.heart.told

    def __call__(self, listed: tuple[Trial, ...] | None) -> Status:
        """Until the list or the run_cap ends."""
        self.total = len(listed) if listed is not None else self.sweep.run_cap or 0
        self.say(f"{self.total} runs, {self.options.jobs} at a time, in {self.options.out}")
        noted = {} if listed else self.folder.proposed()
        try:
            for number in range(self.total):
                while len(self.running) >= self.options.jobs:
                    self._reap()
                past = [outcome for outcome in self.outcomes.values() if outcome.trial not in self.failed]
                self._begin(listed[number] if listed else propose(number, self.sweep, self.options.fixed, past, noted))
            while self.running:
                self._reap()
        except KeyboardInterrupt:
            self._stop()
            return "interrupted"
        except BaseException:
            # Whatever ended it: children that nobody waits for would train, and be charged, on.
            self._stop()
            raise
        return "failed" if self.failed else "completed"

    def _begin(self, trial: Trial) -> None:
        if trial.name in self.outcomes:  # a search over few values proposes some of them again
            return
        self.outcomes[trial.name] = Outcome(trial=trial, value=None)
        if self.folder.run(trial).path.exists():
            reason = why_not_finished(self.folder, trial)
            if reason is None:
                self._finish(trial, f"{trial.name}: finished before")
                return
            self.say(f"{trial.name}: set aside in {self.folder.put_aside(trial)}, {reason}; it is run again")
        # A child that nobody knows would train on behind an interrupted sweep.
        with deferred():
            self.folder.note(trial)
            with self.folder.log(trial).open("wb") as log:
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

    def _reap(self) -> None:
        ended = [name for name, (_, child, _) in self.running.items() if child.poll() is not None]
        if not ended:
            time.sleep(_POLL_SECONDS)
            # Nothing of their rounds, at 10, 20, 50, 100 s ...: lines in even steps would count what `at_most` hides.
            quiet = self.heart.clock() - self.heart.last
            if quiet > self.mark:
                self.heart.say(f"running: {', '.join(self.running)}")
            self.mark = coarse(max(quiet, EVERY_SECONDS))
        for name in ended:
            trial, child, begun = self.running.pop(name)
            self._note_end(trial)
            taken = time.monotonic() - begun
            failed = f"failed with exit code {child.returncode}"
            reason = failed if child.returncode else why_not_finished(self.folder, trial)
            if reason is None:
                hidden = bool(self.folder.run(trial).read_json(SUMMARY).get("times"))
                self.seconds.append(coarse(taken) if hidden else taken)
                self._finish(trial, f"{name}: {at_most(taken) if hidden else clock(taken)}")
            else:
                self.failed.append(trial)
                self.say(f"{name}: {reason}: {_last_line(self.folder.log(trial))}")

    def _note_end(self, trial: Trial) -> None:
        if not self.folder.run(trial).path.exists():
            self.folder.note(trial, began=False)

    def _finish(self, trial: Trial, text: str) -> None:
        from dpfedmeta.reporting.compare.seed_groups import last_validation

        value = last_validation(self.folder.run(trial).rounds())
        self.outcomes[trial.name] = Outcome(trial=trial, value=value.mean if value else None)
        done = sum(outcome.value is not None for outcome in self.outcomes.values())
        shown = f", validation {100 * value.mean:.1f}% ± {100 * value.ci95:.1f}" if value else ""
        left = ""
        if self.seconds and done < self.total:
            mean = sum(self.seconds) / len(self.seconds)
            left = f"; about {clock((self.total - done) * mean / self.options.jobs)} left"
        self.say(f"[{done}/{self.total}] {text}{shown}{left}")

    def _stop(self) -> None:
        """Ask every child to stop, wait, and say how to go on."""
        for _, child, _ in self.running.values():
            _signal(child, signal.SIGINT)
        self.say(f"stopping {len(self.running)} runs")
        until = time.monotonic() + _PATIENCE_SECONDS
        for _, child, _ in self.running.values():
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                until = 0.0  # a second Ctrl-C: no more patience
            finally:
                _signal(child, signal.SIGKILL)
        for trial, _, _ in self.running.values():
            self._note_end(trial)
        self.say("to continue, use the same command: finished runs are kept, stopped ones are set aside and run again")


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
