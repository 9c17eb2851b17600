import os
import stat

import pytest

from dpfedmeta.core.files import new_folder
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.new_folder import write_folder

CONTENTS = {"a.json": b"1", "deep/b.json": b"2"}


def test_a_folder_is_written_with_all_that_is_in_it(tmp_path):
    write_folder(tmp_path / "made", CONTENTS)
    assert {name: (tmp_path / "made" / name).read_bytes() for name in CONTENTS} == CONTENTS
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_a_secret_folder_is_its_users_alone(tmp_path):
    write_folder(tmp_path / "made", CONTENTS, SECRET)
    for name in (".", *CONTENTS):
        assert stat.S_IMODE((tmp_path / "made" / name).stat().st_mode) & 0o077 == 0


def test_of_one_that_fails_nothing_stays(tmp_path, monkeypatch):
    def fails(path, content, mode):
        if path.name == "b.json":
            assert not (tmp_path / "made").exists()
            raise OSError(28, "No space left on device")
        replace_file(path, content, mode)

    monkeypatch.setattr(new_folder, "replace_file", fails)
    with pytest.raises(OSError, match="No space"):
        write_folder(tmp_path / "made", CONTENTS)
    assert not [*tmp_path.iterdir()]


def test_one_that_is_there_stays_as_it_is(tmp_path):
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine").write_bytes(b"mine")
    with pytest.raises(OSError, match="not empty"):
        write_folder(tmp_path / "made", CONTENTS)
    assert [path.name for path in tmp_path.rglob("*")] == ["made", "mine"]


def test_what_a_killed_process_of_this_number_left_is_in_nobodys_way(tmp_path):
    left = tmp_path / f".made.{os.getpid()}"
    left.mkdir()
    (left / "old.txt").write_text("half")
    write_folder(tmp_path / "made", {"a.txt": b"whole"})
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["a.txt"]
    assert not left.exists()
