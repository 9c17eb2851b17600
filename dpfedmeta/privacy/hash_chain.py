"""Append-only JSON lines, on disk when `append` returns, each carrying the hash of the one before it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dpfedmeta.errors import InputError

_START = "0" * 64


class HashChain:
    """A file that only grows.

    Attributes:
        path: The file.
        head: Hash of its last line; whoever keeps a copy of it elsewhere can also notice lost lines at the end.
    """

    def __init__(self, path: Path, head: str = _START, mode: int = 0o644) -> None:
        """Continue a file whose last line has the hash `head`."""
        self.path = path
        self.head = head
        self._mode = mode

    @classmethod
    def start(cls, path: Path, first: Mapping[str, Any], mode: int = 0o644) -> HashChain:
        """A new file with its first line.

        Raises:
            FileExistsError: What was written is never overwritten.
        """
        chain = cls(path, mode=mode)
        chain._write([first], os.O_EXCL)
        return chain

    def append(self, body: Mapping[str, Any]) -> None:
        """Write a line and flush it to disk."""
        self._write([body], os.O_APPEND)

    def append_all(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Write several lines and flush them to disk together."""
        self._write(bodies, os.O_APPEND)

    def _write(self, bodies: Iterable[Mapping[str, Any]], flag: int) -> None:
        handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | flag, self._mode)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            digest = self.head
            for body in bodies:
                text, digest = _line(body, digest)
                file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        self.head = digest


def _line(body: Mapping[str, Any], previous: str) -> tuple[str, str]:
    text = json.dumps({**body, "previous": previous}, sort_keys=True)
    return text, hashlib.sha256(text.encode()).hexdigest()


def read_chain(path: Path, what: str) -> tuple[list[dict[str, Any]], str]:
    """(the lines without their hashes, the hash of the last one); at least one line.

    Args:
        path: The file.
        what: What the file is, for errors.

    Raises:
        InputError: Missing, truncated or edited; says which line and what no longer counts.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot read the {what} ({error.strerror}); is this a run directory?") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a {what}: not UTF-8 text ({error.reason})") from error
    if len(lines) < 2 or lines[-1] != "":
        raise InputError(
            f"{path}, line {len(lines)}: the {what} is truncated in the middle of this line; restore it from a backup"
        )
    bodies: list[dict[str, Any]] = []
    previous = _START
    for number, text in enumerate(lines[:-1], start=1):
        body = _intact(text, previous)
        if body is None:
            # The line before may be the edited one: only what comes before that is proven.
            proven = f"only rounds up to {bodies[-2]['round']} are" if len(bodies) > 2 else "no round is"
            raise InputError(
                f"{path}, line {number}: the hash chain breaks here; this line or the one before it was "
                f"edited or lost, so {proven} proven; restore the {what} from a backup"
            )
        previous = _line(body, previous)[1]
        bodies.append(body)
    return bodies, previous


def _intact(text: str, previous: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
        if isinstance(body, dict) and body.pop("previous") == previous and _line(body, previous)[0] == text:
            return body
    except (ValueError, KeyError, TypeError):
        pass
    return None
