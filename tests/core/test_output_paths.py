"""Where a command shall write is checked before any work."""

import os
from pathlib import Path

import pytest

from dpfedmeta.__main__ import main
from dpfedmeta.cli.commands import OF_A_CHECKOUT, command_module, command_names
from dpfedmeta.cli.outputs import PICTURE, OutputKind, check_output
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import check_output_folder
from dpfedmeta.core.files.run_checks import check_outside_runs
from tests.conftest import dpfedmeta


def test_a_file_that_fits_is_accepted(tmp_path: Path):
    check_output("--out", None, PICTURE, ())
    check_output("--out", tmp_path / "new.PNG", OutputKind(endings=(".html", ".png"), mark=b""), ())
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
        check_output("--out", tmp_path / name, OutputKind(endings=(".html", ".png"), mark=b""), ())
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
        path.write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda place, mode: asked.append((place, mode)) or allowed)
    if allowed:
        check_output("--out", path, PICTURE, ())
    else:
        with pytest.raises(InputError, match=r"^--out .*new\.png: no permission to write; name another file$"):
            check_output("--out", path, PICTURE, ())
    assert asked == [(path if there else tmp_path, os.W_OK)]


# Every option that names a file to write, and a command that reads it as well; each comes with a word FILE.
WRITES = {
    ("account", "--plot"): ("p.png", "account --algo dp-agr --config FILE"),
    ("account", "--events"): ("e.json", "account --algo dp-agr --config FILE"),
    ("audit", "--plot"): ("p.png", "audit --config FILE"),
    ("audit", "--badge"): ("b.svg", "audit --function FILE --promise 1"),
    ("check-task", "--out"): ("c.png", "check-task FILE"),
    ("decompose", "--out"): ("d.png", "decompose --config FILE"),
    ("evaluate", "--out"): ("e.png", "evaluate FILE"),
    ("federate plan", "--out"): ("task.yaml", "federate plan --sites 3 --records 60 --dataset FILE"),
    ("predict", "--out"): ("one_lab.csv", "predict model.safetensors FILE"),
    ("report", "--out"): ("c.html", "report FILE"),
    ("report", "--epsilon-plot"): ("p.png", "report FILE"),
    ("report", "--latex"): ("t.tex", "report FILE"),
    ("report", "--csv"): ("t.csv", "report FILE"),
}
# New files and folders, which are refused where something is there (but for those of PDFs, sweeps and the demo).
MAKES = {("archive", "--out"), ("export", "--out"), ("federate keys", "--out"), ("account", "--papers")}
FOLDERS = {("report", "--pdf"), ("sweep", "--out"), ("federate demo", "--out")}
READS = {
    "--check", "--config", "--data", "--data-dir", "--dataset", "--extend", "--home", "--identity", "--invitation",
    "--keys", "--names", "--on", "--population", "--realised", "--resume", "--roster", "--rotate", "--run",
    "--statement", "--verify", "--weights", "file", "model", "records", "run", "runs",
}  # fmt: skip


def test_every_option_that_names_a_path_is_known_to_read_or_to_write():
    for command in (*command_names(), *OF_A_CHECKOUT):
        module = command_module(command)
        parts = {f" {part}": made for part, made in module.parsers_of().items()} if command == "federate" else None
        for name, made in (parts or {"": module.options_of()}).items():
            for action in made._actions:
                option = (action.option_strings or [action.dest])[0]
                if action.type is Path and option not in READS:
                    assert (command + name, option) in {*WRITES, *MAKES, *FOLDERS}


@pytest.mark.parametrize("way", ["another's", "itself", "a link", "a hard link", "=", "in another spelling"])
@pytest.mark.parametrize("option", WRITES, ids=" ".join)
def test_no_file_of_anybody_else_is_replaced(tmp_path: Path, option: tuple[str, str], way: str):
    """Neither an input of the same command nor a file that no command of ours wrote; nothing is done before."""
    (name, words), content = WRITES[option], "class,age\nwell,50\n"
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / name).write_text(content)
    read = "mine.yaml" if way == "another's" else name
    written = {
        "a link": f"link-{name}",
        "a hard link": f"hard-{name}",
        "in another spelling": f"../{tmp_path.name}/{name}",
    }
    out = written.get(way, name)
    if way == "a link":
        (tmp_path / out).symlink_to(name)
    if way == "a hard link":
        (tmp_path / out).hardlink_to(tmp_path / name)
    typed = [read if word == "FILE" else word for word in words.split()]
    typed += [f"{option[1]}={out}"] if way == "=" else [option[1], out]
    before = sorted(tmp_path.iterdir())
    said = dpfedmeta(*typed, folder=tmp_path, code=2).error
    why = "is there already, and is no file that this command wrote" if way == "another's" else "reads that file too"
    assert f"{option[1]} {out}: " in said
    assert why in said
    assert (tmp_path / name).read_text() == content
    assert sorted(tmp_path.iterdir()) == before


TASK = """name: own
source: {reader: vectors, path: public.csv}
features: 2
mean: [50, 70]
deviation: [10, 10]
labels: [well, ill]
"""


def test_what_the_same_command_wrote_is_replaced(tmp_path: Path):
    """So a script that is run again goes through; an empty file holds nothing that would be lost."""
    lines = [
        f"p-{part},{part},{('well', 'ill')[n % 2]},{n},{n}" for part in ("train", "val", "test") for n in range(24)
    ]
    (tmp_path / "public.csv").write_text("\n".join(["client,split,class,age,pulse", *lines]))
    (tmp_path / "task.yaml").write_text(TASK)
    small = "--population.clients 8 --population.cohort 4 --server.rounds 1 --evaluation.episodes 2 --run.dir runs"
    train = f"train --algo dp-agr --dataset strokes {small} --run.name"
    for run in ("one", "two"):
        dpfedmeta(*train.split(), run, folder=tmp_path)
    files = "--out c.html --epsilon-plot p.png --latex t.tex --csv t.csv"
    for words in (
        "account --algo dp-agr --dataset strokes --plot a.png",
        "account --algo dp-agr --dataset strokes --events e.json",
        "federate plan --sites 3 --records 60 --epsilon 2.5 --dataset task.yaml --out plan.yaml",
        "check-task strokes --out s.png",
        f"report runs/one runs/two {files}",
    ):
        for option in ("--plot", "--events", "--out"):
            if option in words:
                (tmp_path / words.split()[words.split().index(option) + 1]).touch()
        for _ in range(2):
            dpfedmeta(*words.split(), folder=tmp_path)
