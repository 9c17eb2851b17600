"""Trackers of released quantities. A tracker sees rows of plain numbers, never a bounded value."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Protocol

from dpfedmeta.errors import InputError
from dpfedmeta.tracking.run_directory import ROUNDS, append_lines

Row = Mapping[str, Any]


class Tracker(Protocol):
    """Receives one row a round and the summary at the end."""

    def log(self, row: Row) -> None:
        """One round."""
        ...

    def finish(self, summary: Row) -> None:
        """The end of the run."""
        ...


class JsonLines:
    """rounds.jsonl."""

    def __init__(self, run: Path) -> None:
        self._path = run / ROUNDS
        append_lines(self._path, [])  # a run that ends before its first round has the file too

    def log(self, row: Row) -> None:
        """Append one line."""
        append_lines(self._path, [row])

    def finish(self, summary: Row) -> None:
        """Nothing to close."""


class WeightsAndBiases:
    """The same rows on Weights & Biases; offline mode needs no login."""

    def __init__(self, run: Path, mode: Literal["offline", "online"], config: Mapping[str, Any]) -> None:
        import wandb

        try:
            self._run = wandb.init(project="dpfedmeta", name=run.name, mode=mode, dir=str(run), config=dict(config))
        except wandb.Error as error:
            raise InputError(
                f"track.wandb = {mode}: {' '.join(str(error).split())}; run `wandb login`, or use offline"
            ) from error

    def log(self, row: Row) -> None:
        """One step."""
        self._run.log(dict(flat(row)), step=int(row["round"]))

    def finish(self, summary: Row) -> None:
        """Write the summary and close."""
        self._run.summary.update(dict(flat(summary)))
        self._run.finish()


class TensorBoard:
    """The same rows as event files."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise InputError("track.tensorboard: install it with pip install 'dpfedmeta[tensorboard]'") from error
        self._writer: Any = SummaryWriter(str(run / "tensorboard"))

    def log(self, row: Row) -> None:
        """One step."""
        for name, value in flat(row).items():
            if isinstance(value, float | int):
                self._writer.add_scalar(name, value, int(row["round"]))

    def finish(self, summary: Row) -> None:
        """Close the file."""
        self._writer.close()


def flat(row: Row, prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by '/'."""
    result: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{name}/"))
        elif value is not None:
            result[f"{prefix}{name}"] = value
    return result
