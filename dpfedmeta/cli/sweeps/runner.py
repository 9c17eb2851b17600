"""Runs the trials of a sweep, several at a time, each a `dpfedmeta train` of its own."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.cli.arguments import terminate_like_ctrl_c
from dpfedmeta.cli.sweeps.sweep_file import (
    CHOICES,
    SET_BY_THE_SWEEP,
    Sweep,
    Trial,
    Value,
    make_trial,
    propose,
    trials_of,
    without_fixed,
)
from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder, SweepOptions, check_same, is_finished, opened
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.dotted_keys import flattened
from dpfedmeta.config.load import resolve
from dpfedmeta.config.run_settings import EvaluationSettings, RunSettings, TrackSettings
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import CONFIG, SUMMARY
from dpfedmeta.core.pydantic_errors import YAML_ERRORS, read_yaml
from dpfedmeta.core.signals import deferred
from dpfedmeta.core.still_working import EVERY_SECONDS
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.planning.client_spec import check_protocol
from dpfedmeta.planning.early_checks import check_registered
from dpfedmeta.planning.policy_from_settings import clip_policy
from dpfedmeta.planning.privacy.solve import make_privacy
from dpfedmeta.training.state.private_timings import at_most, coarse
from dpfedmeta.training.state.resume import edited_since
from dpfedmeta.training.terminal.progress_bar import Heartbeat, clock

Status = Literal["completed", "failed", "interrupted"]

_POLL_SECONDS = 0.2
# A run that is told to stop finishes its round and writes a checkpoint.
_PATIENCE_SECONDS = 120.0
# What does not change a result, so a finished run stays finished when it changes.
_OF_NO_ACCOUNT = (
    *("run.name", "run.dir", "run.workers", "run.device"),
    *(f"track.{name}" for name in ("to", "wandb", "project", "entity", "group", "tags", "model", "tensorboard")),
)
_SPEED = re.compile(r"at\s+(\d+(?:\.\d+)?)\s+clients/s")


def prepare(
    sweep: Sweep, options: SweepOptions, *, private: bool = False
) -> tuple[Sweep, tuple[Trial, ...], dict[str, PrivacyPlan]]:
    """Check everything that can be checked before the first run.

    Returns:
        What is left to sweep; its trials: all of a grid, or for a search the combinations at its borders; the privacy
        plan of each, by the name of its run.

    Raises:
        InputError: A combination would be refused, Optuna is missing for a search, or the folder holds another sweep.
    """
    if own := next((name for name in options.fixed if name in SET_BY_THE_SWEEP), None):
        raise InputError(f"{own}: the sweep sets it for each run; leave it out (--out names the folder of the sweep)")
    left = without_fixed(sweep, options.fixed)
    if left.method != "grid" and find_spec("optuna") is None:
        raise InputError(
            f"method = {left.method}: searches need Optuna, which is not installed; type: {sys.executable} -m pip "
            "install 'dpfedmeta[search]' (in a checkout -c constraints.txt -e '.[search]'), or use method: grid"
        )
    trials = trials_of(left, options.fixed)
    if options.launched and any("run.workers" in trial.options for trial in trials):
        raise InputError("run.workers: the ranks that --launch starts are the workers; leave out run.workers")
    check_same(options.out, left, options.fixed, private=private)
    return left, trials, check(trials)


def settings_of(trial: Trial) -> Settings:
    """Return the settings that train.py will make of a trial's options.

    Raises:
        InputError: It would refuse them.
    """
    options = trial.options
    chosen = {name: options.pop(name, None) for name in CHOICES}
    file = Path(chosen["config"]) if chosen["config"] else None
    return resolve(chosen["algo"], chosen["dataset"], file, options)


def check(trials: Iterable[Trial]) -> dict[str, PrivacyPlan]:
    """Resolve every trial as train.py will: settings, noise, clip policy, task.

    Returns:
        The privacy plan of each, by the name of its run.

    Raises:
        InputError: A run would be refused; says which one.
    """
    plans: dict[Settings, PrivacyPlan] = {}
    found = {}
    for trial in trials:
        try:
            settings = settings_of(trial)
            _check_task(settings)
            # Seeds share a plan.
            shared = replace(settings, run=RunSettings(), evaluation=EvaluationSettings(), track=TrackSettings())
            if shared not in plans:
                plans[shared] = _planned(shared)
            clip_policy(settings, plans[shared])
        except InputError as error:
            values = ", ".join(f"{name}={value}" for name, value in trial.parameters.items())
            raise InputError(f"{error} (in the combination {values})") from error
        found[trial.name] = plans[shared]
    return found


def _check_task(settings: Settings) -> None:
    check_registered(settings)
    task = task_of(settings)[0]
    if targets_of(task).numbers:
        raise InputError(
            f"dataset = {settings.dataset}: predicts numbers, and a sweep chooses by accuracy on validation classes; "
            "train each setting by itself and compare validation_error"
        )
    check_protocol(settings, task)


def _planned(settings: Settings) -> PrivacyPlan:
    """Return the privacy plan; a run that begins with a private start also has that start's charge in it."""
    if settings.clip.start == "given":
        return make_privacy(settings, task_of(settings)[0])
    from dpfedmeta.analytics.initial_clip_bound import planned_after_start

    return planned_after_start(settings)


def same_result(settings: Settings, written: Mapping[str, Any]) -> str | None:
    """Compare with the config.yaml of a run; settings that only one of them knows are of another version and pass.

    Returns:
        The first difference in words, or None.
    """
    before = dict(flattened(written))
    if settings.clip.start != "given":
        settings = _started(settings, before)
    for name, value in flattened(asdict(settings)):
        now = list(value) if isinstance(value, tuple) else value
        if name in before and name not in _OF_NO_ACCOUNT and before[name] != now:
            return f"{name} was {before[name]}, now it is {now}"
    return None


def _started(settings: Settings, before: Mapping[str, Any]) -> Settings:
    """A run that began with an analysis has its answer and its folder in what was written."""
    spent, asked = [*(before.get("privacy.spent_before") or ())], settings.privacy.spent_before
    if before.get("clip.start") != "given" or len(spent) != len(asked) + 1:
        return settings
    return replace(
        settings,
        clip=replace(settings.clip, start="given", initial=before.get("clip.initial", settings.clip.initial)),
        privacy=replace(settings.privacy, spent_before=(*asked, spent[-1])),
    )


def show_plan(sweep: Sweep, options: SweepOptions, console: Console) -> None:
    """Print the commands of what is not finished, and the time they need.

    The speed is measured by one `dpfedmeta train --dry-run`, which also finds what only the data can show to be wrong.

    Raises:
        InputError: A run would be refused.
    """
    left, trials, plans = prepare(sweep, options)
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
        clients = sum(plans[trial.name].expected_participations for trial in waiting) * count / len(waiting)
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
    left, trials, _ = prepare(sweep, options)
    terminate_like_ctrl_c()
    with opened(options.out, left, options.fixed) as (folder, lock):
        work = _Work(sweep=left, options=options, folder=folder, lock=lock, console=console)
        status = work(trials if left.method == "grid" else None)
        if work.done:
            # With its plots, which a sweep that is refused needs not.
            from dpfedmeta.cli.sweeps.results import PAGE, TABLE, results_table, write_results

            console.print(results_table(write_results(folder.path)))
            work.say(f"results: {folder.path / PAGE}, and {TABLE} beside it")
        return status


@dataclass(kw_only=True)
class _Work:
    """The state of a running sweep; of each trial its values, and its accuracy: None while it runs, or if it failed."""

    sweep: Sweep
    options: SweepOptions
    folder: SweepFolder
    lock: int
    console: Console
    running: dict[str, tuple[Trial, subprocess.Popen[bytes], float]] = field(default_factory=dict)
    reached: dict[str, tuple[Mapping[str, Value], float | None]] = field(default_factory=dict)
    failed: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    total: int = 0
    heart: Heartbeat = field(init=False)
    mark: float = EVERY_SECONDS

    def __post_init__(self) -> None:
        self.heart = Heartbeat(
            say=lambda text: self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        ).started()
        self.say = self.heart.told

    @property
    def done(self) -> int:
        """How many trials have an accuracy."""
        return sum(accuracy is not None for _, accuracy in self.reached.values())

    def __call__(self, listed: tuple[Trial, ...] | None) -> Status:
        """Until the list or the run_cap ends.

        A search that was interrupted proposes what is noted of it again, by the trial's number: a draw is seeded with
        its number, but bayes also goes by which runs had ended.
        """
        self.total = len(listed) if listed is not None else self.sweep.run_cap or 0
        self.say(f"{self.total} runs, {self.options.jobs} at a time, in {self.options.out}")
        proposed = {} if listed else {noted.number: noted.parameters for noted in self.folder.noted().values()}
        try:
            for number in range(self.total):
                while len(self.running) >= self.options.jobs:
                    self._reap()
                if listed:
                    self._begin(listed[number])
                    continue
                past = [self.reached[name] for name in self.reached if name not in self.failed]
                values = proposed.get(number) or propose(number, self.sweep, past)
                self._begin(make_trial(number, self.sweep, values, self.options.fixed))
            while self.running:
                self._reap()
        except BaseException as error:
            # Whatever ended it: children that nobody waits for would train, and be charged, on.
            self._stop()
            if not isinstance(error, KeyboardInterrupt):
                raise
            return "interrupted"
        return "failed" if self.failed else "completed"

    def _begin(self, trial: Trial) -> None:
        if trial.name in self.reached:  # a search over few values proposes some of them again
            return
        self.reached[trial.name] = trial.parameters, None
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
                    preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
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
                self.failed.add(name)
                self.say(f"{name}: {reason}: {_last_line(self.folder.log(trial))}")

    def _note_end(self, trial: Trial) -> None:
        if not self.folder.run(trial).path.exists():
            self.folder.note(trial, began=False)

    def _finish(self, trial: Trial, text: str) -> None:
        from dpfedmeta.reporting.compare.seed_groups import last_validation

        value = last_validation(self.folder.run(trial).rounds())
        self.reached[trial.name] = trial.parameters, value.mean if value else None
        shown = f", validation {100 * value.mean:.1f}% ± {100 * value.ci95:.1f}" if value else ""
        left = ""
        if self.seconds and self.done < self.total:
            mean = sum(self.seconds) / len(self.seconds)
            left = f"; about {clock((self.total - self.done) * mean / self.options.jobs)} left"
        self.say(f"[{self.done}/{self.total}] {text}{shown}{left}")

    def _stop(self) -> None:
        """Ask every child to stop, wait, and say how to go on."""
        for _, child, _ in self.running.values():
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGINT)
        self.say(f"stopping {len(self.running)} runs")
        until = time.monotonic() + _PATIENCE_SECONDS
        for _, child, _ in self.running.values():
            try:
                child.wait(max(0.0, until - time.monotonic()))
            except (subprocess.TimeoutExpired, KeyboardInterrupt):
                until = 0.0  # a second Ctrl-C: no more patience
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
        for trial, _, _ in self.running.values():
            self._note_end(trial)
        self.say("to continue, use the same command: finished runs are kept, stopped ones are set aside and run again")


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    # A launcher says more behind it.
    said = [line for line in lines if line.startswith("error: ")] or lines
    return f"{said[-1] if said else 'nothing printed'} (all of it in {log})"
