import errno
import os

import pytest

from dpfedmeta.core.files import atomic_files
from dpfedmeta.core.files.atomic_files import append_text, cut_torn_line, replace_file, whole_lines


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


def test_the_name_of_a_new_file_is_flushed_with_its_first_line(tmp_path, monkeypatch):
    """Else a power cut may lose a file whose lines were on disk."""
    flushed = []
    monkeypatch.setattr(atomic_files, "sync_folder", flushed.append)
    append_text(tmp_path / "lines", "first\n")
    assert flushed == [tmp_path]
    append_text(tmp_path / "lines", "second\n")
    assert flushed == [tmp_path]
