"""Checks of output paths before any work, so that nothing is computed in vain or written elsewhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from dpfedmeta.core.errors import InputError

PAGE_ENDINGS, PICTURE_ENDINGS = (".html",), (".png",)


def check_output(name: str, path: Path | None, endings: Sequence[str]) -> None:
    """Refuse a file that could not be written, or whose ending does not fit what is written.

    Args:
        name: The option, as it is typed.
        path: What it names; None: nothing is written.
        endings: Of what can be written, each with its dot.

    Raises:
        InputError: Says which endings there are, or what is wrong with the folder.
    """
    if path is None:
        return
    if path.suffix.lower() not in endings:
        raise InputError(f"{name} {path}: what is written here ends in {' or '.join(endings)}; name such a file")
    if path.is_dir():
        raise InputError(f"{name} {path}: is a folder; name a file in it")
    if not path.parent.is_dir():
        raise InputError(f"{name} {path}: there is no folder {path.parent}; make it, or name a file in another one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"{name} {path}: may not be written; name another file")


def check_output_folder(name: str, path: Path) -> None:
    """Refuse a folder that can neither be written nor made: of a path only the last part is made. Nothing is left.

    Args:
        name: The option, as it is typed.
        path: The folder.

    Raises:
        InputError: Says what is in the way.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"{name} {path}: is a file; name a folder")
    if not path.is_dir() and not path.parent.is_dir():
        raise InputError(f"{name} {path}: there is no folder {path.parent} to make it in; make that one first")
    there = path if path.is_dir() else path.parent
    try:
        # The mode bits do not say everything.
        Path(tempfile.mkdtemp(dir=there, prefix=".dpfedmeta-")).rmdir()
    except OSError as error:
        raise InputError(f"{name} {path}: cannot be written ({there}: {error.strerror}); name another one") from error


def check_archive_place(run: Path, path: Path) -> None:
    """Refuse to write an archive of what is no run, or to a place where it cannot be.

    Raises:
        InputError: Says which.
    """
    if not (run / "ledger.jsonl").exists():
        raise InputError(f"{run}: is this the directory of a run? it holds no ledger.jsonl")
    if path.suffix != ".zip" or not path.parent.is_dir():
        raise InputError(f"--out {path}: expected a .zip file in a folder that exists")
    if path.exists():
        raise InputError(f"--out {path}: exists already; choose another name")
    if path.resolve().is_relative_to(run.resolve()):
        raise InputError(f"--out {path}: lies in the run itself; choose a place outside of it")
