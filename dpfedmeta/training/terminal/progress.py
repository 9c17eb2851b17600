"""Terminal output: the plan before training, progress during it, the result after it."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.text import Text

from dpfedmeta.accounting.ledger.ledger import read_content, spent
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.core.files.run_directory import DIVERGED, RunDirectory
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.planning.caveats import word_of_authors
from dpfedmeta.training.state.private_timings import at_most
from dpfedmeta.training.terminal.progress_bar import Bar, Heartbeat, Pace, bar, clock, is_log
from dpfedmeta.training.terminal.tables import accuracy_table, error_table, guarantee_table, lost_words
from dpfedmeta.training.tracking.callbacks import Callback, Row
from dpfedmeta.training.tracking.plan_summary import Planned

COMMAND = "dpfedmeta train --resume {quoted}"


class Terminal(Callback):
    """Prints: a line at every validation, and a bar where there is a screen or a notebook; in a log, lines for rounds.

    As a context it takes the bar away however the run ends, so that what is said of an error stands alone.
    """

    def __init__(self, console: Console, resume: str = COMMAND) -> None:
        """`resume` says how to go on with the run at {path}, or in a shell at {quoted}."""
        self._console, self._resume = console, resume
        self._started = time.perf_counter()
        self._pace: Pace | None = None
        self._word: str | None = None
        self._relation = ""
        self._spent = ""
        self._evaluation_began = 0.0
        self._log = is_log(console)
        self._heart = Heartbeat(say=self._say)
        self._bar: Bar | None = None
        self._path = Path()

    def on_plan(self, planned: Planned) -> None:
        """The plan, its guarantees and its cautions."""
        self._pace, self._word = Pace.of(planned), word_of_authors(planned.settings)
        self._relation = next((f" ({cell.adjacency})" for cell in planned.guarantees if cell.unit == "record"), "")
        title = Text.assemble((planned.settings.algo, "bold"), f" on {planned.dataset}")
        self._console.print(title, highlight=False, soft_wrap=True)
        room = planned.room and planned.room.words
        for line in filter(None, (*planned.noise, *planned.network, planned.begins_with, planned.clients, room)):
            self._say(f"  {line}")
        if planned.minutes is not None:
            self._say(
                f"  about {clock(60 * planned.minutes)} of training at {planned.clients_per_second:.0f} clients/s, "
                "then the evaluation on test classes"
            )
        self._console.print(guarantee_table(planned.guarantees, "What is promised, before round 0", word=self._word))
        for caution in planned.cautions:
            self._console.print(f"note: {caution}", style="yellow", highlight=False, soft_wrap=True)
        if planned.simulation:
            self._console.print(planned.simulation, style="bold yellow")

    def on_start(self, path: Path) -> None:
        """Show the bar."""
        self._path = path
        if self._pace is not None:
            self._bar = bar(self._console, self._pace.rounds)
            self._show(self._pace.words)

    def on_remark(self, text: str) -> None:
        """A line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def on_round(self, row: Row) -> None:
        """Show the round in the bar, and print a line if it was validated."""
        epsilons = row["epsilons"]
        line = (
            f"clip {_short(row['clip'])}{_mode(row)}  eps client/public {rounded_up(epsilons['client_public'])}"
            f"  record/server {rounded_up(epsilons['record_server'])}{self._relation}{_outcome(row)}"
        )
        self._spent = _spent(row)
        if self._pace is not None:
            self._pace = self._pace.after_round(row)
            self._show(self._pace.words)
        if "validation_accuracy" in row:
            validation = row["validation_accuracy"]
            self._say(
                f"round {row['round'] + 1:5d}  validation {100 * validation['mean']:.1f}% "
                f"± {100 * validation['ci95']:.1f}  {line}"
            )
        elif "validation_error" in row:
            validation = row["validation_error"]
            found = f"{validation['mean']:.4g} ± {validation['ci95']:.2g}"
            self._say(f"round {row['round'] + 1:5d}  validation error {found}  {line}")
        elif self._log:
            self._told_in_a_log(row)

    def _told_in_a_log(self, row: Row) -> None:
        """A line per round, or per ten seconds where rows tell their times: elsewhere lines must not follow them."""
        rounds = "" if self._pace is None else f" of {self._pace.rounds}"
        line = f"round {row['round'] + 1:5d}{rounds}  {self._spent}{_outcome(row)}".rstrip()
        if row.get("seconds") is not None:
            self._heart.beat(line)
        else:
            self._say(line)

    def on_evaluation(self, split: str, done: float) -> None:
        """Show the progress of an evaluation, and time validations; their time is that of public data."""
        now = time.perf_counter()
        if not done:
            self._evaluation_began = now
        if split == "validation" and done == 1 and self._pace is not None:
            self._pace = replace(self._pace, validation_seconds=now - self._evaluation_began)
        words = f"{split} classes: {100 * done:.0f}% evaluated"
        self._show(words)
        if self._log and split == "test":
            # Of public data: how long it takes tells of no cohort.
            self._heart.beat(words)

    def on_end(self, summary: Row) -> None:
        """Take the bar away; what was reached and spent."""
        self.close()
        if summary.get("accuracy") is not None:
            self._console.print(accuracy_table(summary))
        elif summary.get("error") is not None:
            self._console.print(error_table(summary))
        if (words := lost_words(summary)) is not None:
            self._console.print(words, style="yellow", highlight=False, markup=False)
        ledger = read_content(RunDirectory(self._path).ledger, torn=True)
        cells = spent(ledger.plan, ledger.charges)
        self._console.print(guarantee_table(cells, "What was spent, from the ledger", word=self._word))
        seconds = time.perf_counter() - self._started
        minutes = f"{clock(seconds)} in all"
        if summary["times"]:
            minutes = f"{at_most(seconds)} in all (rounded up, because exact times reveal cohorts)"
        done = ""
        if summary["status"] in ("interrupted", DIVERGED):
            done = f"{summary['rounds']} of {counted_words(ledger.plan.rounds, 'round')}, "
        self._say(f"{summary['status']} after {done}{minutes}; all files are in {self._path}")
        if summary["status"] == "interrupted":
            path = str(self._path)
            self._say(f"go on with: {self._resume.format(path=path, quoted=shlex.quote(path))}")

    def close(self) -> None:
        """Take the bar away, if it is there."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _show(self, words: str) -> None:
        if self._bar is not None and self._pace is not None:
            self._bar.update(self._pace.done, "  ".join(filter(None, (words, self._spent))))

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


def _spent(row: Row) -> str:
    """The cells that hold something, in few words."""
    held = {name: epsilon for name, epsilon in row["epsilons"].items() if epsilon is not None}
    return "  ".join(f"eps {name.replace('_', '/')} {rounded_up(epsilon)}" for name, epsilon in held.items())


def _mode(row: Mapping[str, Any]) -> str:
    """Return the state of an adaptive clip policy; `holding` where noise hides the signal."""
    return "" if row["clip_mode"] == "constant" else f" ({row['clip_mode']})"


def _outcome(row: Mapping[str, Any]) -> str:
    """Return the speed of the round, where the row has it, or that it was aborted."""
    if row.get("aborted"):
        return "  aborted"
    return f"  {row['clients_per_second']:.0f} clients/s" if "clients_per_second" in row else ""


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
