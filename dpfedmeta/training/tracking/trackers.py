"""Trackers of released quantities. A tracker sees rows of plain numbers, never a bounded value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import cut_torn_line
from dpfedmeta.core.files.run_directory import ROUNDS, RunDirectory, append_lines, write_text
from dpfedmeta.training.tracking.callbacks import Callback, Row
from dpfedmeta.training.tracking.flatten_rows import flat


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
    """The same rows as event files, where a step's later value stands; without `timed`, a row's time is its round.

    Guarantee:
        Without `timed` neither a record nor the file's name tells the clock: the time at which the files begin would,
        with that of the run's end, say to the second how long cohorts took.
    """

    def __init__(self, run: Path, *, timed: bool = True) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("track.tensorboard: install it with pip install 'dpfedmeta[tensorboard]'") from error
        folder = run / "tensorboard"
        self._writer: Any = SummaryWriter(str(folder)) if timed else _Timeless(folder)
        self._timed = timed

    def on_round(self, row: Row) -> None:
        """Write the numbers of a row as a step."""
        for name, value in flat(row).items():
            if isinstance(value, float | int):
                self._writer.add_scalar(name, value, row["round"], None if self._timed else float(row["round"]))

    def on_end(self, summary: Row) -> None:
        """Close the file."""
        self._writer.close()


class _Timeless:
    """An event file without the clock: TensorBoard's own writer puts it into the name and the first record."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        # A run that goes on has a file for each process; TensorBoard reads them in the order of their names.
        number = sum(1 for _ in folder.glob("events.out.tfevents.*"))
        self._records: Any = RecordWriter((folder / f"events.out.tfevents.{number:010d}.dpfedmeta").open("xb"))
        self._write(Event(wall_time=0.0, file_version="brain.Event:2"))

    def add_scalar(self, name: str, value: float, step: int, when: float) -> None:
        """Write a number, with `when` as its time."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        one = Summary(value=[Summary.Value(tag=name, simple_value=value)])
        self._write(Event(wall_time=when, step=step, summary=one))

    def close(self) -> None:
        """Whole."""
        self._records.close()

    def _write(self, event: Any) -> None:
        self._records.write(event.SerializeToString())
        self._records.flush()
