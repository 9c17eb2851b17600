"""Rows of a run as lines of rounds.jsonl."""

from __future__ import annotations

import json
from pathlib import Path

from dpfedmeta.core.files.atomic_files import cut_torn_line
from dpfedmeta.core.files.run_directory import ROUNDS, RunDirectory, append_lines, write_text
from dpfedmeta.training.tracking.callbacks import Callback, Row


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
