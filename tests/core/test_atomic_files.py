import errno
import os
from pathlib import Path

import pytest

from dpfedmeta.core.files import atomic_files
from dpfedmeta.core.files.atomic_files import (
    PUBLIC,
    SECRET,
    append_text,
    cut_torn_line,
    replace_file,
    whole_lines,
)


@pytest.mark.parametrize(
    ("content", "whole"),
    [(b"", b""), (b"a\n", b"a\n"), (b"a\nb", b"a\n"), (b"a", b""), (b"a\nb\n\0\0\0", b"a\nb\n"),
     (b"a\n\0\0b\n", b"a\n"), (b"\0\0\0", b""), (b"\n", b"\n")],
)  # fmt: skip
def test_a_torn_last_line_is_told_from_whole_ones(tmp_path, content, whole):
    path = tmp_path / "lines"
    path.write_bytes(content)
    assert whole_lines(path) == (len(whole), content[len(whole) :])
    assert cut_torn_line(path) is (content != whole)
    assert path.read_bytes() == whole
    assert cut_torn_line(path) is False


def test_a_missing_file_has_no_lines(tmp_path):
    assert whole_lines(tmp_path / "absent") == (0, b"")


def test_an_append_takes_half_a_line_back_when_the_disk_is_full(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    append_text(path, "whole\n")
    honest = os.write

    def full(handle, content):
        if len(content) > 3:
            return honest(handle, content[:3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        append_text(path, "never\n")
    assert path.read_text() == "whole\n"
    with path.open("a") as torn:
        torn.write("torn")
    # What was cut off before stays off: no zeros in its place.
    with pytest.raises(OSError, match="No space"):
        append_text(path, "never\n", after=6)
    monkeypatch.undo()
    assert path.read_text() == "whole\n"
    append_text(path, "after\n", after=3)
    assert path.read_text() == "whoafter\n"


def test_a_read_only_folder_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    replace_file(path, b"old")

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with pytest.raises(OSError, match="Read-only"):
        replace_file(path, b"new")
    monkeypatch.undo()
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize(("before", "mode", "after"), [(0o600, PUBLIC, 0o600), (0o664, PUBLIC, 0o664),
                                                       (0o644, SECRET, 0o600), (None, SECRET, 0o600)])  # fmt: skip
def test_a_link_stays_one_and_a_file_keeps_its_permissions_unless_it_is_secret(tmp_path, before, mode, after):
    kept, link = tmp_path / "elsewhere" / "table.csv", tmp_path / "table.csv"
    kept.parent.mkdir()
    if before is not None:
        kept.write_bytes(b"old")
        kept.chmod(before)
    link.symlink_to(Path("elsewhere", "table.csv"))
    replace_file(link, b"new", mode)
    assert link.is_symlink()
    assert (kept.read_bytes(), kept.stat().st_mode & 0o777) == (b"new", after)
    assert [path.name for path in kept.parent.iterdir()] == ["table.csv"]


def test_the_name_of_a_new_file_is_flushed_with_its_first_line(tmp_path, monkeypatch):
    """Else a power cut may lose a file whose lines were on disk."""
    flushed = []
    monkeypatch.setattr(atomic_files, "sync_folder", flushed.append)
    append_text(tmp_path / "lines", "first\n")
    assert flushed == [tmp_path]
    append_text(tmp_path / "lines", "second\n")
    assert flushed == [tmp_path]


def test_a_file_is_flushed_before_it_takes_its_name_and_its_folder_after(tmp_path, monkeypatch):
    """Else a power cut may leave the new name with nothing behind it, or the old one."""
    path, order = tmp_path / "file", []
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", lambda handle: order.append(("flush", path.read_bytes())))
    monkeypatch.setattr(atomic_files, "sync_folder", lambda folder: order.append((folder, path.read_bytes())))
    replace_file(path, b"new")
    assert order == [("flush", b"old"), (tmp_path, b"new")]
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("mode", [PUBLIC, SECRET])
@pytest.mark.parametrize("way", [replace_file, append_text])
def test_a_new_file_is_for_whom_it_is_meant(tmp_path, way, mode):
    before = os.umask(0o022)
    try:
        way(tmp_path / "file", b"x" if way is replace_file else "x", mode)
        way(tmp_path / "usual", b"x" if way is replace_file else "x")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
    assert (tmp_path / "usual").stat().st_mode & 0o777 == 0o644


def test_what_a_killed_process_left_of_the_same_name_is_written_over(tmp_path):
    (tmp_path / f".file.{os.getpid()}").write_bytes(b"long and old")
    replace_file(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("after", "left"), [(None, "0123456789"), (0, ""), (4, "0123"), (10, "0123456789"), (99, "0123456789")]
)
def test_an_append_begins_where_the_whole_lines_end(tmp_path, after, left):
    path = tmp_path / "lines"
    path.write_text("0123456789")
    append_text(path, "new\n", after=after)
    assert path.read_text() == left + "new\n"


def test_an_append_that_has_to_be_the_first_overwrites_nothing(tmp_path):
    append_text(tmp_path / "lines", "first\n", flag=os.O_EXCL)
    with pytest.raises(FileExistsError):
        append_text(tmp_path / "lines", "second\n", flag=os.O_EXCL)
    assert (tmp_path / "lines").read_text() == "first\n"


def test_a_flush_that_fails_takes_its_line_back_and_is_an_error(tmp_path, monkeypatch):
    path = tmp_path / "lines"
    append_text(path, "whole\n")

    def fails(handle):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        append_text(path, "never\n")
    assert path.read_text() == "whole\n"


def test_a_write_of_some_bytes_goes_on_with_the_others(tmp_path, monkeypatch):
    honest = os.write
    monkeypatch.setattr(os, "write", lambda handle, content: honest(handle, content[:2]))
    append_text(tmp_path / "lines", "abcdefg\n")
    assert (tmp_path / "lines").read_text() == "abcdefg\n"


def test_no_handle_stays_open(tmp_path, monkeypatch):
    def count():
        return len([*Path("/proc/self/fd").iterdir()])

    append_text(tmp_path / "lines", "a\n")
    before = count()
    append_text(tmp_path / "lines", "b\n")
    atomic_files.sync_folder(tmp_path)
    replace_file(tmp_path / "file", b"x")
    cut_torn_line(tmp_path / "lines")

    def fails(handle, content):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", fails)
    with pytest.raises(OSError, match="full"):
        append_text(tmp_path / "lines", "c\n")
    assert count() == before
