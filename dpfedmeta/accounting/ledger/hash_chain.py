"""Append-only JSON lines, on disk when `append` returns, each carrying the hash of the one before it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import PUBLIC, SECRET, append_text, end_of_whole_lines, whole_lines

# Of every chain, in its first line. Nothing before 6 was released; from here on what was is kept.
VERSION = 6
START = "0" * 64
"""Hash that the first line of every chain follows."""


class HashChain:
    """A file that only grows; a process that is forked from the one that opened it cannot write it.

    Attributes:
        path: The file.
        head: Hash of its last line; whoever keeps a copy of it elsewhere can also notice lost lines at the end.
        lines: How many lines it has.
    """

    def __init__(
        self, path: Path, head: str = START, mode: int = PUBLIC, *, lines: int = 0, size: int | None = None
    ) -> None:
        """Continue a file whose last line has the hash `head`; what follows `size` is cut off by the first append."""
        self.path = path
        self.head = head
        self.lines = lines
        self._mode = mode
        self._size = size
        self._process = os.getpid()

    @classmethod
    def start(cls, path: Path, first: Mapping[str, Any], mode: int = PUBLIC) -> HashChain:
        """A new file with its first line, which says the version too.

        Raises:
            FileExistsError: What was written is never overwritten.
        """
        chain = cls(path, mode=mode)
        chain._write([_opening(first)], os.O_EXCL)
        return chain

    def append(self, body: Mapping[str, Any]) -> None:
        """Write a line and flush it to disk."""
        self._write([body])

    def append_all(self, bodies: Iterable[Mapping[str, Any]]) -> None:
        """Write several lines and flush them to disk together."""
        self._write(bodies)

    def _write(self, bodies: Iterable[Mapping[str, Any]], flag: int = 0) -> None:
        if os.getpid() != self._process:  # its lines would follow the same line as those of the other process
            raise InputError(f"{self.path}: only the process that opened it writes it; let forked ones return results")
        digest, texts = self.head, []
        for body in bodies:
            text, digest = _line(body, digest)
            texts.append(text + "\n")
        append_text(self.path, "".join(texts), self._mode, flag=flag, after=self._size)
        self.head, self.lines, self._size = digest, self.lines + len(texts), None


def _opening(first: Mapping[str, Any]) -> dict[str, Any]:
    return {"version": VERSION, **first}


def _check_version(first: Mapping[str, Any], path: Path, what: str) -> None:
    version = first.get("version")
    if type(version) is not int:
        raise InputError(f"{path}: not a {what}: its first line has no whole number as version")
    if version != VERSION:
        wrote = "dpfedmeta 0.3 or before" if version < VERSION else "a later dpfedmeta"
        raise InputError(
            f"{path}: this {what} has version {version}, which {wrote} wrote, and this dpfedmeta reads version "
            f"{VERSION} alone; go on with the dpfedmeta that wrote it"
        )


def _line(body: Mapping[str, Any], previous: str) -> tuple[str, str]:
    text = json.dumps({**body, "previous": previous}, sort_keys=True)
    return text, hashlib.sha256(text.encode()).hexdigest()


def heads_of(bodies: Iterable[Mapping[str, Any]]) -> list[str]:
    """The hash of every line."""
    heads: list[str] = []
    for body in bodies:
        heads.append(_line(body, heads[-1] if heads else START)[1])
    return heads


def read_chain(path: Path, what: str, *, torn: bool = False) -> tuple[list[dict[str, Any]], str]:
    """(the lines without their hashes, the hash of the last one); at least one line.

    Args:
        path: The file.
        what: What the file is, for errors.
        torn: Whether a last line that was not finished is left out; else it is an error.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line and what no longer counts.
    """
    try:
        content = path.read_bytes()
        lines = (content[: end_of_whole_lines(content)] if torn else content).decode().split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot read the {what} ({error.strerror}); is this a run directory?") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a {what}: not UTF-8 text ({error.reason})") from error
    if len(lines) < 2 or lines[-1] != "":
        raise InputError(
            f"{path}, line {len(lines)}: the {what} is truncated in the middle of this line; if a crash did that, "
            "resume the run, else restore it from a backup"
        )
    bodies: list[dict[str, Any]] = []
    previous = START
    for number, text in enumerate(lines[:-1], start=1):
        body = _intact(text, previous)
        if body is None:
            # The line before may be the edited one: only what comes before that is proven.
            rounds = [body["round"] for body in bodies[:-1] if "round" in body]
            proven = f"only rounds up to {rounds[-1]} are" if rounds else "no round is"
            raise InputError(
                f"{path}, line {number}: the hash chain breaks here; this line or the one before it was "
                f"edited or lost, so {proven} proven; restore the {what} from a backup"
            )
        if not bodies:
            _check_version(body, path, what)
        # Intact: the text is what `_line` makes of the body.
        previous = hashlib.sha256(text.encode()).hexdigest()
        bodies.append(body)
    return bodies, previous


def continue_or_start(
    path: Path, first: Mapping[str, Any], what: str, fits: Callable[[Mapping[str, Any]], bool] | None = None
) -> tuple[HashChain, list[dict[str, Any]]]:
    """A file for its owner's eyes alone: (its chain, the lines after the first); started where there is none.

    Args:
        path: The file.
        first: Its first line: what it is started with, and has to have been started with.
        what: What the file is, for errors.
        fits: Whether a file may go on that was started with another line; then the first line is returned too.

    Raises:
        InputError: It was edited or truncated, is of another version, or was started with another first line.
    """
    size, torn, first = *whole_lines(path), _opening(first)
    # A first line that a crash tore never counted; a file of something else stays as it is.
    begun = _line(first, START)[0].encode().startswith(torn.strip(b"\0\n")[:9])
    if not size and begun and not _is_whole(torn):
        path.unlink(missing_ok=True)
        return HashChain.start(path, first, mode=SECRET), [] if fits is None else [first]
    bodies, head = read_chain(path, what, torn=True)
    if not (bodies[0] == first if fits is None else fits(bodies[0])):
        raise InputError(f"{path}, line 1: this {what} was started as {bodies[0]}, not {first}")
    return HashChain(path, head, SECRET, lines=len(bodies), size=size), bodies[1:] if fits is None else bodies


def _is_whole(line: bytes) -> bool:
    """Return whether a line lacks nothing but its end: it may have counted, whoever cut that off."""
    try:
        return isinstance(json.loads(line), dict)
    except DAMAGED_JSON:
        return False


def _intact(text: str, previous: str) -> dict[str, Any] | None:
    try:
        body = json.loads(text)
        if isinstance(body, dict) and body.pop("previous") == previous and _line(body, previous)[0] == text:
            return body
    except DAMAGED_JSON:
        pass
    return None
