"""Where clients run: worker processes of this machine, or this process."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from dpfedmeta.federation.clients import ClientSide
from dpfedmeta.parameters import Params, dimension, unflatten
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, Client

T = TypeVar("T")

# Clients that a worker is given at a time.
CLIENTS_PER_CHUNK = 8
# Where clients are computed side by side: on a CPU few, so that every worker has some; on a GPU several times as many
# as have their data drawn together. At least run.chunk.
CLIENTS_PER_STACK = {"cpu": 64, "cuda": 1024}


class RoundAborted(Exception):
    """Nothing of the round is released; what it was charged with stays charged."""


class Backend(Protocol):
    """Sums over a cohort, wherever it runs."""

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[Client, Params]:
        """SECRET: the sum of the cohort's clipped messages."""
        ...


class Workers(Protocol):
    """Runs independent calls and returns their results in order."""

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """function(*task) for each task."""
        ...


class InProcess:
    """No worker processes: one CPU thread, or the GPU."""

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """One after the other."""
        return (function(*task) for task in tasks)


class Processes:
    """Worker processes of one thread each."""

    def __init__(self, executor: ProcessPoolExecutor) -> None:
        self._executor = executor

    def map(self, function: Callable[..., T], tasks: Iterable[tuple[object, ...]]) -> Iterator[T]:
        """As many at a time as there are workers.

        Raises:
            RuntimeError: A worker process died.
        """
        try:
            yield from self._executor.map(function, *zip(*tasks, strict=True))
        except BrokenProcessPool as error:
            raise RuntimeError("a worker process was killed (out of memory?); the round was not released") from error


@contextmanager
def open_workers(count: int) -> Iterator[Workers]:
    """`count` worker processes, or this process if `count` is 1."""
    torch.set_num_threads(1)
    if count == 1:
        keep_freed_memory()
        yield InProcess()
        return
    executor = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"), initializer=_start_worker)
    try:
        yield Processes(executor)
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    # Ctrl-C and SIGTERM are the parent's to handle.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
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


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalBackend:
    """Simulates the cohort on this machine."""

    clients: ClientSide
    workers: Workers
    abort_on_failure: bool = False

    def cohort_sum(self, model: Params, bound: float, cohort: Cohort) -> Bounded[Client, Params]:
        """SECRET: the sum of the cohort's clipped messages.

        Guarantee:
            One client moves the value by at most its sensitivity (add/remove): the bound that clipped it, C,
            or C_q in shared mode, where each honest message also carries noise; the stated variance is that of all.

        Raises:
            RoundAborted: An invited client failed, where that ends a round.
        """
        arrays = {name: value.cpu().numpy() for name, value in model.items()}
        ids = cohort.clients.tolist()
        size = clients_per_task(self.clients)
        chunks = [ids[i : i + size] for i in range(0, len(ids), size)]
        clients = replace(self.clients, source=self.clients.source.again(cohort.again))
        tasks = ((clients, arrays, bound, cohort.round, chunk) for chunk in chunks)
        form = self.clients.form(model)
        numbers = self.clients.whole_numbers(bound, dimension(form))
        total, entered = numbers.zero(dimension(form)), 0
        for part, count in self.workers.map(sum_chunk, tasks) if chunks else ():
            total += torch.from_numpy(part)
            entered += count
        if self.abort_on_failure and entered < len(ids):
            raise RoundAborted
        return Bounded(
            value=unflatten(numbers.values(total), form),
            sensitivity=self.clients.message_bound(bound),
            noise_variance=entered * self.clients.message_noise_variance(bound),
        )


def clients_per_task(clients: ClientSide) -> int:
    """Clients of one call of `sum_chunk`."""
    if not clients.stacks:
        return CLIENTS_PER_CHUNK
    return max(CLIENTS_PER_STACK[clients.device.type], clients.chunk or 1)


def sum_chunk(
    clients: ClientSide,
    model: dict[str, npt.NDArray[np.float32]],
    bound: float,
    round_: int,
    chunk: list[int],
) -> tuple[npt.NDArray[np.int64], int]:
    """One chunk, with plain arrays at both ends of the pipe."""
    params = {name: torch.from_numpy(value.copy()) for name, value in model.items()}
    total, entered = clients.clipped_sum(params, bound, round_, chunk)
    return total.numpy(), entered
