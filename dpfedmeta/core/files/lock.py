"""Lock of a run directory, which allows one writer at a time."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import PUBLIC

LOCK = ".lock"
# Whoever only looks whether a run is being written holds its lock for an instant.
_LOOK_SECONDS = 0.2


# Locked files of this process (device and inode), each with the process and with how its holder lets go.
_HELD: dict[tuple[int, int], tuple[int, str]] = {}
THREAD = "wait for its other thread"


@contextmanager
def only_writer(path: Path, let_go: str = THREAD) -> Iterator[None]:
    """Hold the lock of a run directory; the operating system gives it back when the process ends, however it ends.

    Args:
        path: The directory.
        let_go: What makes this holder give it back, for whoever asks in the same process.

    Raises:
        InputError: Somebody writes this run, in another process or this one, or the folder cannot be written.
    """
    try:
        handle = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, PUBLIC)
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error.strerror}); is this the directory of a run?") from error
    try:
        _take(handle, path)
        with holding(handle, let_go):
            yield
    finally:
        os.close(handle)


@contextmanager
def holding(handle: int, let_go: str) -> Iterator[None]:
    """Know a locked file as this process's own."""
    file = _file(handle)
    _HELD[file] = (os.getpid(), let_go)
    try:
        yield
    finally:
        _HELD.pop(file, None)


def let_go_of(handle: int) -> str | None:
    """Say how this process gives a file back that is locked; None: another one holds it (a fork's parent is one)."""
    process, let_go = _HELD.get(_file(handle), (0, ""))
    return let_go if process == os.getpid() else None


def _file(handle: int) -> tuple[int, int]:
    found = os.fstat(handle)
    return found.st_dev, found.st_ino


def _take(handle: int, path: Path) -> None:
    until = time.monotonic() + _LOOK_SECONDS
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > until:
                own = let_go_of(handle)
                who = "another process is writing this run; wait for it, or stop it"
                raise InputError(
                    f"{path}: {who if own is None else f'this process itself holds this run; {own}'}"
                ) from error
        time.sleep(_LOOK_SECONDS / 10)


# Runs whose last round is behind them, while this process still holds them for their last page.
_ENDING: set[Path] = set()


@contextmanager
def ending(path: Path) -> Iterator[None]:
    """The writer of a run that has ended says so to itself, so that its last page tells of the end."""
    _ENDING.add(path.resolve())
    try:
        yield
    finally:
        _ENDING.discard(path.resolve())


def goes_on(path: Path) -> bool:
    """Return whether a process holds a run, other than this process while it ends the run."""
    return being_written(path) and path.resolve() not in _ENDING


def being_written(path: Path) -> bool:
    """Return whether a process of this machine holds the lock of a run directory; nothing is written to find out."""
    try:
        handle = os.open(path / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        # A file system without locks, on which no run could be written.
        return False
    finally:
        os.close(handle)
    return False
