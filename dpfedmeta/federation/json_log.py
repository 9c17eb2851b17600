"""One JSON object a line, in place of text for people: for whatever collects the logs of servers and clients."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.training.tracking.callbacks import Callback, Row

if TYPE_CHECKING:
    from dpfedmeta.training.tracking.plan_summary import Planned


class JsonLog(Callback):
    """Events of a run and sentences for people, each a line with `time` (UTC) and `event`.

    Args:
        write: Writes a line.

    Guarantee:
        Holds what a terminal shows: the plan, rows of rounds.jsonl, and sentences. Its times tell when rounds end, as
        those of a terminal do, so it is for the operator alone where a cohort's size is secret.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write, self._lock = write, threading.Lock()

    def say(self, text: str) -> None:
        """Log a sentence."""
        self._line("message", text=text)

    def on_plan(self, planned: Planned) -> None:
        """Log the plan and its guarantees."""
        cells = [guarantee.as_json() for guarantee in planned.guarantees]
        self._line("plan", algo=planned.settings.algo, rounds=planned.rounds, guarantees=cells)

    def on_start(self, path: Path) -> None:
        """Log the run directory."""
        self._line("start", run=str(path))

    def on_remark(self, text: str) -> None:
        """Log a sentence."""
        self.say(text)

    def on_round(self, row: Row) -> None:
        """Log a row of rounds.jsonl."""
        self._line("round", **row)

    def on_rewind(self, round_: int) -> None:
        """Log that rounds are done again."""
        self._line("rewind", round=round_)

    def on_end(self, summary: Row) -> None:
        """Log how the run ended."""
        said = {name: summary.get(name) for name in ("status", "rounds", "accuracy", "guarantees")}
        self._line("end", **said)

    def _line(self, event: str, **content: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with self._lock:
            self._write(json.dumps(finite({"time": now, "event": event, **content}), allow_nan=False, default=str))


def finite(value: Any) -> Any:
    """The same with null for infinity and NaN, which JSON does not have."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {key: finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
