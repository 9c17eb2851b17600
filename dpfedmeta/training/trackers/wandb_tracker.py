"""Weights & Biases: its environment is obeyed, what is missing is said before anything is written, no round is lost."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from dpfedmeta.config.run_settings import TrackSettings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import CONFIG, SUMMARY, RunDirectory
from dpfedmeta.training.trackers import Tracked
from dpfedmeta.training.tracking.callbacks import Callback, Row
from dpfedmeta.training.tracking.flatten_rows import (
    Sheet,
    evaluation_sheet,
    flat,
    flat_settings,
    flat_summary,
    guarantee_sheet,
    last_round,
)

Mode = Literal["off", "offline", "online"]
_PROJECT = "dpfedmeta"
# W&B's words for its modes that send less.
_QUIETER: dict[str, Mode] = {"disabled": "off", "offline": "offline", "dryrun": "offline"}
_OFFLINE = "--wandb offline writes files that `wandb sync` sends later"


def wandb_mode(asked: TrackSettings) -> Mode:
    """Return the W&B mode: as asked for, or quieter by WANDB_MODE (or `wandb offline`, `wandb disabled`), never louder.

    Raises:
        InputError: A variable of W&B's holds what it does not take.
    """
    wanted = _wanted(asked)
    if wanted == "off":
        return "off"
    return min(wanted, _QUIETER.get(_environment().mode, wanted), key=("off", "offline", "online").index)


def _wanted(asked: TrackSettings) -> Mode:
    """Return the mode that is asked for: `track.wandb`; named in `track.to` alone, W&B's own default."""
    return "online" if asked.wandb == "off" and "wandb" in asked.to else asked.wandb


def check_wandb(asked: TrackSettings, say: Callable[[str], None]) -> None:
    """Before anything is written: whether W&B can be reached with a key, and what its environment made quieter.

    Raises:
        InputError: It cannot; one line says what to do.
    """
    mode, wanted = wandb_mode(asked), _wanted(asked)
    if mode != wanted:
        kept = {"off": "tracks nothing", "offline": "only writes files, and sends nothing"}[mode]
        say(f"W&B: {kept}, because of WANDB_MODE or W&B's own settings (track.wandb = {wanted})")
    if mode != "online":
        return
    import wandb

    try:
        # No prompt: whoever started a run of hours may not be there to answer.
        found = wandb.login(verify=True, prompt=False)
    except wandb.Error as error:
        raise InputError(
            f"track.wandb = online: {_line(error)}; check the network and the key (`wandb login`); or {_OFFLINE}"
        ) from error
    if not found:
        raise InputError(f"track.wandb = online: no API key; run `wandb login` or set WANDB_API_KEY; or {_OFFLINE}")


class WeightsAndBiases(Callback):
    """The rows of rounds.jsonl on Weights & Biases, and at the end the summary, tables and pictures.

    Guarantee:
        Rows, summary, tables, pictures and weights are released quantities. W&B's own process notes for every row how
        long the run has taken, and no setting forbids it; system metrics and captured output have times of their own.
        So where rows tell no times, nothing of W&B begins before the run ends: all rows are sent then, at once.
    """

    def __init__(self, tracked: Tracked, say: Callable[[str], None]) -> None:
        """`say` is told what a person should know.

        Raises:
            InputError: W&B refuses to begin.
        """
        self._tracked, self._say = tracked, say
        self._mode = wandb_mode(tracked.settings.track)
        self._open: Any = None
        self._next: int | None = None
        if tracked.timed and self._mode != "off":
            self._open = self._begun(self._mode)

    def on_round(self, row: Row) -> None:
        """Send the row as a step; the first call also sends those of the processes before."""
        if self._open is None:
            return
        try:
            self._catch_up(self._open)
        except Exception as error:
            # Not the run's trouble: what it spent of privacy is spent.
            self._say(f"W&B: {_line(error)}; training goes on, and W&B is tried again at its end")
            self._open = self._next = None

    def on_end(self, summary: Row) -> None:
        """Send what is not there yet, and close; whatever happens there, the run itself is whole."""
        if self._mode == "off":
            return
        try:
            run = self._open or self._begun_at_the_end()
            self._catch_up(run)
            self._conclude(run, summary)
            run.finish()
            if run.offline:
                self._say(f"W&B: send it with: wandb sync {_nearby(Path(run.settings.sync_dir))}")
        except Exception as error:
            self._say(f"W&B: {_line(error)}; the run itself is complete")

    def _begun_at_the_end(self) -> Any:
        try:
            return self._begun(self._mode)
        except InputError as error:
            if self._mode != "online":
                raise
            self._say(f"W&B: {_line(error.__cause__ or error)}; it goes into files instead")
            return self._begun("offline")

    def _begun(self, mode: Mode) -> Any:
        import wandb

        tracked, known = self._tracked, _environment()
        asked, path = tracked.settings.track, tracked.run.path
        words = (tracked.settings.algo, Path(tracked.settings.dataset).stem)
        own: dict[str, Any] = {"mode": mode}
        if mode == "online" and not (known.run_id or known.sweep_id):
            # A resumed run goes on where it was; offline ones cannot, and each is whole by itself.
            own |= {"id": tracked.identity, "resume": "allow"}
        settings: dict[str, Any] = {} if os.environ.get("WANDB_QUIET") else {"quiet": True}
        if not tracked.timed:
            # Nor where it ran: the folder, the interpreter, the machine's name, the repository and its commit.
            settings |= {"x_disable_stats": True, "console": "off", "disable_git": True, "x_disable_meta": True}
        with _explained(mode):
            return wandb.init(
                # A sweep has a project of its own.
                project=asked.project or (None if known.project or known.sweep_id else _PROJECT),
                entity=asked.entity,
                group=asked.group or (None if known.run_group else "-".join(words)),
                tags=list(asked.tags) or (None if known.run_tags else list(words)),
                name=None if known.run_name else path.name,
                dir=None if os.environ.get("WANDB_DIR") else str(path),
                config=flat_settings(tracked.settings),
                settings=wandb.Settings(**settings),
                **own,
            )

    def _catch_up(self, run: Any) -> None:
        """The rounds of rounds.jsonl that are not there yet; a process before may have ended with some unsent."""
        if self._next is None:
            self._next = int(run.step)
        for row in self._tracked.run.rounds():
            if row["round"] >= self._next:
                # Not the clock's.
                when = {} if self._tracked.timed else {"_timestamp": float(row["round"])}
                run.log({**flat(row), **when}, step=int(row["round"]))
                self._next = int(row["round"]) + 1

    def _conclude(self, run: Any, summary: Row) -> None:
        import wandb

        sheets = {"guarantees": guarantee_sheet(summary), "evaluation": evaluation_sheet(summary)}
        shown: dict[str, Any] = {f"tables/{name}": _table(sheet) for name, sheet in sheets.items() if sheet.rows}
        shown |= {f"pictures/{path.stem}": wandb.Image(str(path)) for path in self._pictures()}
        step = last_round(self._tracked.run.rounds())
        when = {} if self._tracked.timed else {"_timestamp": float(step)}
        # With the last round: a step of its own would be a round that never was.
        run.log({**shown, **when}, step=step)
        if self._tracked.settings.track.model:
            run.log_artifact(_model(self._tracked.run, summary))
        run.summary.update(flat_summary(summary))

    def _pictures(self) -> Sequence[Path]:
        try:
            return self._tracked.pictures(self._tracked.run)
        except InputError as error:
            self._say(f"W&B gets no pictures: {error}")
            return ()


def _environment() -> Any:
    """W&B's settings, from its variables and files, as it reads them itself.

    Raises:
        InputError: One of them is not what W&B takes.
    """
    import wandb

    try:
        return wandb.setup().settings
    except ValidationError as error:
        wrong = error.errors()[0]
        name = ".".join(str(part) for part in wrong["loc"])
        raise InputError(
            f"W&B's setting {name} = {wrong['input']} (WANDB_{name.upper()}, or its settings file): {wrong['msg']}"
        ) from error


def _table(sheet: Sheet) -> Any:
    import wandb

    return wandb.Table(columns=list(sheet.columns), data=[list(row) for row in sheet.rows], allow_mixed_types=True)


def _model(run: RunDirectory, summary: Row) -> Any:
    """The released weights and what says what they are; by name, so that nothing else of the run can get in."""
    import wandb

    about = {key: value for key, value in flat_summary(summary).items() if key.startswith(("guarantees/", "accuracy/"))}
    artifact = wandb.Artifact(name=f"{run.path.name}-model"[-128:], type="model", metadata=about)
    for path in (run.weights, run.path / CONFIG, run.path / SUMMARY):
        artifact.add_file(str(path), name=path.name)
    return artifact


@contextmanager
def _explained(mode: str) -> Iterator[None]:
    import wandb

    try:
        yield
    except wandb.Error as error:
        raise InputError(f"track.wandb = {mode}: {_line(error)}; run `wandb login`; or {_OFFLINE}") from error


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def _nearby(path: Path) -> Path:
    """Shorten a path that lies below the current directory."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


class WandbTracker:
    """Tracker of `track.wandb`, or `wandb` in `track.to`."""

    check = staticmethod(check_wandb)
    check_variables = staticmethod(wandb_mode)
    opened = WeightsAndBiases


MEMBER = WandbTracker
