"""Start of a command under torchrun: rank 0 runs it, the other ranks serve it."""

import atexit
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import FrameType

import torch
import torch.distributed as dist

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.signals import SIGNALS
from dpfedmeta.core.worker_pool import Workers, keep_freed_memory, open_workers
from dpfedmeta.simulation.distributed.collective import Collective, Lost, joined
from dpfedmeta.simulation.distributed.consistency_check import Facts, check_alike, facts_of
from dpfedmeta.simulation.distributed.coordinator import Ranks
from dpfedmeta.simulation.distributed.torchrun_env import TIMEOUT, Launch, launched
from dpfedmeta.simulation.distributed.worker_rank import serve

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130


def on_ranks(launch: Launch, words: Sequence[str], command: Callable[[Workers], int]) -> int:
    """Run a command on rank 0; the others serve it until it ends, and end with its exit code.

    Args:
        launch: Of this process.
        words: The command line, which all ranks must share.
        command: What rank 0 does with the workers that all ranks are together; gives the exit code.

    Raises:
        InputError: The ranks do not meet, or do not agree; or as the command raises.
    """
    if launch.size == 1:
        with open_workers(1) as workers:
            return command(workers)
    line = joined(launch)
    prepare(launch)
    if line.rank:
        return _serve(line, launch, words)
    interrupt_once()
    with ranks_over(line, launch, words) as ranks:
        try:
            ranks.code = command(ranks)
        finally:
            # The others end first, and where they fail torchrun ends this process, which has its own words to say yet.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return ranks.code


@contextmanager
def ranks_over(line: Collective, launch: Launch, words: Sequence[str]) -> Iterator[Ranks]:
    """On rank 0: all ranks as workers; the others end with the exit code that is set on them, or that an error has.

    Raises:
        InputError: The ranks do not agree.
    """
    facts = [Facts(**each) for each in line.gathered(vars(facts_of(launch, words)))]
    ranks = Ranks(line, launch.timeout)
    ranks.code = FAILED
    try:
        check_alike(facts)
        yield ranks
    except InputError:
        ranks.code = BAD_INPUT
        raise
    except KeyboardInterrupt:
        ranks.code = INTERRUPTED
        raise
    finally:
        if not ranks.close(ranks.code):
            # A thread waits for who does not answer, and would wait on while this process ends.
            atexit.register(_leave, ranks.code)


@contextmanager
def workers_of_group(timeout: float | None = None) -> Iterator[Ranks | None]:
    """All ranks of a process group that exists already, as workers for dpfedmeta.train; None on every rank but 0.

    The others have served, and nothing is left to do for them, when the block begins there.

        with workers_of_group() as workers:
            if workers is not None:
                run = dpfedmeta.train(settings, workers=workers)

    Args:
        timeout: Seconds after which a rank that says nothing counts as hung; None: DPFEDMETA_RANK_TIMEOUT, or 300.

    Raises:
        InputError: There is no group, or its ranks do not agree.
        RuntimeError: Rank 0 is gone, or says nothing any more.
    """
    if not dist.is_initialized():
        raise InputError("workers_of_group: call torch.distributed.init_process_group on every rank first")
    launch = _launch_of_group(timeout)
    line = joined(launch)
    prepare(launch)
    if line.rank:
        serve_over(line, launch, sys.argv)
        yield None
        return
    with ranks_over(line, launch, sys.argv) as ranks:
        ranks.code = DONE
        yield ranks


def _launch_of_group(timeout: float | None) -> Launch:
    """The caller's group may be a part of what torchrun started, or have been started by something else."""
    known = launched()
    if known is None:
        # Who set a group up has chosen each process's GPU too.
        gpu = torch.cuda.current_device() if torch.cuda.is_available() else 0
        known = Launch(rank=0, size=1, local_rank=gpu)
    return replace(known, rank=dist.get_rank(), size=dist.get_world_size(), timeout=timeout or known.timeout)


def _leave(code: int) -> None:
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def prepare(launch: Launch) -> None:
    """Set this process to one thread, and to its own GPU if there is one."""
    torch.set_num_threads(1)
    keep_freed_memory()
    if launch.local_rank < torch.cuda.device_count():
        torch.cuda.set_device(launch.local_rank)


def _serve(line: Collective, launch: Launch, words: Sequence[str]) -> int:
    # An interruption is rank 0's to handle, which ends this process too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    try:
        code = serve_over(line, launch, words)
    except Lost as error:
        if "silent" in str(error):
            raise RuntimeError(f"rank {line.rank}: rank 0 {error} ({launch.timeout:g} s, {TIMEOUT})") from error
        return FAILED
    line.close()
    return code


def serve_over(line: Collective, launch: Launch, words: Sequence[str]) -> int:
    """On another rank: what it is, and then what it is told to do, until the end.

    Raises:
        Lost: Rank 0 is gone, or says nothing any more.
    """
    line.gathered(vars(facts_of(launch, words)))
    return serve(line)


def interrupt_once() -> None:
    """Make Ctrl-C and SIGTERM count once from now on: a launcher passes on what the terminal has sent already."""

    def first(number: int, frame: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for each in SIGNALS:
            signal.signal(each, first)
