"""The decoded cache: one memory-mapped array per data set, complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from platformdirs import user_cache_dir

from dpfedmeta.data.pool import ImageArray
from dpfedmeta.errors import InputError

# Part of every key: raise it when decoding changes, so that old caches are not read.
FORMAT = 1


def cached_images(folder: Path, name: str, key: Sequence[object], decode: Callable[[], ImageArray]) -> Path:
    """Path of the .npy file for `key`, decoding once.

    The file appears by an atomic rename, so two processes that start at once, or a crash half-way, leave a
    whole cache or none.

    Raises:
        InputError: The cache folder cannot be written.
    """
    text = json.dumps([FORMAT, *key])
    path = folder / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npy"
    if path.is_file():
        return path
    images = decode()
    temporary: Path | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, temporary_name = tempfile.mkstemp(dir=folder, prefix=f".{name}-")
        temporary = Path(temporary_name)
        with os.fdopen(handle, "wb") as file:
            np.save(file, images, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot write the decoded cache ({error.strerror}); free some space, or set "
            "DPFEDMETA_CACHE to a folder that can be written"
        ) from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
    return path


def cache_folder(data_folder: Path | None) -> Path:
    """DPFEDMETA_CACHE, else the data folder when it can be written, else the user's cache folder."""
    chosen = os.environ.get("DPFEDMETA_CACHE")
    if chosen:
        return Path(chosen)
    if data_folder is not None and _writable(data_folder):
        return data_folder / ".dpfedmeta-cache"
    return Path(user_cache_dir("dpfedmeta"))


def _writable(folder: Path) -> bool:
    """By the mode bits too: the superuser may write anywhere, but a read-only folder is meant to stay so."""
    return folder.is_dir() and os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def source_key(path: Path) -> tuple[str, int, int]:
    """(path, size, modification time) of a source file."""
    status = path.stat()
    return str(path.resolve()), status.st_size, status.st_mtime_ns
