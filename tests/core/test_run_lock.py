"""One writer of a run directory at a time, and who asks whether there is one disturbs nobody."""

import fcntl
import os
import threading
import time
from pathlib import Path

import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files import lock
from dpfedmeta.core.files.lock import being_written, ending, goes_on, only_writer


def test_a_run_has_one_writer_and_is_free_again_afterwards(tmp_path):
    with only_writer(tmp_path):
        assert being_written(tmp_path)
        with (
            pytest.raises(InputError, match="this process itself holds this run; wait for its other thread"),
            only_writer(tmp_path),
        ):
            pytest.fail("two writers")
        # The one that was refused took nothing away.
        assert being_written(tmp_path)
    assert not being_written(tmp_path)
    with pytest.raises(ValueError, match="stop"), only_writer(tmp_path):
        raise ValueError("stop")
    with only_writer(tmp_path):
        pass


def test_nothing_is_written_to_find_out_and_no_folder_is_needed(tmp_path):
    assert not being_written(tmp_path)
    assert not being_written(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    with only_writer(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with pytest.raises(InputError, match=r"none: cannot be written \(No such file or directory\); is this the dir"):
        only_writer(tmp_path / "none").__enter__()


def test_many_may_look_at_a_time_and_a_writer_waits_for_them(tmp_path):
    """Whoever looks holds the lock for an instant."""
    with only_writer(tmp_path):
        pass
    looking = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    assert not being_written(tmp_path)
    threading.Timer(lock._LOOK_SECONDS / 4, os.close, (looking,)).start()
    begun = time.monotonic()
    with only_writer(tmp_path):
        assert time.monotonic() - begun >= lock._LOOK_SECONDS / 10


def test_one_who_stays_is_waited_for_no_longer_than_a_look_takes(tmp_path):
    begun = time.monotonic()
    with only_writer(tmp_path), pytest.raises(InputError, match="wait for its other thread"):
        only_writer(tmp_path).__enter__()
    assert lock._LOOK_SECONDS <= time.monotonic() - begun < 20 * lock._LOOK_SECONDS


@pytest.mark.parametrize("error", [OSError("no locks here"), BlockingIOError()])
def test_a_file_system_without_locks_has_no_writer(tmp_path, monkeypatch, error):
    (tmp_path / ".lock").touch()

    def refuse(handle, how):
        raise error

    monkeypatch.setattr(fcntl, "flock", refuse)
    before = len([*Path("/proc/self/fd").iterdir()])
    assert being_written(tmp_path) is isinstance(error, BlockingIOError)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_run_that_its_own_process_ends_goes_on_no_more(tmp_path, monkeypatch):
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    monkeypatch.chdir(tmp_path.parent)
    assert not goes_on(tmp_path)
    with only_writer(tmp_path):
        assert goes_on(tmp_path)
        with pytest.raises(ValueError, match="stop"), ending(tmp_path / "link"):
            for way in (tmp_path, tmp_path / "link", type(tmp_path)(tmp_path.name)):
                assert not goes_on(way)
                assert being_written(way)
            raise ValueError("stop")
        # Its last page may have failed: then it is still held.
        assert goes_on(tmp_path)
    with ending(tmp_path):
        assert not goes_on(tmp_path)


def test_a_fork_is_another_process_than_the_one_that_holds_the_lock(tmp_path):
    with only_writer(tmp_path, "call close()"):
        with pytest.raises(InputError, match=r"this process itself holds this run; call close\(\)"):
            only_writer(tmp_path).__enter__()
        if (child := os.fork()) == 0:
            try:
                only_writer(tmp_path).__enter__()
            except InputError as error:
                os._exit(7 if "another process is writing" in str(error) else 1)
            os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    # A holder of before is no holder of now.
    handle = os.open(tmp_path / ".lock", os.O_RDWR)
    assert lock.let_go_of(handle) is None
    os.close(handle)
