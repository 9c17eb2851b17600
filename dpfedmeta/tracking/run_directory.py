"""A run directory: its files, their names, and how they are written whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from dpfedmeta.errors import InputError
from dpfedmeta.parameters import Params

CONFIG = "config.yaml"
PLAN = "plan.json"
LEDGER = "ledger.jsonl"
ROUNDS = "rounds.jsonl"
SUMMARY = "summary.json"
EVALUATION = "evaluation.json"
REPORT = "report.html"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run."""

    path: Path

    @property
    def ledger(self) -> Path:
        """The privacy ledger."""
        return self.path / LEDGER

    @property
    def rounds_file(self) -> Path:
        """Released quantities, one line per round."""
        return self.path / ROUNDS

    @property
    def secret(self) -> Path:
        """Server-only files; nothing in it is logged, plotted or sent."""
        return self.path / "secret"

    @property
    def weights(self) -> Path:
        """The model to evaluate."""
        return self.path / "checkpoint" / "model.safetensors"

    @property
    def initial_weights(self) -> Path:
        """The weights before round 0."""
        return self.path / "checkpoint" / "initial.safetensors"

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file atomically."""
        write_text(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the run.

        Raises:
            InputError: Missing or damaged.
        """
        path = self.path / name
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); is this the directory of a run?") from error
        except ValueError as error:
            raise InputError(f"{path}: not valid JSON ({error})") from error
        if not isinstance(content, dict):
            raise InputError(f"{path}: expected a JSON object, found {type(content).__name__}")
        return content

    def rounds(self) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl.

        Raises:
            InputError: Missing or damaged; says which line.
        """
        path = self.rounds_file
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror}); is this the directory of a run?") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not UTF-8 text ({error})") from error
        rows = []
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}, line {number}: not valid JSON") from error
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number}: expected the quantities of a round, found {row!r}")
            rows.append(row)
        return rows


def create(parent: Path, name: str) -> RunDirectory:
    """Make a new run directory.

    Raises:
        InputError: The name is taken or not a plain name, or the folder cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise InputError(f"run.name = {name}: use letters, digits, '.', '_' and '-' only; the folder is run.dir")
    path = parent / name
    try:
        parent.mkdir(parents=True, exist_ok=True)
        path.mkdir()
        (path / "checkpoint").mkdir()
        (path / "secret").mkdir(mode=0o700)
    except FileExistsError as error:
        if not parent.is_dir():
            raise InputError(f"run.dir = {parent}: is not a folder") from error
        raise InputError(f"{path}: exists already; choose another --run.name") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be created ({error.strerror}); choose another --run.dir") from error
    return RunDirectory(path)


def write_text(path: Path, text: str, mode: int = 0o644) -> None:
    """Write beside the target, flush, and rename: the file is the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]], mode: int = 0o644) -> None:
    """Append JSON lines and flush them to disk."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(handle, "a", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def save_weights(path: Path, params: Params) -> None:
    """Replace a safetensors file atomically."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        save_file({name: value.contiguous().cpu() for name, value in params.items()}, temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_weights(path: Path) -> Params:
    """Read a safetensors file.

    Raises:
        InputError: Missing or damaged.
    """
    try:
        weights: Params = load_file(path)
        return weights
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: no readable weights ({error})") from error
