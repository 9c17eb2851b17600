import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dpfedmeta.data import cache
from dpfedmeta.data.cache import cache_folder, cached_images, source_key
from dpfedmeta.errors import InputError

IMAGES = np.arange(2 * 8 * 8, dtype=np.uint8).reshape(2, 1, 8, 8)


class Decoder:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return IMAGES


def test_images_are_decoded_once(tmp_path):
    decode = Decoder()
    paths = [cached_images(tmp_path / "new", "set", ["key", 1], decode) for _ in range(3)]
    assert decode.calls == 1
    assert len(set(paths)) == 1
    assert np.array_equal(np.load(paths[0], mmap_mode="r"), IMAGES)
    assert [path.name for path in (tmp_path / "new").iterdir()] == [paths[0].name]


@pytest.mark.parametrize("other", [["key", 2], ["key"], ["key", "1"], ["ke", "y1"]])
def test_another_key_is_another_file(tmp_path, other):
    decode = Decoder()
    assert cached_images(tmp_path, "set", ["key", 1], decode) != cached_images(tmp_path, "set", other, decode)
    assert decode.calls == 2


def test_another_format_is_another_file(tmp_path, monkeypatch):
    before = cached_images(tmp_path, "set", ["key"], Decoder())
    monkeypatch.setattr(cache, "FORMAT", cache.FORMAT + 1)
    assert cached_images(tmp_path, "set", ["key"], Decoder()) != before


def test_a_decoder_that_fails_leaves_nothing(tmp_path):
    def decode():
        raise InputError("damaged")

    with pytest.raises(InputError, match="damaged"):
        cached_images(tmp_path / "new", "set", ["key"], decode)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("crash", "seen"), [(OSError(28, "No space left on device"), InputError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_a_crash_while_writing_leaves_nothing(tmp_path, monkeypatch, crash, seen):
    save = np.save

    def half(file, images, **_):
        file.write(b"half a header")
        raise crash

    monkeypatch.setattr(np, "save", half)
    with pytest.raises(seen):
        cached_images(tmp_path, "set", ["key"], Decoder())
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(np, "save", save)
    assert np.array_equal(np.load(cached_images(tmp_path, "set", ["key"], Decoder())), IMAGES)


def test_a_full_disk_is_one_line_with_a_way_out(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match=r"No space left on device.*DPFEDMETA_CACHE"):
        cached_images(tmp_path, "set", ["key"], Decoder())


def test_a_cache_folder_that_cannot_be_made_is_bad_input(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write the decoded cache"):
        cached_images(tmp_path / "file" / "cache", "set", ["key"], Decoder())


def test_a_second_process_reads_what_the_first_decoded(tmp_path):
    path = cached_images(tmp_path, "set", ["key"], Decoder())
    program = (
        "import sys, pathlib, numpy as np\n"
        "from dpfedmeta.data.cache import cached_images\n"
        "def decode(): raise SystemExit('decoded again')\n"
        "print(cached_images(pathlib.Path(sys.argv[1]), 'set', ['key'], decode))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == path


def test_when_two_processes_decode_at_once_the_later_one_replaces_the_same_content(tmp_path):
    def while_another_finishes():
        cached_images(tmp_path, "set", ["key"], Decoder())
        return IMAGES

    path = cached_images(tmp_path, "set", ["key"], while_another_finishes)
    assert np.array_equal(np.load(path), IMAGES)
    assert len(list(tmp_path.iterdir())) == 1


def test_the_named_folder_wins(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "named"))
    assert cache_folder(tmp_path) == tmp_path / "named"


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


def test_a_source_is_known_by_path_size_and_time(tmp_path):
    path = tmp_path / "a.zip"
    path.write_bytes(b"1234")
    before = source_key(path)
    assert before == source_key(path)
    path.write_bytes(b"12345")
    assert source_key(path) != before
    os.utime(path, ns=(0, 7))
    later = source_key(path)
    os.utime(path, ns=(0, 8))
    assert source_key(path) != later
    (tmp_path / "b.zip").write_bytes(b"12345")
    os.utime(tmp_path / "b.zip", ns=(0, 8))
    assert source_key(tmp_path / "b.zip") != source_key(path)
