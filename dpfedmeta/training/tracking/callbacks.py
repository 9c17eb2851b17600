"""Callbacks of a run. A callback sees a plan and rows of released numbers, never a bounded value."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.core.errors import InputError, OwnCodeFailed
from dpfedmeta.core.files.run_directory import ROUNDS, RunDirectory, append_lines, write_text

if TYPE_CHECKING:
    from dpfedmeta.training.tracking.plan_summary import Planned

Row = Mapping[str, Any]


class Callback:
    """Events of a run, in this order; inherit from it, and override the events that you want.

    Guarantee:
        Everything here is released or public: rows are those of rounds.jsonl, and a private run tells no exact time.
    """

    def on_plan(self, planned: Planned) -> None:
        """Receive the plan and its guarantees, before anything is written."""

    def on_start(self, path: Path) -> None:
        """The run directory is there; rounds begin, or go on."""

    def on_remark(self, text: str) -> None:
        """Receive a sentence for people, at any time."""

    def on_round(self, row: Row) -> None:
        """Receive the row of a round, as in rounds.jsonl."""

    def on_evaluation(self, split: str, done: float) -> None:
        """The share of an evaluation on public data that is done, from 0 to 1; `split`: "validation" or "test"."""

    def on_rewind(self, round_: int) -> None:
        """Rows from this round on are superseded: their rounds are done again and come out otherwise."""

    def on_end(self, summary: Row) -> None:
        """The end of the run, as in summary.json."""


_EVENTS = ("on_plan", "on_start", "on_remark", "on_round", "on_evaluation", "on_rewind", "on_end")


class CallbackFailed(OwnCodeFailed):
    """A callback of the caller's raised, and the run ended for it; `from` what it raised."""


def check_callbacks(callbacks: Iterable[Callback]) -> None:
    """Refuse what cannot be told anything, before it is too late.

    Raises:
        InputError: Names the object and what it lacks.
    """
    for callback in callbacks:
        lacking = [name for name in _EVENTS if not callable(getattr(callback, name, None))]
        if lacking or isinstance(callback, type):
            what = "is a class; hand over an object of it" if isinstance(callback, type) else f"has no {lacking[0]}"
            raise InputError(
                f"callbacks: {_name(callback)} {what}; inherit from dpfedmeta.Callback, which has all of "
                f"{', '.join(_EVENTS)}"
            )


def tell(callbacks: Sequence[Callback], event: str, *said: Any) -> None:
    """Tell every callback, each its own copy.

    Raises:
        CallbackFailed: One raised; the others were told all the same.
    """
    failed: CallbackFailed | None = None
    for callback in callbacks:
        heard: Callable[..., None] = getattr(callback, event)
        try:
            heard(*copy.deepcopy(said))
        except Exception as error:
            failed = failed or _failure(callback, event, error)
    if failed is not None:
        raise failed from failed.__cause__


def _failure(callback: Callback, event: str, error: Exception) -> CallbackFailed:
    words = " ".join(str(error).split())
    failed = CallbackFailed(f"callback {_name(callback)}.{event} raised {type(error).__name__}: {words}")
    failed.__cause__ = error
    return failed


def _name(callback: object) -> str:
    return callback.__qualname__ if isinstance(callback, type) else type(callback).__qualname__


class JsonLines(Callback):
    """rounds.jsonl."""

    def __init__(self, run: Path) -> None:
        self._run = RunDirectory(run)
        self._path = run / ROUNDS
        append_lines(self._path, [])  # a run that ends before its first round has the file too
        self._next = max((int(row.get("round", -1)) for row in self._run.rounds()), default=-1) + 1

    def on_round(self, row: Row) -> None:
        """Append one line; a round that was done again identically has its line already."""
        if row["round"] >= self._next:
            append_lines(self._path, [row])
            self._next = row["round"] + 1

    def on_rewind(self, round_: int) -> None:
        """Drop the superseded lines."""
        if round_ >= self._next:
            return
        kept = [row for row in self._run.rounds() if row["round"] < round_]
        write_text(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._next = round_
