"""Trackers of released quantities. A tracker sees rows of plain numbers, never a bounded value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfedmeta.durable import cut_torn_line
from dpfedmeta.errors import InputError
from dpfedmeta.run_directory import ROUNDS, RunDirectory, append_lines, write_text
from dpfedmeta.tracking.callbacks import Callback, Row
from dpfedmeta.tracking.flat import flat


class JsonLines(Callback):
    """rounds.jsonl."""

    def __init__(self, run: Path) -> None:
        self._run = RunDirectory(run)
        self._path = run / ROUNDS
        append_lines(self._path, [])  # a run that ends before its first round has the file too
        cut_torn_line(self._path)
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


class TensorBoard(Callback):
    """The same rows as event files, where a step's later value stands; without `timed`, a row's time is its round."""

    def __init__(self, run: Path, *, timed: bool = True) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("track.tensorboard: install it with pip install 'dpfedmeta[tensorboard]'") from error
        self._writer: Any = SummaryWriter(str(run / "tensorboard"))
        self._timed = timed

    def on_round(self, row: Row) -> None:
        """One step."""
        for name, value in flat(row).items():
            if isinstance(value, float | int):
                self._writer.add_scalar(name, value, row["round"], None if self._timed else float(row["round"]))

    def on_end(self, summary: Row) -> None:
        """Close the file."""
        self._writer.close()
