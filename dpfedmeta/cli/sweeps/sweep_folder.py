"""Folder of a sweep: the checks that need nothing heavy to be imported."""

from __future__ import annotations

from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import check_output_folder

MANIFEST = "sweep.json"


def is_sweep(path: Path) -> bool:
    """Return whether a folder holds a sweep."""
    return (path / MANIFEST).is_file()


def default_place(file: Path) -> Path:
    """The folder of a sweep file's runs where none is named."""
    return Path("runs") / f"sweep-{file.stem}"


def check_jobs(jobs: int) -> None:
    """Refuse to run nothing at a time.

    Raises:
        InputError: Less than one run.
    """
    if jobs < 1:
        raise InputError(f"--jobs {jobs}: at least 1")


def check_place(path: Path) -> None:
    """Refuse a folder that holds something else than a sweep; nothing is written.

    Raises:
        InputError: It is a file, or not empty and no sweep.
    """
    if path.exists() and not path.is_dir():
        raise InputError(f"--out {path}: is a file; name a folder")
    if path.is_dir() and not is_sweep(path) and any(path.iterdir()):
        raise InputError(f"--out {path}: is not empty and holds no {MANIFEST}; choose another folder")


def check_writable(named: Path | None) -> None:
    """Refuse a folder that a sweep could not write into.

    Args:
        named: As it was typed; None: the one by default, whose parent is made with it.

    Raises:
        InputError: It can be neither written nor made.
    """
    if named is not None:
        check_output_folder("--out", named)
    else:
        check_output_folder("runs, the folder of --out:", Path("runs"))
