"""Worker processes of this machine, or this process: who runs independent calls and returns their results in order."""

from __future__ import annotations

import ast
import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from dpfedmeta.errors import InputError

T = TypeVar("T")
IntArray = npt.NDArray[np.int64]
Shape = tuple[int, ...]
# Gives whole numbers, and how many clients they are the sum of.
Summand = Callable[..., tuple[IntArray, int]]

_KILLED = "a worker process was killed (out of memory?); the round was not released"
_NEVER_STARTED = (
    "no worker process came to an answer, and what ended them may be printed above: each reads the script again that "
    'called, so all that it does at its top level, outside of `if __name__ == "__main__":`, has to succeed there too; '
    "if nothing is printed, they were killed (out of memory?); run.workers = 1 needs none of them"
)


class Workers(Protocol):
    """Runs independent calls and returns their results in order, or the sum of them."""

    @property
    def count(self) -> int:
        """How many calls run at a time."""
        ...

    @property
    def trusted(self) -> bool:
        """Whether they may know what the server knows: its secret seed. Those of another machine may not."""
        ...

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """function(*task) for each task."""
        ...

    def total(
        self, function: Summand, common: tuple[object, ...], shares: Iterable[tuple[object, ...]], shape: Shape
    ) -> tuple[IntArray, int]:
        """The sums of both results of function(*common, *share) over all shares.

        Args:
            function: Gives whole numbers and a count. Their sums are exact, so no order changes them.
            common: What all calls take.
            shares: What each of them takes besides.
            shape: Of the numbers.
        """
        ...

    def elsewhere(self, function: Callable[..., T], *arguments: object) -> list[T]:
        """function(*arguments) on every other machine's process; nothing where all are of this machine."""
        ...


def _added(results: Iterable[tuple[IntArray, int]], shape: Shape) -> tuple[IntArray, int]:
    total, counted = np.zeros(shape, dtype=np.int64), 0
    for part, count in results:
        total += part
        counted += count
    return total, counted


class OfThisMachine:
    """What all workers of this machine have in common."""

    trusted = True

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """function(*task) for each task."""
        raise NotImplementedError

    def total(
        self, function: Summand, common: tuple[object, ...], shares: Iterable[tuple[object, ...]], shape: Shape
    ) -> tuple[IntArray, int]:
        """As the results come."""
        return _added(self.map(function, ((*common, *share) for share in shares)), shape)

    def elsewhere(self, function: Callable[..., T], *arguments: object) -> list[T]:
        """Nothing is elsewhere."""
        return []


class InProcess(OfThisMachine):
    """No worker processes: one CPU thread, or the GPU."""

    count = 1

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """One after the other."""
        return (function(*task) for task in tasks)


class Processes(OfThisMachine):
    """Worker processes of one thread each."""

    def __init__(self, executor: ProcessPoolExecutor, count: int = 1) -> None:
        self._executor, self.count = executor, count
        self._answered = False

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """As many at a time as there are workers.

        Raises:
            RuntimeError: A worker process died.
        """
        listed = list(tasks)
        if not listed:
            return
        try:
            with _held_back():
                results = self._executor.map(function, *zip(*listed, strict=True))
            for result in results:
                self._answered = True
                yield result
        except BrokenProcessPool as error:
            raise RuntimeError(_KILLED if self._answered else _NEVER_STARTED) from error


class Watched:
    """Other workers, that say after each result which share of the work is done; 0 before the first, 1 at the end."""

    def __init__(self, workers: Workers, tell: Callable[[float], None]) -> None:
        self._workers, self._tell = workers, tell
        self.total, self.elsewhere = workers.total, workers.elsewhere

    @property
    def count(self) -> int:
        """Of the others."""
        return self._workers.count

    @property
    def trusted(self) -> bool:
        """As the others are."""
        return self._workers.trusted

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """As the others do."""
        listed = list(tasks)
        self._tell(0.0)
        for done, result in enumerate(self._workers.map(function, listed), start=1):
            self._tell(done / len(listed))
            yield result


@contextmanager
def _held_back() -> Iterator[None]:
    """Workers that start inside are born with Ctrl-C and SIGTERM blocked, so that none of them falls over its imports.

    For this process the signals only wait.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def open_workers(count: int) -> Iterator[Workers]:
    """`count` worker processes, or this process if `count` is 1."""

    import torch  # here, since who asks for the number of cores needs none of it

    torch.set_num_threads(1)
    if count == 1:
        keep_freed_memory()
        yield InProcess()
        return
    check_guarded()
    executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        yield Processes(executor, count)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def check_guarded() -> None:
    """Worker processes read the script again that started them; without its guard they would start it again.

    Raises:
        InputError: The running script calls us outside `if __name__ == "__main__":`; says where.
    """
    for frame in _callers():
        space = frame.f_globals
        if frame.f_code.co_name != "<module>" or space.get("__name__") != "__main__" or "__file__" not in space:
            continue
        path = Path(space["__file__"])
        if not _guarded(path, frame.f_lineno):
            raise InputError(
                f"{path}, line {frame.f_lineno}: worker processes read this script again when they start, and would "
                'start it again: put this line under `if __name__ == "__main__":`, or set run.workers to 1'
            )


def _callers() -> Iterator[FrameType]:
    """Who called, and whom the main thread is in where a thread of its own called."""
    own, main = sys._getframe(), sys._current_frames().get(threading.main_thread().ident or 0)
    for frame in (own, main if threading.current_thread() is not threading.main_thread() else None):
        while frame is not None:
            yield frame
            frame = frame.f_back


def _guarded(path: Path, line: int) -> bool:
    """Whether a line of a script is read by `__main__` alone, as far as its text is there."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return True
    around = [part for part in body if part.lineno <= line <= (part.end_lineno or part.lineno)]
    return not around or any(isinstance(part, ast.If) and "__name__" in ast.unparse(part.test) for part in around)


def _start_worker() -> None:
    # Ctrl-C and SIGTERM are the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    import torch

    torch.set_num_threads(1)
    keep_freed_memory()


def _end_with_parent() -> None:
    """A parent that was killed outright stops nobody."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def keep_freed_memory() -> None:
    """Let glibc's allocator reuse freed activations instead of returning their pages and faulting them in again.

    Measured on a client's meta-gradient: a quarter to a third of the time. Elsewhere than glibc: no effect.
    """
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(trim_threshold, 1 << 30)
        library.mallopt(mmap_threshold, 32 << 20)  # the largest that glibc accepts
        library.mallopt(top_pad, 64 << 20)


def available_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
