"""Every file that people write is read with and without the mark that some programs put before UTF-8."""

import pytest

from dpfedmeta.analytics.analysis_request import read_names
from dpfedmeta.cli.sweeps.sweep_file import read_sweep
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
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
