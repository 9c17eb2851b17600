"""Where a command shall write is checked before any work."""

import os
from pathlib import Path

import pytest

from dpfedmeta.__main__ import main
from dpfedmeta.cli.arguments import check_output
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import check_output_folder
from dpfedmeta.core.files.run_checks import check_outside_runs


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


@pytest.fixture
def a_run(tmp_path: Path) -> Path:
    """As far as a check of places looks."""
    run = tmp_path / "runs" / "mine"
    (run / "secret").mkdir(parents=True)
    (run / "config.yaml").touch()
    (run / "ledger.jsonl").touch()
    return run


@pytest.mark.parametrize("inside", ["", "x", "a/b/x", "checkpoint/secret/x", "secret/../x", "secretly", "secret.d/x"])
def test_a_place_in_a_run_is_refused_but_for_its_secrets(a_run: Path, inside: str, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(InputError, match=r"--out .*: is inside the run .*mine, which may be published") as error:
        check_outside_runs("--out", a_run / inside)
    assert f"or {a_run / 'secret'}" in str(error.value)
    monkeypatch.chdir(a_run)
    with pytest.raises(InputError, match="inside the run"):
        check_outside_runs("--out", Path(inside))


@pytest.mark.parametrize("missing", ["config.yaml", "ledger.jsonl", None])
def test_other_places_are_taken(a_run: Path, missing: str | None):
    """A folder with a config.yaml of one's own is no run."""
    for place in ("secret", "secret/x", "secret/a/b", "../beside", "../mine2/x"):
        check_outside_runs("--out", a_run / place)
    if missing is not None:
        (a_run / missing).unlink()
        check_outside_runs("--out", a_run / "x")


def test_a_run_in_the_secrets_of_a_run_and_a_link_into_a_run_are_looked_through(a_run: Path, tmp_path: Path):
    inner = a_run / "secret" / "inner"
    inner.mkdir()
    for name in ("config.yaml", "ledger.jsonl"):
        (inner / name).touch()
    check_outside_runs("--out", inner / "secret" / "x")
    (tmp_path / "link").symlink_to(a_run)
    for place in (inner / "x", tmp_path / "link" / "x"):
        with pytest.raises(InputError, match="inside the run"):
            check_outside_runs("--out", place)


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "RUN", "--on", "none.csv", "--out", "RUN/x"),
        ("evaluate", "RUN", "--own-test", "--out", "RUN"),
        ("federate", "keys", "--out", "RUN/x.key"),
        ("federate", "keys", "--server", "--out", "RUN/keys"),
        ("check-task", "strokes", "--out", "RUN/x.png"),
    ],
)
def test_what_is_secret_is_written_into_no_run(
    a_run: Path, words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Before any work: there is no such data, and nothing is made."""
    (a_run / "ledger.jsonl").write_text("{}\n")
    before = sorted(a_run.rglob("*"))
    monkeypatch.setattr("sys.argv", ["dpfedmeta", *(word.replace("RUN", str(a_run)) for word in words)])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert f"is inside the run {a_run}, which may be published" in " ".join(capsys.readouterr().err.split())
    assert sorted(a_run.rglob("*")) == before


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
