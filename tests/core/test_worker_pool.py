import contextlib
import os
import random
import runpy
import signal
import subprocess
import sys
import time
import uuid
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.spawn import get_preparation_data
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dpfedmeta.core import worker_pool
from dpfedmeta.core.worker_pool import Processes, _Done, _packed, _script_hidden, _unpacked, answered, open_workers

SCRIPT = """
from dataclasses import dataclass
from dpfedmeta.core.worker_pool import open_workers

class OwnError(Exception):
    pass

@dataclass
class Pair:
    left: int

def twice(pair):
    if pair.left < 0:
        raise OwnError(f"{pair.left} is negative")
    return Pair(2 * pair.left)

print("read")
with open_workers(2) as workers:
    print([type(each) is Pair and each.left for each in workers.map(twice, [(Pair(1),), (Pair(2),), (Pair(3),)])])
    try:
        list(workers.map(twice, [(Pair(-1),)]))
    except OwnError as error:
        print(error)
"""


def _started(how, path):
    if how == "script":
        path.write_text(SCRIPT)
        return [str(path)], None
    return (["-c", SCRIPT], None) if how == "-c" else (["-"], SCRIPT)


@pytest.mark.parametrize(
    "how", [*(pytest.param(how, marks=pytest.mark.slow) for how in ("script", "-c")), "standard input"]
)
def test_no_worker_reads_the_script_again_and_all_that_it_defines_reaches_them(tmp_path, how):
    words, text = _started(how, tmp_path / "script.py")
    left = subprocess.run([sys.executable, *words], input=text, capture_output=True, text=True, timeout=120)
    assert left.stdout.splitlines() == ["read", "[2, 4, 6]", "-1 is negative"]
    assert left.stderr == ""
    assert left.returncode == 0


def test_what_a_script_defines_travels_with_its_code():
    """No process could import it."""
    script = {"__name__": "__main__"}
    exec(SCRIPT.partition("print")[0], script)
    pair, twice = script["Pair"], script["twice"]
    assert _unpacked(answered(_packed((twice, (pair(4),))))).left == 8
    failed = answered(_packed((twice, (pair(-1),))))
    with pytest.raises(Exception, match="-1 is negative") as found:
        _unpacked(failed)
    assert type(found.value).__name__ == "OwnError"
    with pytest.raises(ZeroDivisionError):
        answered(_packed((divmod, (1, 0))))


def test_a_process_that_starts_is_told_of_no_script(monkeypatch):
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "script.py", raising=False)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    read = {"init_main_from_name", "init_main_from_path"}
    assert read & get_preparation_data("worker").keys()
    with _script_hidden():
        assert not read & get_preparation_data("worker").keys()


def test_the_callers_main_module_is_there_again_once_workers_started():
    before = sys.modules["__main__"]
    with open_workers(2) as workers:
        assert list(workers.map(abs, [(-1,)])) == [1]
        assert sys.modules["__main__"] is before


class Broken:
    """An executor whose processes end after so many answers."""

    def __init__(self, answers):
        self.answers = answers

    def map(self, function, *arguments):
        yield from [_packed(_Done(result=0))] * self.answers
        raise BrokenProcessPool


@pytest.mark.parametrize(
    ("answers", "words"), [(0, "no worker process returned a result"), (1, "was killed .out of memory")]
)
def test_workers_that_never_started_are_not_told_of_memory_first(answers, words):
    with pytest.raises(RuntimeError, match=words):
        list(Processes(Broken(answers)).map(abs, [(1,), (2,)]))


def test_workers_start_while_signals_wait_and_none_waits_afterwards():
    """The executor starts them in `map`: one that Ctrl-C hits among its imports dies with a traceback."""
    masks = []

    def starting(function, packed):
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return map(function, packed)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert list(Processes(SimpleNamespace(map=starting)).map(abs, [(-1,), (2,)])) == [1, 2]
    assert [mask >= {signal.SIGINT, signal.SIGTERM} for mask in masks] == [True]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def _surroundings(name):
    return name in sys.modules, os.environ.get("OF_THE_CALLER"), str(Path.cwd()), os.getppid()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_workers_are_born_with_their_imports_and_with_the_surroundings_of_now(monkeypatch, tmp_path):
    """Their server started with an earlier test's, or a minute ago."""
    parents = set()
    for value in ("one", "two"):
        monkeypatch.setenv("OF_THE_CALLER", value)
        folder = tmp_path / value
        folder.mkdir()
        monkeypatch.chdir(folder)
        with open_workers(2) as workers:
            ((imported, read, where, parent),) = workers.map(_surroundings, [("dpfedmeta.simulation.client_runner",)])
        assert imported
        assert (read, where) == (value, str(folder))
        parents.add(parent)
    assert len(parents - {os.getpid()}) == 1


def _drawn(number):
    time.sleep(0.2)  # so that each worker takes one
    draws = (random.random(), np.random.random(), float(torch.rand(1, dtype=torch.float64)))  # noqa: NPY002
    return os.getpid(), (*draws, os.urandom(8), uuid.uuid4())


def _told(pipe):
    pipe.send((os.environ.get("OF_THE_CALLER"), *_drawn(0)))


def test_processes_beside_a_pool_have_the_environment_of_now_and_other_numbers_too(monkeypatch):
    context, found = worker_pool.fresh_processes(), {}
    for value in ("one", "two"):
        monkeypatch.setenv("OF_THE_CALLER", value)
        ours, theirs = context.Pipe()
        process = context.Process(target=_told, args=(theirs,))
        process.start()
        said, number, draws = ours.recv()
        process.join()
        assert said == value
        found[number] = draws
    assert all(len(set(draws)) == 2 for draws in zip(*found.values(), strict=True))


def test_no_two_workers_draw_the_same_numbers():
    with open_workers(2) as workers:
        found = dict(workers.map(_drawn, [(0,), (1,)]))
    assert len(found) == 2
    for draws in zip(*found.values(), strict=True):
        assert len(set(draws)) == 2


@pytest.mark.parametrize(
    ("where", "value", "method"),
    [
        ("tempfile.tempdir", "/" + 74 * "t", "forkserver"),
        ("tempfile.tempdir", "/" + 75 * "t", "spawn"),
        ("sys.version_info", (3, 11, 1), "forkserver"),
        ("sys.version_info", (3, 11, 0), "spawn"),
        ("sys.platform", "darwin", "spawn"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_nobody_forks_where_the_server_would_fail_or_be_open_to_others(monkeypatch, where, value, method):
    monkeypatch.setattr("multiprocessing.forkserver.ensure_running", lambda: None)
    monkeypatch.setattr(f"dpfedmeta.core.worker_pool.{where}", value)
    assert worker_pool.fresh_processes().get_start_method() == method


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_a_fork_of_a_process_with_a_server_has_workers_of_its_own():
    with open_workers(2) as workers:
        assert list(workers.map(abs, [(-1,)])) == [1]
    read, write = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(write, worker_pool.fresh_processes().get_start_method().encode())
        finally:
            os._exit(0)
    os.close(write)
    with os.fdopen(read) as said:
        assert said.read() == "spawn"
    os.waitpid(child, 0)


def test_imports_of_the_workers_server_end_where_its_parent_has_gone(monkeypatch):
    asked = iter([7, 7, 1])
    monkeypatch.setattr(os, "getppid", lambda: next(asked))
    with pytest.raises(SystemExit):
        runpy.run_module("dpfedmeta.simulation.worker_imports")
    assert next(asked, None) is None
    monkeypatch.setattr(os, "getppid", lambda: 7)
    assert all(name in sys.modules for name in runpy.run_module("dpfedmeta.simulation.worker_imports")["WORKERS_NEED"])


GROUP = """
import signal, sys, time
from dpfedmeta.cli.arguments import terminate_like_ctrl_c
from dpfedmeta.core.worker_pool import open_workers

def works(content):
    time.sleep(0.05)
    return len(content)

terminate_like_ctrl_c()
try:
    with open_workers(2) as workers:
        for number, _ in enumerate(workers.map(works, [(bytes(10**6),)] * 60)):
            if number == 3:
                print("ready", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize("gap", [0.002, pytest.param(0.05, marks=pytest.mark.slow)])
def test_a_signal_to_the_group_and_one_more_end_a_process_with_workers(tmp_path, gap):
    """As `timeout`, systemd and schedulers send them: to the process, and then to its group with all workers."""
    script = tmp_path / "script.py"
    script.write_text(GROUP)
    words = [sys.executable, str(script)]
    child = subprocess.Popen(words, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        child.stdout.readline()
        os.kill(child.pid, signal.SIGTERM)
        time.sleep(gap)
        os.killpg(child.pid, signal.SIGTERM)
        assert child.wait(60) == 130
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()
