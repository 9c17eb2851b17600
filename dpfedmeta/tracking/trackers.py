"""Trackers of released quantities. A tracker sees rows of plain numbers, never a bounded value."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from dpfedmeta.durable import cut_torn_line
from dpfedmeta.errors import InputError
from dpfedmeta.run_directory import ROUNDS, RunDirectory, append_lines, write_text
from dpfedmeta.tracking.callbacks import Callback, Row


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


class WeightsAndBiases(Callback):
    """The same rows on Weights & Biases; offline mode needs no login. What was sent stays, even if it is superseded."""

    def __init__(
        self, run: Path, mode: Literal["offline", "online"], config: Mapping[str, Any], identity: str | None = None
    ) -> None:
        import wandb

        # A resumed run goes on where it was; offline runs cannot, and stand beside each other.
        same: dict[str, Any] = {"id": identity, "resume": "allow"} if identity and mode == "online" else {}
        with _explained(mode):
            self._run = wandb.init(
                project="dpfedmeta", name=run.name, mode=mode, dir=str(run), config=dict(config), **same
            )

    def on_round(self, row: Row) -> None:
        """One step."""
        self._run.log(dict(flat(row)), step=int(row["round"]))

    def on_end(self, summary: Row) -> None:
        """Write the summary and close."""
        self._run.summary.update(dict(flat(summary)))
        self._run.finish()


class LateWeightsAndBiases(Callback):
    """The rows on Weights & Biases when the process ends, all at once.

    W&B's own process notes for every row how long the run has taken, and no setting forbids it; system metrics and
    captured output have times of their own. Sent together, rows tell nothing of the rounds' times, and neither does the
    run itself, which begins only then.
    """

    def __init__(self, run: Path, mode: Literal["offline", "online"], config: Mapping[str, Any]) -> None:
        import wandb

        self._directory, self._mode, self._config = RunDirectory(run), mode, dict(config)
        if mode == "online":
            # What is missing is said before training, not after it.
            with _explained(mode):
                wandb.login()

    def on_end(self, summary: Row) -> None:
        """Send all rows and the summary."""
        import wandb

        path, quiet = self._directory.path, wandb.Settings(x_disable_stats=True, console="off")
        with _explained(self._mode):
            run = wandb.init(
                project="dpfedmeta", name=path.name, mode=self._mode, dir=str(path), config=self._config, settings=quiet
            )
        for row in self._directory.rounds():
            # Not the clock's.
            run.log({**flat(row), "_timestamp": float(row["round"])}, step=int(row["round"]))
        run.summary.update(dict(flat(summary)))
        run.finish()


@contextmanager
def _explained(mode: str) -> Iterator[None]:
    import wandb

    try:
        yield
    except wandb.Error as error:
        raise InputError(
            f"track.wandb = {mode}: {' '.join(str(error).split())}; run `wandb login`, or use offline"
        ) from error


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


def flat(row: Row, prefix: str = "") -> dict[str, Any]:
    """Nested keys joined by '/'."""
    result: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, Mapping):
            result.update(flat(value, f"{prefix}{name}/"))
        elif value is not None:
            result[f"{prefix}{name}"] = value
    return result
