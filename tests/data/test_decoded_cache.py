import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.storage import decoded_cache as cache
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents, cache_folder, cached, source_key

SHAPE = (1, 8, 8)
IMAGES = np.arange(6 * 8 * 8, dtype=np.uint16).astype(np.uint8).reshape(6, *SHAPE)
CLASSES = (
    ClassEntry(name="a", split="train", images=3),
    ClassEntry(name="b", split="val", images=1),
    ClassEntry(name="c", split="test", images=2),
)


class Source:
    """Contents of three blocks that count how often they are opened, and fail where told."""

    def __init__(self, fail_after=None, error=None, between=None):
        self.opened, self.fail_after, self.error, self.between = 0, fail_after, error, between

    def __call__(self):
        self.opened += 1
        return Contents(classes=CLASSES, decode=self.decode)

    def decode(self):
        for number, block in enumerate((IMAGES[:1], IMAGES[1:4], IMAGES[4:])):
            if number == self.fail_after:
                raise self.error
            if self.between is not None:
                self.between()
            yield block


def store(folder, source, key=("key", 1)):
    return cached(folder, "set", list(key), SHAPE, source)


def whole(folder):
    """Names in the folder, which hold a whole cache and nothing else."""
    names = sorted(path.name for path in folder.iterdir())
    assert [Path(name).suffix for name in names] == [".json", ".npy"]
    return names


def test_images_are_decoded_once_and_classes_are_remembered(tmp_path):
    source = Source()
    done = [store(tmp_path / "new", source) for _ in range(3)]
    assert source.opened == 1
    assert done[0] == done[1] == done[2]
    assert done[2].classes == CLASSES
    mapped = np.load(done[0].path, mmap_mode="r")
    assert mapped.dtype == np.uint8
    assert np.array_equal(mapped, IMAGES)
    whole(tmp_path / "new")


@pytest.mark.parametrize("other", [["key", 2], ["key"], ["key", "1"], ["ke", "y1"]])
def test_another_key_is_another_file(tmp_path, other):
    source = Source()
    assert store(tmp_path, source) != store(tmp_path, source, other)
    assert source.opened == 2


def test_another_format_is_another_file(tmp_path, monkeypatch):
    before = store(tmp_path, Source())
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    assert store(tmp_path, Source()) != before


@pytest.mark.parametrize("damage", ["absent", "cut"])
def test_a_lost_or_damaged_list_of_classes_is_made_again(tmp_path, damage):
    path = store(tmp_path, Source()).path.with_suffix(".json")
    if damage == "absent":
        path.unlink()
    else:
        path.write_text(path.read_text()[:20])
    source = Source()
    assert store(tmp_path, source).classes == CLASSES
    assert source.opened == 1


@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (InputError("damaged"), InputError),
        (OSError(28, "No space left on device"), InputError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
@pytest.mark.parametrize("after", [0, 2])
def test_a_failure_half_way_leaves_nothing(tmp_path, error, seen, after):
    with pytest.raises(seen):
        store(tmp_path, Source(fail_after=after, error=error))
    assert list(tmp_path.iterdir()) == []
    assert np.array_equal(np.load(store(tmp_path, Source()).path), IMAGES)


def test_a_full_disk_is_one_line_with_a_way_out(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*DPFEDMETA_CACHE") as caught:
        store(tmp_path, Source())
    assert "\n" not in str(caught.value)


def test_a_read_only_cache_folder_is_bad_input_before_anything_is_decoded(tmp_path):
    tmp_path.chmod(0o555)
    try:
        source = Source(fail_after=0, error=AssertionError("decoded"))
        with pytest.raises(InputError, match=r"cannot write the decoded cache \(read-only\).*DPFEDMETA_CACHE"):
            store(tmp_path, source)
    finally:
        tmp_path.chmod(0o755)
    assert list(tmp_path.iterdir()) == []


def test_a_read_only_cache_that_is_complete_is_read(tmp_path):
    store(tmp_path, Source())
    tmp_path.chmod(0o555)
    source = Source()
    assert store(tmp_path, source).classes == CLASSES
    assert source.opened == 0
    tmp_path.chmod(0o755)


def test_a_cache_folder_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write the decoded cache"):
        store(tmp_path / "file" / "cache", Source())


def slow_store(folder, barrier):
    barrier.wait(30)
    store(folder, Source(between=lambda: time.sleep(0.05)))


def test_two_processes_that_start_at_once_both_get_a_whole_cache(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    processes = [context.Process(target=slow_store, args=(tmp_path, barrier)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0, 0]
    whole(tmp_path)
    source = Source()
    assert np.array_equal(np.load(store(tmp_path, source).path), IMAGES)
    assert source.opened == 0


def test_when_another_process_finishes_first_the_later_one_replaces_the_same_content(tmp_path):
    done = store(tmp_path, Source(between=lambda: store(tmp_path, Source())))
    assert np.array_equal(np.load(done.path), IMAGES)
    whole(tmp_path)


def test_a_killed_process_leaves_no_cache_and_its_rest_is_cleared_away_later(tmp_path):
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    context = multiprocessing.get_context("fork")
    process = context.Process(target=store, args=(tmp_path, Source(between=kill)))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    (rest,) = tmp_path.iterdir()
    assert rest.name.startswith(".set-")
    store(tmp_path, Source(), ["another"])
    assert rest.exists()  # it could still be at work
    os.utime(rest, (0, 0))
    store(tmp_path, Source())
    assert not rest.exists()


def test_a_second_process_reads_what_the_first_decoded(tmp_path):
    done = store(tmp_path, Source())
    program = (
        "import sys, pathlib\n"
        "from dpfedmeta.data.storage.decoded_cache import cached\n"
        "def decode(): raise SystemExit('decoded again')\n"
        "print(cached(pathlib.Path(sys.argv[1]), 'set', ['key', 1], (1, 8, 8), decode).path)\n"
    )
    again = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    assert Path(again.stdout.strip()) == done.path


def test_the_named_folder_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "named"))
    assert cache_folder(tmp_path) == tmp_path / "named"


def test_a_named_folder_is_in_no_run(tmp_path, monkeypatch):
    """An archive of the run would hold decoded records of people."""
    for name in ("config.yaml", "ledger.jsonl"):
        (tmp_path / name).touch()
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "named"))
    with pytest.raises(InputError, match=rf"^DPFEDMETA_CACHE {tmp_path}/named: is inside the run {tmp_path}, which"):
        cache_folder(None)


def test_the_data_folder_holds_the_cache_unless_it_is_read_only(tmp_path, monkeypatch):
    monkeypatch.delenv("DPFEDMETA_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    data = tmp_path / "data"
    data.mkdir()
    assert cache_folder(data) == data / ".dpfedmeta-cache"
    data.chmod(0o555)
    assert data not in cache_folder(data).parents
    assert "dpfedmeta" in str(cache_folder(data))
    assert cache_folder(None) == cache_folder(data) == cache_folder(tmp_path / "absent")
    data.chmod(0o755)


def test_a_source_is_known_by_path_size_time_and_digest(tmp_path):
    folder, path = tmp_path / "cache", tmp_path / "a.zip"
    path.write_bytes(b"1234")
    before = source_key(path, folder)
    assert before == source_key(path, folder)
    path.write_bytes(b"12345")
    os.utime(path, ns=(0, 7))
    later = source_key(path, folder)
    assert len({before[1:], later[1:]}) == 2
    assert before[3] != later[3]
    os.utime(path, ns=(0, 8))
    assert source_key(path, folder) != later
    assert source_key(path, folder)[3] == later[3]


def test_a_digest_is_computed_once_and_remembered(tmp_path, monkeypatch):
    path = tmp_path / "a.zip"
    path.write_bytes(b"1234")
    first = source_key(path, tmp_path / "cache")
    monkeypatch.setattr(cache, "digest_of", lambda _: pytest.fail("read again"))
    assert source_key(path, tmp_path / "cache") == first


def test_where_a_digest_cannot_be_remembered_it_is_computed(tmp_path):
    path, folder = tmp_path / "a.zip", tmp_path / "cache"
    path.write_bytes(b"1234")
    folder.mkdir(mode=0o555)
    assert source_key(path, folder) == source_key(path, tmp_path / "other")
    assert list(folder.iterdir()) == []


def test_all_is_on_disk_before_its_name_and_classes_before_images(tmp_path, monkeypatch):
    """A power cut leaves a whole cache or none: a name never comes before the content that it names."""
    events, flush, rename = [], os.fsync, Path.replace

    def flushed(handle):
        events.append(("flushed", os.fstat(handle).st_ino))
        flush(handle)

    def renamed(path, target):
        events.append(("named", path.stat().st_ino, Path(target).suffix))
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", flushed)
    monkeypatch.setattr(Path, "replace", renamed)
    store(tmp_path, Source())
    named = [event for event in events if event[0] == "named"]
    assert [event[2] for event in named] == [".json", ".npy"]
    for event in named:
        assert ("flushed", event[1]) in events[: events.index(event)]


@pytest.mark.parametrize("change", ["content", "time", "size", "path"])
def test_an_archive_is_known_again_only_as_it_was(tmp_path, change):
    """Its digest is remembered; whatever a file may differ in is looked at before that is believed."""
    archive = tmp_path / "archive"
    archive.write_bytes(b"before")
    os.utime(archive, ns=(10**18, 10**18))
    before = source_key(archive, tmp_path / "cache")
    assert source_key(archive, tmp_path / "cache") == before
    if change == "path":
        archive = archive.rename(tmp_path / "other")
    else:
        archive.write_bytes({"content": b"behind", "time": b"before", "size": b"before and more"}[change])
        # Whoever replaces an archive at equal size gives it another time.
        os.utime(archive, ns=(10**18, 10**18 + (change in ("content", "time"))))
    after = source_key(archive, tmp_path / "cache")
    assert after != before
    assert (after[3] != before[3]) == (change in ("content", "size"))
