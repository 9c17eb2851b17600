"""One writer for a run directory."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedmeta.durable import PUBLIC
from dpfedmeta.errors import InputError

LOCK = ".lock"


@contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold the lock of a run directory; the operating system gives it back when the process ends, however it ends.

    Raises:
        InputError: Another process writes this run, or the folder cannot be written.
    """
    try:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, PUBLIC)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); is this the directory of a run?") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{path}: another process is writing this run; wait for it, or stop it") from error
        yield
    finally:
        os.close(handle)
