"""A run directory: its files, their names, and how they are written whole or not at all."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import IO, TYPE_CHECKING, Any, Final

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import (
    PUBLIC,
    append_text,
    check_output_folder,
    end_of_whole_lines,
    mend_last_line,
    replace_file,
    sync_folder,
)

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params

CONFIG = "config.yaml"
PLAN = "plan.json"
LEDGER = "ledger.jsonl"
ROUNDS = "rounds.jsonl"
SUMMARY = "summary.json"
# Of a run that a private sweep chose: what the choice costs.
SELECTION = "selection.json"
# Key of plan.json and summary.json: the data, as no ledger proves them.
DESCRIBED = "described"
EVALUATION = "evaluation.json"
EPISODES = "episodes.json"
REPORT = "report.html"
SECRET_FOLDER = "secret"
# Statuses of a run that ended with a result, and of one that has no round left to do.
WITH_RESULT = ("completed", "budget")
DIVERGED: Final = "diverged"
OVER = (*WITH_RESULT, DIVERGED)
# How the configuration in the first line of an analysis' ledger begins.
ANALYSIS = "analysis:"
# How that of the rounds of a caller's own loop begins.
LOOP = "rounds of a loop: "
# Where their releases are.
RELEASES = "releases"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


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
        return self.path / SECRET_FOLDER

    @property
    def weights(self) -> Path:
        """The model to evaluate."""
        return self.path / "checkpoint" / "model.safetensors"

    @property
    def initial_weights(self) -> Path:
        """The weights before round 0."""
        return self.path / "checkpoint" / "initial.safetensors"

    def after(self, rounds: int) -> Path:
        """Folder of what described the run after so many rounds, before it was extended."""
        return self.path / f"after-{rounds}-rounds"

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        """Replace a JSON file atomically."""
        write_text(self.path / name, json.dumps(content, indent=2, allow_nan=False) + "\n")

    def read_json(self, name: str) -> Any:
        """A JSON file of the run.

        Raises:
            InputError: Missing or damaged.
        """
        return json_object(str(self.path / name), _content(self.path / name))

    def rounds(self, *, torn: bool = False) -> list[dict[str, Any]]:
        """The lines of rounds.jsonl; with `torn`, a last line that was not finished is left out.

        Raises:
            InputError: Missing or damaged; says which line.
        """
        path, content = self.rounds_file, _content(self.rounds_file)
        lines = (content[: end_of_whole_lines(content)] if torn else content).splitlines()
        return [json_object(f"{path}, line {number}", line) for number, line in enumerate(lines, start=1)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); is this the directory of a run?") from error


def json_object(where: str, content: bytes) -> dict[str, Any]:
    """Read a JSON object from outside; one with a key twice says two things.

    Raises:
        InputError: It is damaged; `where` says which file, and line.
    """
    try:
        found = json.loads(content.decode(), object_pairs_hook=_each_key_once)
    except DAMAGED_JSON as error:
        raise InputError(f"{where}: not valid JSON ({error})") from error
    if not isinstance(found, dict):
        raise InputError(f"{where}: expected a JSON object, found {type(found).__name__}")
    return found


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for number, (key, _) in enumerate(pairs) if key in dict(pairs[:number]))
        raise ValueError(f"the key {twice!r} stands there twice")
    return found


def shown_name(path: Path) -> str:
    """Name of a folder for pages and cards: letters, digits, '_', '.', '+' and '-'."""
    return re.sub(r"[^\w.+-]", "-", path.resolve().name)[:200]


def check_name(name: str | None) -> None:
    """Refuse what cannot be the name of a run.

    Raises:
        InputError: It is not a plain name.
    """
    if name is not None and not _NAME.fullmatch(name):
        raise InputError(
            f"run.name = {name:.80}: use letters, digits, '.', '_' and '-' only, at most 200 of them, the first a "
            "letter or a digit; choose the folder with run.dir"
        )


def check_new(parent: Path, name: str | None) -> None:
    """Refuse a place where no run directory could be made; nothing is left there.

    Args:
        parent: The folder of runs.
        name: Name of the run; None: it gets one by itself.

    Raises:
        InputError: The name is taken or not a plain name, or the folder cannot be written or made:
            of its path only the last part is made.
    """
    check_name(name)
    if name is not None and (parent / name).exists():
        raise _taken(parent / name)
    check_output_folder("run.dir", parent)


def _taken(path: Path) -> InputError:
    return InputError(f"{path}: exists already; choose another run.name, or resume it (--resume {quote(str(path))})")


def identity_in(path: Path) -> dict[str, Any]:
    """Return the identity in the first line of a folder's ledger, which nobody checked; empty where there is none."""
    try:
        with (path / LEDGER).open(encoding="utf-8") as file:
            return dict(json.loads(file.readline())["identity"])
    except (OSError, *DAMAGED_JSON):
        return {}


def config_of(path: Path) -> str:
    """Return the config text in the first line of a folder's ledger; empty where there is none."""
    return str(identity_in(path).get("config", ""))


def create(parent: Path, name: str, fill: Callable[[RunDirectory], None] = lambda run: None) -> RunDirectory:
    """Make a new run directory.

    Args:
        parent: The folder of runs.
        name: Name of this one.
        fill: Writes its first files. The directory gets its name only then: after a crash it is there with all of
            them, or not there.

    Raises:
        InputError: The name is taken or not a plain name, or the folder cannot be written.
    """
    check_new(parent, name)
    path = parent / name
    staged = RunDirectory(parent / f".{name}.{os.getpid()}")
    try:
        parent.mkdir(exist_ok=True)
        shutil.rmtree(staged.path, ignore_errors=True)
        staged.path.mkdir()
        (staged.path / "checkpoint").mkdir()
        staged.secret.mkdir(mode=0o700)
        fill(staged)
        staged.path.rename(path)
        sync_folder(parent)
    except OSError as error:
        if path.exists():  # of another process, which was faster; or this one's, with all that it needs
            raise _taken(path) from error
        raise InputError(f"{path}: cannot be created ({error.strerror}); choose another run.dir") from error
    finally:
        shutil.rmtree(staged.path, ignore_errors=True)
    return RunDirectory(path)


def write_text(path: Path, text: str, mode: int = PUBLIC) -> None:
    """Replace a text file: it is the old one or the new one."""
    replace_file(path, text.encode(), mode)


def append_lines(path: Path, rows: Iterable[Mapping[str, Any]], mode: int = PUBLIC) -> None:
    """Append JSON lines and flush them to disk; what a crash left of a last line is dropped."""
    mend_last_line(path)
    append_text(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), mode)


def save_weights(path: Path, params: Params) -> None:
    """Replace a safetensors file atomically."""
    from safetensors.torch import save  # brings PyTorch, and most of a run directory is text

    replace_file(path, save({name: value.contiguous().cpu() for name, value in params.items()}))


def safetensors_header(file: IO[bytes]) -> Any:
    """The JSON before the arrays of a safetensors file: what is where, and the words that it carries."""
    stated, whole = int.from_bytes(file.read(8), "little"), file.seek(0, os.SEEK_END)
    file.seek(8)
    return json.loads(file.read(min(stated, whole)))  # a damaged file may state any length


def with_metadata(content: bytes, metadata: Mapping[str, str]) -> bytes:
    """Return safetensors with other metadata, always in the same order: the library's own differs from call to call."""
    size = int.from_bytes(content[:8], "little")
    stated = {**json.loads(content[8 : 8 + size]), "__metadata__": metadata}
    header = json.dumps(stated, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + content[8 + size :]


def load_weights(path: Path) -> Params:
    """Read a safetensors file.

    Raises:
        InputError: Missing or damaged.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        weights: Params = load_file(path)
        return weights
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: no readable weights ({error})") from error
