"""Progress bars: the last line of a terminal, or one line of a notebook's cell."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from dpfedmeta.training.terminal.heartbeat import Heartbeat

# A line is drawn again this often; a run has better things to compute.
_A_SECOND = 4


class Bar(Protocol):
    """Shows how far a run is."""

    def update(self, done: int, line: str) -> None:
        """So many rounds are done; the rest in words."""
        ...

    def stop(self) -> None:
        """Take it away."""
        ...


def bar(console: Console, rounds: int) -> Bar:
    """A bar for where the console writes; nothing where nobody looks."""
    return _CellBar(rounds) if console.is_jupyter else _LineBar(console, rounds)


@contextmanager
def share_bar(console: Console) -> Iterator[Callable[[str, float], None]]:
    """For work that says what it does and which share of it is done: a bar, or where nobody looks, lines of a log."""
    if is_log(console):
        yield _lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
    with _progress(console, *columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=1.0, visible=False)
        shown = ""

        def tell(what: str, done: float) -> None:
            nonlocal shown
            if what != shown or not done:
                # Its time is measured from here.
                progress.reset(task, description=what, visible=True)
                shown = what
            progress.update(task, completed=done)

        yield tell


def is_log(console: Console) -> bool:
    """Tell whether output goes to a file or a pipe, where no bar can be drawn."""
    return not console.is_terminal and not console.is_jupyter


def _lines(console: Console) -> Callable[[str, float], None]:
    heart = Heartbeat(say=lambda line: console.print(line, highlight=False, soft_wrap=True, markup=False))
    return lambda what, done: heart.beat(f"{what}: {100 * done:.0f}%")


def _progress(console: Console, *columns: ProgressColumn, expand: bool = False) -> Progress:
    silent = console.is_jupyter or console.is_dumb_terminal or not console.is_terminal
    return Progress(
        *columns, console=console, transient=True, disable=silent, refresh_per_second=_A_SECOND, expand=expand
    )


class _LineBar:
    """The last line of a terminal."""

    def __init__(self, console: Console, rounds: int) -> None:
        # The words take what is left of the line, so that the count of rounds is whole on a narrow screen too.
        words = TextColumn("{task.fields[line]}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
        count = MofNCompleteColumn(table_column=Column(no_wrap=True))
        self._progress = _progress(console, TextColumn("round"), count, BarColumn(bar_width=12), words, expand=True)
        self._task = self._progress.add_task("rounds", total=rounds, line="")
        self._progress.start()

    def update(self, done: int, line: str) -> None:
        self._progress.update(self._task, completed=done, line=line)

    def stop(self) -> None:
        self._progress.stop()


class _CellBar:
    """Bar in one line of a notebook's cell, which is replaced; rich's own bar needs ipywidgets there."""

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
