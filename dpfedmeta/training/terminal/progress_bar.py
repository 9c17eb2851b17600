"""Progress of long work: bars, lines now and then, and the time that is left."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

from dpfedmeta.core.still_working import EVERY_SECONDS

if TYPE_CHECKING:
    from dpfedmeta.training.tracking.plan_summary import Planned

# A line is drawn again this often; a run has better things to compute.
_A_SECOND = 4


@dataclass(kw_only=True, eq=False)
class Heartbeat:
    """Says a line where nothing was said for ten seconds.

    Attributes:
        say: Where lines go.
        clock: Seconds that only grow.
        last: When something was said.

    Guarantee:
        When a line comes follows how long the work took, so nothing that follows a sampled cohort may be told by it.
    """

    say: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    last: float = field(default=float("-inf"))

    def started(self) -> Heartbeat:
        """Begin to count now, so that the first line comes after ten seconds."""
        self.last = self.clock()
        return self

    def beat(self, text: str) -> None:
        """Say it if it is time."""
        if self.clock() - self.last >= EVERY_SECONDS:
            self.told(text)

    def told(self, text: str) -> None:
        """Say it in any case."""
        self.say(text)
        self.last = self.clock()


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
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
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
        left = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        words = TextColumn("{task.fields[line]}", markup=False, table_column=left)
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


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Estimate of the time that a run still takes, from what is known of its speed.

    Attributes:
        rounds: T.
        every: A validation follows each so many rounds, and the last one.
        final_validations: How many validations the final evaluation takes as long as, about.
        done: Rounds that are done.
        speed: Clients per second, if known.
        round_seconds: Of a round without its validation; None: not known.
        timed: Rounds of which `round_seconds` is the mean; 0: it was measured on public data.
        validation_seconds: Of the last validation; None: there was none yet.

    Guarantee:
        Times of rounds come from rows, which have none in a private run: there the speed is what was measured on public
        data before round 0, and nothing here follows the sizes of cohorts. Evaluations run on public data.
    """

    rounds: int
    every: int
    final_validations: float
    done: int = 0
    speed: float | None = None
    round_seconds: float | None = None
    timed: int = 0
    validation_seconds: float | None = None

    @classmethod
    def of(cls, planned: Planned) -> Pace:
        """Before the first round."""
        measured = planned.minutes is not None and planned.rounds > 0
        return cls(
            rounds=planned.rounds,
            every=planned.settings.evaluation.every,
            final_validations=planned.final_validations,
            speed=planned.clients_per_second,
            round_seconds=60 * (planned.minutes or 0.0) / planned.rounds if measured else None,
        )

    def after_round(self, row: Mapping[str, Any]) -> Pace:
        """Once a round is done; of its row, the times that it tells."""
        done, seconds = row["round"] + 1, row.get("seconds")
        if seconds is None:
            return replace(self, done=done)
        before = self.timed * (self.round_seconds or 0.0)
        mean = (before + seconds) / (self.timed + 1)
        speed = row.get("clients_per_second", self.speed)
        return replace(self, done=done, speed=speed, round_seconds=mean, timed=self.timed + 1)

    @property
    def seconds_left(self) -> float | None:
        """Until the end of the final evaluation; None: not known. Without evaluations while none was measured."""
        if self.round_seconds is None:
            return None
        left = self.rounds - self.done
        # The last round is validated even where that is not its turn.
        validations = -(-self.rounds // self.every) - self.done // self.every
        evaluations = (validations if left else 0) + self.final_validations
        return left * self.round_seconds + evaluations * (self.validation_seconds or 0.0)

    @property
    def words(self) -> str:
        """The time left and the speed, for people."""
        if self.seconds_left is None:
            return ""
        least = "over " if self.validation_seconds is None else ""
        speed = f"  {'' if self.timed else 'about '}{self.speed:.0f} clients/s" if self.speed else ""
        return f"{least}{clock(self.seconds_left)} left{speed}"


def clock(seconds: float) -> str:
    """Two units are enough."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60:02d} min"
