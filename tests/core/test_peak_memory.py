"""Memory of all processes together: this one's, and as many workers as there are of the largest kind."""

import os
import resource
import sys
from types import SimpleNamespace

import pytest

from dpfedmeta.core import peak_memory
from dpfedmeta.core.peak_memory import memory_of_machine, peak_memory_mb
from dpfedmeta.core.worker_pool import InProcess

own_peak_mb = peak_memory.own_peak_mb


def workers(count=3, peaks=(7.0, 11.0, 5.0), elsewhere=()):
    asked = []

    def map_(function, tasks):
        asked.append((function, list(tasks)))
        yield from peaks

    found = SimpleNamespace(count=count, map=map_, elsewhere=lambda function: list(elsewhere))
    return found, asked


@pytest.fixture(autouse=True)
def own(monkeypatch):
    monkeypatch.setattr(peak_memory, "own_peak_mb", lambda: 100.0)


def test_this_process_alone_is_itself():
    assert peak_memory_mb(InProcess()) == 100.0


def test_each_worker_counts_as_the_largest_that_answered():
    pool, asked = workers()
    assert peak_memory_mb(pool) == 100.0 + 3 * 11.0
    # As many questions as workers, so that each may answer one.
    assert asked == [(peak_memory._peak_of_worker, [(0,), (1,), (2,)])]


def test_processes_of_other_machines_count_as_what_they_are():
    pool, asked = workers(elsewhere=(20.0, 30.0))
    assert peak_memory_mb(pool) == 150.0
    assert asked == []


def test_workers_that_are_gone_are_not_known():
    def gone(function, tasks):
        raise RuntimeError("a worker process was killed")

    assert peak_memory_mb(SimpleNamespace(count=2, map=gone, elsewhere=lambda function: [])) == 100.0


def test_a_process_reads_its_own_peak_where_the_system_keeps_it(tmp_path, monkeypatch):
    status = tmp_path / "status"
    status.write_text("VmPeak:\t  900000 kB\nVmHWM:\t  250000 kB\nVmRSS:\t  100 kB\n")
    monkeypatch.setattr(peak_memory, "Path", lambda name: status)
    assert own_peak_mb() == 256.0
    usage = SimpleNamespace(ru_maxrss=250000)
    monkeypatch.setattr(resource, "getrusage", lambda who: usage)
    for text in ("", "VmPeak:\t  900000 kB\n"):
        status.write_text(text)
        monkeypatch.setattr(sys, "platform", "linux")
        assert own_peak_mb() == 256.0
        monkeypatch.setattr(sys, "platform", "darwin")
        assert own_peak_mb() == 0.25
    status.unlink()
    assert own_peak_mb() == 0.25


def test_the_machines_memory_is_its_pages():
    pages = os.sysconf("SC_PHYS_PAGES")
    assert memory_of_machine() == pages * os.sysconf("SC_PAGE_SIZE") > 10**8
