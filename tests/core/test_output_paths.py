"""Where a command shall write is checked before any work."""

import os
from pathlib import Path

import pytest

from dpfedmeta.__main__ import main
from dpfedmeta.cli.arguments import check_output
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import check_output_folder


def test_a_file_that_fits_is_accepted(tmp_path: Path):
    check_output("--out", None, (".png",))
    check_output("--out", tmp_path / "new.PNG", (".html", ".png"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("x.pdf", "ends in .html or .png"),
        ("x", "ends in .html or .png"),
        ("folder.png", "is a folder"),
        ("none/x.png", "there is no folder"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, name: str, words: str):
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(InputError, match=words) as refused:
        check_output("--out", tmp_path / name, (".html", ".png"))
    assert str(refused.value).startswith(f"--out {tmp_path / name}: ")
    assert not (tmp_path / "none").exists()


def test_of_a_folder_only_the_last_part_is_made(tmp_path: Path):
    (tmp_path / "file").write_text("")
    check_output_folder("--out", tmp_path)
    check_output_folder("--out", tmp_path / "new")
    for path, words in ((tmp_path / "file", "is a file"), (tmp_path / "no" / "new", "there is no folder")):
        with pytest.raises(InputError, match=words):
            check_output_folder("--out", path)


@pytest.mark.parametrize(
    "words",
    [
        ("report", "RUN", "--out", "NONE/x.html"),
        ("report", "RUN", "--out", "x.pdf"),
        ("report", "RUN", "--epsilon-plot", "x.svg"),
        ("account", "--algo", "dp-agr", "--plot", "NONE/x.png"),
        ("account", "--algo", "dp-agr", "--plot", "x.pdf"),
        ("check-task", "strokes", "--out", "NONE/x.png"),
        ("decompose", "--algo", "dp-agrlr", "--dataset", "strokes", "--out", "x.jpeg"),
    ],
)
def test_every_command_says_it_first_and_makes_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words)
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    assert words[-1] in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
def test_a_file_that_may_not_be_written_is_refused(monkeypatch, tmp_path, there, allowed):
    """The file itself where there is one, else its folder: whoever runs the tests may write anywhere."""
    path, asked = tmp_path / "new.png", []
    if there:
        path.write_text("old")
    monkeypatch.setattr(os, "access", lambda place, mode: asked.append((place, mode)) or allowed)
    if allowed:
        check_output("--out", path, (".png",))
    else:
        with pytest.raises(InputError, match=r"^--out .*new\.png: no permission to write; name another file$"):
            check_output("--out", path, (".png",))
    assert asked == [(path if there else tmp_path, os.W_OK)]
