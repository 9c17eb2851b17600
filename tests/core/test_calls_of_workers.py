"""Calls in this process and on watched workers: their order, their sums, and how far they are said to be."""

import multiprocessing
import multiprocessing.forkserver
import os
import signal
import tempfile
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from dpfedmeta.core import worker_pool
from dpfedmeta.core.worker_pool import InProcess, Processes, Watched, _Done, _packed, available_cores


def test_in_this_process_calls_run_one_after_the_other_as_they_are_asked_for():
    done = []

    def call(number, text):
        done.append(number)
        return f"{number}{text}"

    workers = InProcess()
    results = workers.map(call, ((number, "x") for number in range(3)))
    assert done == []
    assert (next(results), done) == ("0x", [0])
    assert list(results) == ["1x", "2x"]
    assert (workers.count, workers.trusted, workers.elsewhere(call, 1)) == (1, True, [])


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_sums_are_exact_and_count_what_they_are_of(shape):
    big = 2**53

    def summand(scale, number, more):
        return np.full(shape, scale * (big + number), dtype=np.int64), number + more

    total, counted = InProcess().total(summand, (3,), [(1, 10), (2, 20), (4, 40)], shape)
    assert total.tolist() == np.full(shape, 3 * (3 * big + 7)).tolist()
    assert total.dtype == np.int64
    assert counted == 77
    nothing, none = InProcess().total(summand, (3,), [], shape)
    assert (nothing.shape, nothing.any(), none) == (shape, False, 0)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_watched_workers_say_how_far_they_are_after_each_result(count):
    told, inner = [], InProcess()
    watched = Watched(inner, told.append)
    assert (watched.count, watched.trusted) == (1, True)
    results = watched.map(lambda number: 10 * number, ((number,) for number in range(count)))
    found = [(result, list(told)) for result in results]
    shares = [0.0, *(done / count for done in range(1, count + 1))]
    assert found == [(10 * number, shares[: number + 2]) for number in range(count)]
    told.clear()
    # What is asked besides is that of the workers.
    total, counted = watched.total(lambda number: (np.array([number]), 1), (), [(2,), (3,)], (1,))
    assert (total.tolist(), counted, told, watched.elsewhere(abs, 1)) == ([5], 2, [], [])
    other = Watched(SimpleNamespace(count=7, trusted=False, total=None, elsewhere=None), told.append)
    assert (other.count, other.trusted) == (7, False)


def test_nothing_is_asked_of_workers_where_there_is_nothing_to_do():
    pool = Processes(SimpleNamespace(map=lambda *given: pytest.fail("asked")), 3)
    assert list(pool.map(abs, [])) == []
    assert pool.count == 3
    packed = [_packed(_Done(result=number)) for number in (4, 5)]
    asked = []

    def map_(function, tasks):
        asked.append((function, len(tasks)))
        return iter(packed)

    pool = Processes(SimpleNamespace(map=map_))
    assert list(pool.map(abs, ((number,) for number in (-4, -5)))) == [4, 5]
    assert asked == [(worker_pool.answered, 2)]


def test_cores_are_those_that_this_process_may_use(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 5, 6} if process == 0 else set(), raising=False)
    assert available_cores() == 3
    monkeypatch.delattr(os, "sched_getaffinity")
    for known, cores in ((8, 8), (None, 1)):
        monkeypatch.setattr(os, "cpu_count", lambda known=known: known)
        assert available_cores() == cores


@pytest.mark.parametrize(
    ("platform", "version", "folder", "forks"),
    [
        ("linux", (3, 11, 1), "/tmp", True),
        ("linux", (3, 11, 0), "/tmp", False),
        ("linux", (3, 12, 0), "/" + "x" * 74, True),
        ("linux", (3, 12, 0), "/" + "x" * 75, False),
        ("darwin", (3, 12, 0), "/tmp", False),
        ("win32", (3, 12, 0), "/tmp", False),
    ],
)
def test_workers_are_forked_where_that_is_safe(monkeypatch, platform, version, folder, forks):
    started = []
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", lambda: started.append(1))
    monkeypatch.setattr(tempfile, "gettempdir", lambda: folder)
    with monkeypatch.context() as patch:
        patch.setattr(worker_pool, "sys", SimpleNamespace(platform=platform, version_info=version))
        context = worker_pool.fresh_processes()
    assert isinstance(context, worker_pool._ForkServerContext if forks else worker_pool._SpawnContext)
    assert len(started) == forks
    assert context.Process is (worker_pool._ForkedProcess if forks else worker_pool._SpawnedProcess)


def test_a_process_that_was_itself_forked_starts_its_own_anew(monkeypatch):
    def refuse():
        raise ChildProcessError

    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", refuse)
    assert isinstance(worker_pool.fresh_processes(), worker_pool._SpawnContext)


def test_the_server_imports_what_workers_need(monkeypatch):
    given = []
    monkeypatch.setattr(
        worker_pool._ForkServerContext, "set_forkserver_preload", lambda self, names: given.append(names)
    )
    monkeypatch.setattr(multiprocessing.forkserver, "ensure_running", lambda: None)
    worker_pool.fresh_processes()
    assert given == [["dpfedmeta.simulation.worker_imports"]]


def test_a_worker_leaves_signals_to_its_parent_and_computes_on_one_thread(monkeypatch):
    import torch

    handled, threads, kept = {}, [], []
    monkeypatch.setattr(signal, "signal", lambda number, how: handled.update({number: how}))
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    monkeypatch.setattr(worker_pool, "keep_freed_memory", lambda: kept.append(1))
    started = []
    monkeypatch.setattr(
        threading, "Thread",
        lambda target, daemon: SimpleNamespace(start=lambda: started.append((target, daemon))),
    )  # fmt: skip
    worker_pool._start_worker()
    ignored = signal.SIG_IGN
    assert handled == {signal.SIGINT: ignored, signal.SIGTERM: ignored}
    assert (threads, kept, started) == ([1], [1], [(worker_pool._end_with_parent, True)])


@pytest.mark.parametrize("parent", [True, False])
def test_a_worker_ends_with_its_parent(monkeypatch, parent):
    order = []
    one = SimpleNamespace(join=lambda: order.append("joined")) if parent else None
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: one)
    monkeypatch.setattr(os, "_exit", lambda code: order.append(code))
    worker_pool._end_with_parent()
    assert order == (["joined", 1] if parent else [])
