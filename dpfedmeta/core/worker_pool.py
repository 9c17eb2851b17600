"""Worker processes of this machine, or this process: who runs independent calls and returns their results in order."""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.context
import multiprocessing.forkserver
import os
import pickle
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from types import ModuleType
from typing import Any, Protocol, TypeVar

import cloudpickle
import numpy as np
import numpy.typing as npt

from dpfedmeta.core.signals import deferred

T = TypeVar("T")
IntArray = npt.NDArray[np.int64]
Shape = tuple[int, ...]
# Gives whole numbers, and how many clients they are the sum of.
Summand = Callable[..., tuple[IntArray, int]]

# Of processes that start: each hides the script for a moment.
_ONE_AT_A_TIME = threading.Lock()
# A socket's path has at most 107 characters, of which multiprocessing adds 32 to the folder of temporary files.
_LONGEST_FOLDER = 75
_KILLED = "a worker process was killed (out of memory?); the round was not released"
_NEVER_STARTED = (
    "no worker process returned a result; the reason may be printed above; if nothing is printed, they were killed "
    "(out of memory?); run.workers = 1 works without worker processes"
)


class Workers(Protocol):
    """Runs independent calls and returns their results in order, or the sum of them."""

    @property
    def count(self) -> int:
        """Number of calls that run at a time."""
        ...

    @property
    def trusted(self) -> bool:
        """True if the workers may know the server's secret seed; those of another machine may not."""
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
    """Common base of the workers on this machine."""

    trusted = True

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """function(*task) for each task."""
        raise NotImplementedError

    def total(
        self, function: Summand, common: tuple[object, ...], shares: Iterable[tuple[object, ...]], shape: Shape
    ) -> tuple[IntArray, int]:
        """Return the sums, added up as the results come."""
        return _added(self.map(function, ((*common, *share) for share in shares)), shape)

    def elsewhere(self, function: Callable[..., T], *arguments: object) -> list[T]:
        """Nothing is elsewhere."""
        return []


class InProcess(OfThisMachine):
    """No worker processes: one CPU thread, or the GPU."""

    count = 1

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """Run the calls one after the other."""
        return (function(*task) for task in tasks)


class Processes(OfThisMachine):
    """Worker processes of one thread each."""

    def __init__(self, executor: ProcessPoolExecutor, count: int = 1) -> None:
        self._executor, self.count = executor, count
        self._answered = False

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """Run as many calls at a time as there are workers.

        Raises:
            RuntimeError: A worker process died.
        """
        listed = list(tasks)
        if not listed:
            return
        try:
            with _held_back():
                results = self._executor.map(answered, [_packed((function, task)) for task in listed])
            for result in results:
                self._answered = True
                yield _unpacked(result)
        except BrokenProcessPool as error:
            raise RuntimeError(_KILLED if self._answered else _NEVER_STARTED) from error


class Watched:
    """Other workers, that say after each result which share of the work is done; 0 before the first, 1 at the end."""

    def __init__(self, workers: Workers, tell: Callable[[float], None]) -> None:
        self._workers, self._tell = workers, tell
        self.total, self.elsewhere = workers.total, workers.elsewhere

    @property
    def count(self) -> int:
        """Number of calls that the watched workers run at a time."""
        return self._workers.count

    @property
    def trusted(self) -> bool:
        """True if the watched workers are trusted."""
        return self._workers.trusted

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """Run the calls on the watched workers, and report the share that is done."""
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
    # It lets the signals through again as it starts, and the server would die of one that the whole group gets.
    resource_tracker.ensure_running()
    with _held_back():
        context = fresh_processes()
    executor = ProcessPoolExecutor(count, mp_context=context, initializer=_start_worker)
    try:
        yield Processes(executor, count)
    finally:
        # A signal more (`timeout` sends two) would leave it half done, and the exit would wait for its queue for ever.
        with deferred():
            executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _script_hidden() -> Iterator[None]:
    """A process that starts inside reads nothing of the caller's script again, so the script needs no guard."""
    with _ONE_AT_A_TIME:
        main = sys.modules["__main__"]
        # A new process reads again what __main__ came from; of this one there is nothing to read.
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


class _SpawnedProcess(multiprocessing.context.SpawnProcess):
    _Popen = staticmethod(_script_hidden()(multiprocessing.context.SpawnProcess._Popen))


class _ForkedProcess(multiprocessing.context.ForkServerProcess):
    """A process that has its server's imports, and neither its environment nor its generators."""

    _Popen = staticmethod(_script_hidden()(multiprocessing.context.ForkServerProcess._Popen))

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._environment = dict(os.environ)

    def run(self) -> None:
        import torch

        os.environ.clear()
        os.environ.update(self._environment)
        # Else code of the user's own draws the same numbers in every process. Python's generator is seeded by itself.
        torch.seed()
        np.random.seed(int.from_bytes(os.urandom(4), "big"))  # noqa: NPY002
        super().run()


class _SpawnContext(multiprocessing.context.SpawnContext):
    Process = _SpawnedProcess


class _ForkServerContext(multiprocessing.context.ForkServerContext):
    Process = _ForkedProcess


def fresh_processes() -> multiprocessing.context.SpawnContext | multiprocessing.context.ForkServerContext:
    """Return a context that starts worker processes without running the caller's script, notebook or `-c` again.

    On Linux they are forked from a server process, which begins to import what workers need at once: beside the
    caller, once for all workers, in memory that they share. Each worker imports by itself on other systems, whose
    libraries may not work after a fork; before Python 3.11.1, where other users could talk to the server
    (CVE-2022-42919); and where the folder of temporary files has too long a name for the server's socket.
    """
    too_long = len(tempfile.gettempdir()) > _LONGEST_FOLDER
    if sys.platform != "linux" or sys.version_info < (3, 11, 1) or too_long:
        return _SpawnContext()
    context = _ForkServerContext()
    context.set_forkserver_preload(["dpfedmeta.simulation.worker_imports"])
    try:
        multiprocessing.forkserver.ensure_running()
    except ChildProcessError:  # this process was itself forked, and the server is its parent's
        return _SpawnContext()
    return context


def _packed(content: object) -> bytes:
    """Objects that the caller's script defines travel with their code: no worker could import them."""
    return bytes(cloudpickle.dumps(content))


def _unpacked(packed: bytes) -> Any:
    found: _Done | _Failed = pickle.loads(packed)
    if isinstance(found, _Failed):
        raise found.error
    return found.result


def answered(packed: bytes) -> bytes:
    """Run a call in a worker process, given as a packed function with its arguments.

    Returns:
        The packed result, or the packed exception where the caller's script defines its class; others are raised.
    """
    function, task = pickle.loads(packed)
    try:
        return _packed(_Done(result=function(*task)))
    except Exception as error:
        if type(error).__module__ != "__main__":
            raise
        return _packed(_Failed(error=error))


@dataclass(frozen=True, kw_only=True)
class _Done:
    result: Any


@dataclass(frozen=True, kw_only=True)
class _Failed:
    """An exception of a kind that the caller's script defines."""

    error: Exception


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
