"""Files that commands write where somebody names one: no file of anybody else is replaced."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpfedmeta.core.errors import InputError


@dataclass(frozen=True, kw_only=True)
class OutputKind:
    """Kind of file that a command writes.

    Attributes:
        endings: Endings of its name, each with its dot.
        mark: Bytes that each of ours has, and hardly another file.
        at: Place of the first of these bytes.
    """

    endings: tuple[str, ...]
    mark: bytes
    at: int = 0


# Of 130 dots an inch, and without the name of a program.
PICTURE = OutputKind(endings=(".png",), mark=b"\0\0\0\x09pHYs\0\0\x13\xfe\0\0\x13\xfe\x01", at=33)
COMPARISON = OutputKind(endings=(".html",), mark=b"<title>Comparison of ", at=132)
LATEX = OutputKind(endings=(".tex",), mark=b"% by dpfedmeta report")
TABLE_OF_RUNS = OutputKind(endings=(".csv",), mark=b"run,setting,algo,own_method,")
PREDICTIONS = OutputKind(endings=(".csv",), mark=b"record,predicted")
SITE_SETTINGS = OutputKind(endings=(".yaml", ".yml"), mark=b"# by dpfedmeta federate plan\n")
EVENTS = OutputKind(endings=(".json",), mark=b'{\n "attention": ')
BADGE = OutputKind(endings=(".svg",), mark=b"<!-- by dpfedmeta audit -->")


def check_output(name: str, path: Path | None, kind: OutputKind, words: Sequence[str]) -> None:
    """Refuse a file that could not be written, whose ending does not fit, or that is an input or somebody else's.

    Args:
        name: The option, as it is typed.
        path: What it names; None: nothing is written.
        kind: What is written.
        words: What was typed: a file that stands among them besides is an input.

    Raises:
        InputError: Says which endings there are, what is wrong with the folder, or what would be lost.
    """
    if path is None:
        return
    if path.suffix.lower() not in kind.endings:
        raise InputError(f"{name} {path}: expected the name of a file that ends in {' or '.join(kind.endings)}")
    if path.is_dir():
        raise InputError(f"{name} {path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{name} {path}: there is no folder {path.parent}; make it, or name a file in another one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{name} {path}: no permission to write; name another file")
    if not path.exists():
        return
    own = sum(word == name or word.startswith(f"{name}=") for word in words)
    if sum(_is(path, word) or _is(path, word.partition("=")[2]) for word in words) > own:
        raise InputError(f"{name} {path}: this command reads that file too; name another one to write")
    with path.open("rb") as file:
        begins = file.read(kind.at + len(kind.mark))
    if begins and begins[kind.at :] != kind.mark:
        raise InputError(
            f"{name} {path}: is there already, and is no file that this command wrote; name another one, or move that "
            "one away first"
        )


def _is(path: Path, word: str) -> bool:
    """Return whether a word names this file, also by another path or a link."""
    with suppress(OSError, ValueError):
        return bool(word) and path.samefile(word)
    return False
