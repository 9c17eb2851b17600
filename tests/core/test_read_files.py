"""Every file that people write is read with and without the mark that some programs put before UTF-8."""

import contextlib
import hashlib

import pytest

from dpfedmeta.analytics.analysis_request import read_names
from dpfedmeta.cli.sweeps.sweep_file import read_sweep
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.read_files import WrongEncoding, decoded, digest_of, open_text, read_text
from dpfedmeta.data.sources.mini_imagenet import _read_list
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.csv_table import read_table
from dpfedmeta.federation.identity.credentials import card_line, read_roster
from dpfedmeta.federation.identity.invitation import Invitation, read_invitation, write_invitation

TASK = "name: t\nsource: {reader: folder, path: x}\nchannels: 1\nimage_size: 12\n"
SWEEP = "algo: maml\ndataset: strokes\nmethod: grid\nmetric: {name: accuracy, goal: maximize}\n"


def split_list(path):
    task = path.with_name("t.yaml")
    task.write_text(TASK + f"split: {path.name}\n")
    return load_task(str(task))[1]


READERS = {
    "a config": ("c.yaml", "model:\n  width: 4\n", lambda path: resolve("maml", "strokes", path).model.width),
    "a task": ("t.yaml", TASK, lambda path: load_task(str(path))[0].name),
    "a list of splits": ("s.csv", "class,split\nä,train\nb,val\n", split_list),
    "a table": ("t.csv", "class,x\nä,1\nb,2\n", lambda path: [row.label for row in read_table(path).rows]),
    "a list of images": ("l.csv", "filename,label\nä.jpg,b\n", _read_list),
    "names": ("names.txt", "ä\tb\nb\n", read_names),
}


@pytest.mark.parametrize("of", READERS)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_a_mark_at_the_beginning_is_no_part_of_the_text(tmp_path, of, ends):
    name, text, read = READERS[of]
    path = tmp_path / name
    path.write_bytes(text.encode())
    plain = read(path)
    path.write_bytes(b"\xef\xbb\xbf" + text.replace("\n", ends).encode())
    assert read(path) == plain


def test_rosters_and_invitations(tmp_path):
    lines = [card_line(bytes([number + 1]) * 32, f"client{number}") for number in range(2)]
    path = tmp_path / "roster"
    path.write_text("".join(f"{line.strip()}\n" for line in lines))
    plain = read_roster(path)
    # Cards that were joined have a mark each.
    path.write_bytes(b"".join(b"\xef\xbb\xbf" + line.strip().encode() + b"\r\n" for line in lines))
    assert read_roster(path) == plain
    path = tmp_path / "invitation.yaml"
    write_invitation(path, Invitation(server="localhost:4433", identity=bytes(32), authority=b"x"))
    plain = read_invitation(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_invitation(path) == plain


ALL = {**READERS, "a roster": ("roster", "x", read_roster), "a sweep": ("s.yaml", "algo: maml\n", read_sweep)}


@pytest.mark.parametrize("of", ALL)
@pytest.mark.parametrize("encoding", ["utf-16", "latin-1"])
def test_other_encodings_are_named(tmp_path, of, encoding):
    name, text, read = ALL[of]
    path = tmp_path / name
    path.write_bytes(f"{text}# ä\n".encode(encoding))
    with pytest.raises(InputError, match=r"UTF-16; save it as UTF-8|UTF-8") as caught:
        read(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", ""),
        (b"\xef\xbb\xbf", ""),
        (b"\xef\xbb\xbfa\r\nb\rc\n", "a\nb\nc\n"),
        (b"a\n\xef\xbb\xbfb\n", "a\nb\n"),
        (b"a\r\n\xef\xbb\xbfb", "a\nb"),
        ("a\ufeffb".encode(), "a\ufeffb"),
        (b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa"),
    ],
)
def test_bytes_are_read_without_marks_and_with_one_kind_of_line_end(tmp_path, content, text):
    assert decoded(content) == text
    (tmp_path / "f").write_bytes(content)
    assert read_text(tmp_path / "f") == text


BEGINNINGS = {
    "\xff\xfe": "it is UTF-16; save it as UTF-8",
    "\xfe\xff": "it is UTF-16; save it as UTF-8",
    "\x1f\x8b": "it is compressed by gzip, whatever its name says; unpack it (gunzip)",
    "\xfd7zXZ": "it is compressed by xz; unpack it",
    "\x28\xb5\x2f\xfd": "it is compressed by zstd; unpack it",
}


@pytest.mark.parametrize("beginning", BEGINNINGS)
@pytest.mark.parametrize(
    "reader", [read_text, lambda path: open_text(path).close(), lambda path: decoded(path.read_bytes())]
)
def test_what_is_no_text_is_told_by_how_it_begins_whoever_reads_it(tmp_path, beginning, reader):
    (tmp_path / "f").write_bytes(beginning.encode("latin-1") + b"and more")
    with pytest.raises(WrongEncoding) as caught:
        reader(tmp_path / "f")
    assert str(caught.value) == BEGINNINGS[beginning]
    # A part of it, or the same further on, is something else.
    for content in (beginning.encode("latin-1")[:1], b"a" + beginning.encode("latin-1")):
        (tmp_path / "f").write_bytes(content)
        with contextlib.suppress(WrongEncoding, UnicodeDecodeError):
            reader(tmp_path / "f")
            continue
        with pytest.raises((WrongEncoding, UnicodeDecodeError)) as caught:
            reader(tmp_path / "f")
        assert str(caught.value) != BEGINNINGS[beginning]


def test_a_byte_that_is_no_text_is_told_by_its_place():
    with pytest.raises(WrongEncoding, match=r"^it is not UTF-8 \(invalid start byte at byte 4\); save it as UTF-8$"):
        decoded(b"abc\n\xffx")


def test_a_file_that_is_read_line_by_line_keeps_its_line_ends(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\r\nb\nc")
    with open_text(tmp_path / "f") as file:
        assert list(file) == ["a\r\n", "b\n", "c"]


@pytest.mark.parametrize("size", [0, 5, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 3 << 20])
def test_a_digest_is_that_of_the_whole_file(tmp_path, size):
    content = bytes(range(256)) * (size // 256 + 1)
    (tmp_path / "f").write_bytes(content[:size])
    assert digest_of(tmp_path / "f") == hashlib.sha256(content[:size]).hexdigest()
    assert digest_of(tmp_path / "f", "md5") == hashlib.md5(content[:size], usedforsecurity=False).hexdigest()


def test_a_file_of_another_encoding_is_told_as_that(tmp_path):
    """Its line ends are no carriage returns alone."""
    path = tmp_path / "names.txt"
    path.write_bytes("a\r\nb\r\n".encode("utf-16"))
    with pytest.raises(InputError, match="UTF-16"):
        read_names(path)
