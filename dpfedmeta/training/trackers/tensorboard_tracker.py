"""Rows of a run as TensorBoard's event files, in the run directory."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from dpfedmeta.config.run_settings import TrackSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.training.trackers import Tracked
from dpfedmeta.training.tracking.callbacks import Callback, Row
from dpfedmeta.training.tracking.flatten_rows import flat


class TensorBoard(Callback):
    """The same rows as event files, where a step's later value stands; without `timed`, a row's time is its round.

    Guarantee:
        Without `timed` neither a record nor the file's name tells the clock: the time at which the files begin would,
        with that of the run's end, say to the second how long cohorts took.
    """

    def __init__(self, run: Path, *, timed: bool = True) -> None:
        from torch.utils.tensorboard import SummaryWriter

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


class TensorBoardTracker:
    """Tracker of `track.tensorboard`, or `tensorboard` in `track.to`."""

    @staticmethod
    def check(settings: TrackSettings, say: Callable[[str], None]) -> None:
        """Refuse to begin without TensorBoard.

        Raises:
            InputError: It is not installed.
        """
        try:
            import_module("torch.utils.tensorboard")
        except ImportError as error:
            raise InputError(
                "track.tensorboard: TensorBoard is not installed; type: pip install 'dpfedmeta[tensorboard]'"
            ) from error

    @staticmethod
    def opened(tracked: Tracked, say: Callable[[str], None]) -> Callback:
        """Begin the event file of this process."""
        return TensorBoard(tracked.run.path, timed=tracked.timed)


MEMBER = TensorBoardTracker
