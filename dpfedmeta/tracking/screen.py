"""What a person sees: the plan before training, progress during it, the result after it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from dpfedmeta.ledger.ledger import read_content, spent
from dpfedmeta.run_directory import RunDirectory
from dpfedmeta.runs.times import coarse
from dpfedmeta.tracking.callbacks import Callback, Row
from dpfedmeta.tracking.planned import Planned
from dpfedmeta.tracking.terminal import accuracy_table, guarantee_table, number

COMMAND = "dpfedmeta train --resume {path}"


class Terminal(Callback):
    """Prints: a line at every validation, and a bar where there is a screen or a notebook."""

    def __init__(self, console: Console, resume: str = COMMAND) -> None:
        """`resume` says how to go on with the run at {path}."""
        self._console, self._resume = console, resume
        self._started = time.perf_counter()
        self._rounds, self._timed = 0, False
        self._bar: Bar | None = None
        self._path = Path()

    def on_plan(self, planned: Planned) -> None:
        """The plan, its guarantees and its cautions."""
        self._rounds, self._timed = planned.rounds, not planned.hides_times
        self._console.print(
            f"[bold]{planned.settings.algo}[/bold] on {planned.dataset}", highlight=False, soft_wrap=True
        )
        for line in filter(None, (*planned.noise, *planned.network, planned.begins_with, planned.clients)):
            self._say(f"  {line}")
        if planned.minutes is not None:
            self._say(
                f"  about {planned.minutes:.1f} minutes of training at {planned.clients_per_second:.0f} clients/s, "
                "then the evaluation on test classes"
            )
        self._console.print(guarantee_table(planned.guarantees, "What is promised, before round 0"))
        for caution in planned.cautions:
            self._console.print(f"note: {caution}", style="yellow", highlight=False, soft_wrap=True)
        if planned.simulation:
            self._console.print(planned.simulation, style="bold yellow")

    def on_start(self, path: Path) -> None:
        """Show the bar."""
        self._path = path
        self._bar = bar(self._console, self._rounds, timed=self._timed)

    def on_remark(self, text: str) -> None:
        """A line."""
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)

    def on_round(self, row: Row) -> None:
        """One round."""
        epsilons = row["epsilons"]
        line = (
            f"clip {_short(row['clip'])}{_mode(row)}  eps client/public {number(epsilons['client_public'])}"
            f"  record/server {number(epsilons['record_server'])} (zero-out){_outcome(row)}"
        )
        if self._bar is not None:
            self._bar.update(row["round"] + 1, line)
        if "validation_accuracy" in row:
            validation = row["validation_accuracy"]
            self._say(
                f"round {row['round'] + 1:5d}  validation {100 * validation['mean']:.1f}% "
                f"± {100 * validation['ci95']:.1f}  {line}"
            )

    def on_end(self, summary: Row) -> None:
        """Take the bar away; what was reached and spent."""
        if self._bar is not None:
            self._bar.stop()
        if summary.get("accuracy") is not None:
            self._console.print(accuracy_table(summary))
        ledger = read_content(RunDirectory(self._path).ledger, torn=True)
        self._console.print(guarantee_table(spent(ledger.plan, ledger.charges), "What was spent, from the ledger"))
        seconds = time.perf_counter() - self._started
        minutes = f"at most {coarse(seconds) / 60:.2g}" if summary["times"] else f"{seconds / 60:.1f}"
        self._say(f"{summary['status']} after {minutes} minutes in all; everything is in {self._path}")
        if summary["status"] == "interrupted":
            self._say(f"go on with: {self._resume.format(path=str(self._path))}")

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True)


class Bar(Protocol):
    """Shows how far a run is."""

    def update(self, done: int, line: str) -> None:
        """So many rounds are done; the latest in words."""
        ...

    def stop(self) -> None:
        """Take it away."""
        ...


def bar(console: Console, rounds: int, *, timed: bool) -> Bar:
    """A bar for where the console writes; nothing where nobody looks. With `timed` it says how long it will take."""
    return _CellBar(rounds) if console.is_jupyter else _LineBar(console, rounds, timed=timed)


class _LineBar:
    """The last line of a terminal."""

    def __init__(self, console: Console, rounds: int, *, timed: bool) -> None:
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[line]}"),
            *((TimeRemainingColumn(),) if timed else ()),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("rounds", total=rounds, line="")
        self._progress.start()

    def update(self, done: int, line: str) -> None:
        self._progress.update(self._task, completed=done, line=line)

    def stop(self) -> None:
        self._progress.stop()


class _CellBar:
    """One line of a notebook's cell, which is replaced; rich's own bar needs ipywidgets there."""

    def __init__(self, rounds: int) -> None:
        self._display: Any = importlib.import_module("IPython.display")
        self._rounds = rounds
        self._shown: Any = self._display.display(self._text(0, ""), display_id=True)

    def update(self, done: int, line: str) -> None:
        self._shown.update(self._text(done, line))

    def stop(self) -> None:
        self._shown.update(self._display.HTML(""))

    def _text(self, done: int, line: str) -> Any:
        return self._display.HTML(
            f'<progress value="{done}" max="{self._rounds}"></progress> round {done}/{self._rounds} <code>{line}</code>'
        )


def _mode(row: Mapping[str, Any]) -> str:
    """What an adaptive policy is doing; `holding` where noise hides the signal."""
    return "" if row["clip_mode"] == "constant" else f" ({row['clip_mode']})"


def _outcome(row: Mapping[str, Any]) -> str:
    """How fast the round was, where the row tells it."""
    if row.get("aborted"):
        return "  aborted"
    return f"  {row['clients_per_second']:.0f} clients/s" if "clients_per_second" in row else ""


def _short(value: float | None) -> str:
    return "none" if value is None else f"{value:.3g}"
