"""An archive holds what is released, and nothing that is secret."""

import base64
import gzip
import hashlib
import json
import math
import os
import re
import shutil
import zipfile
from types import SimpleNamespace

import pytest
import yaml
from safetensors import safe_open

from dpfedmeta import load
from dpfedmeta.accounting.ledger.ledger import read_content
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.rounded import rounded_up
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.lock import only_writer
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.results.model_card import model_card
from dpfedmeta.training.results.run_archive import MANIFEST, archive, check_manifest, not_compared
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.state.resume import keep_launch
from dpfedmeta.training.verification.verify import audit

TINY = {
    "model.width": "4", "server.rounds": "2", "population.cohort": "6", "population.clients": "60", "task.ways": "3",
    "task.shots": "2", "task.queries": "2", "evaluation.validation_episodes": "2", "evaluation.episodes": "2",
    "run.workers": "1", "privacy.client.delta": "0.001", "clip.window": "2", "server.noise_multiplier": "2",
    "record.client_ledgers": "false",
}  # fmt: skip


@pytest.fixture(scope="module")
def ended(tiny_task_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    settings = resolve("dp-agr", str(tiny_task_file), None, {**TINY, "run.dir": str(folder), "run.name": "r"})
    return run_training(settings)[0]


@pytest.fixture
def run(ended, tmp_path):
    return RunDirectory(shutil.copytree(ended.path, tmp_path / "r"))


def test_an_archive_is_whole_without_secret_and_the_same_again(run, tmp_path, dpfedmeta):
    (run.path / ".lock").touch()
    # Logs of trackers hold times and names of machines; what is hidden is unfinished.
    for tracker in ("wandb", "tensorboard"):
        (run.path / tracker).mkdir()
        (run.path / tracker / "events.log").write_text("somebody's machine")
    (run.path / ".hidden.txt").write_text("half a file")
    (run.path / "checkpoint" / ".old").mkdir()
    (run.path / "checkpoint" / ".old" / "hidden-too.txt").write_text("half a file")
    (run.path / "evaluations").mkdir(exist_ok=True)
    (run.path / "evaluations" / ".hidden.json").write_text("half a file")
    said = dpfedmeta("archive", run.path, "--out", tmp_path / "a.zip")
    assert "secret files are not in it" in said.out
    os.utime(run.ledger, (1, 1))
    archive(run, tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    secrets = [path.read_bytes() for path in run.secret.rglob("*") if path.is_file()]
    assert len(secrets) >= 3
    with zipfile.ZipFile(tmp_path / "a.zip") as file:
        names = file.namelist()
        assert names == sorted(names)  # whatever order a folder lists them in
        assert not any(file.read(name) in secrets for name in names)
        left = ("secret", "lock", "wandb", "tensorboard", "hidden")
        assert not any(word in name for word in left for name in names)
        assert {entry.date_time for entry in file.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        file.extractall(tmp_path / "out")
    unpacked = RunDirectory(tmp_path / "out" / "r")
    stated = json.loads((unpacked.path / MANIFEST).read_text())["sha256"]
    found = {name: hashlib.sha256((unpacked.path / name).read_bytes()).hexdigest() for name in stated}
    assert found == stated
    assert {"ledger.jsonl", "summary.json", "checkpoint/model.safetensors", "config.yaml", "episodes.json"} <= set(
        stated
    )
    assert audit(unpacked).guarantees == audit(run).guarantees
    assert "participants and noise cannot" in dpfedmeta("account", "--verify", unpacked.path).out.replace("\n", " ")
    load(unpacked.path)
    (unpacked.path / "rounds.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="differs from the archived file"):
        check_manifest(unpacked)
    (unpacked.path / "rounds.jsonl").unlink()
    with pytest.raises(InputError, match="not here"):
        check_manifest(unpacked)
    assert check_manifest(run) == []


@pytest.mark.parametrize("name", ["checkpoint", "ledger.jsonl", "evaluations"])
def test_what_lies_behind_a_link_would_be_missing(run, tmp_path, name):
    if (run.path / name).exists():
        (run.path / name).rename(tmp_path / "elsewhere")
    (run.path / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=rf"{name}: is a link, and an archive holds none"):
        archive(run, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()
    # A secret folder may lie on another disk: it stays there.
    (run.path / name).unlink()
    if (tmp_path / "elsewhere").exists():
        (tmp_path / "elsewhere").rename(run.path / name)
    run.secret.rename(tmp_path / "kept")
    run.secret.symlink_to(tmp_path / "kept")
    archive(run, tmp_path / "a.zip")


def test_a_folder_may_have_a_dot_in_its_name(run, tmp_path):
    archive(run, tmp_path / "lg-v1.2")
    assert (tmp_path / "lg-v1.2/README.md").exists()


def cohorts(run):
    return [json.loads(line)["clients"] for line in (run.secret / "participations.jsonl").read_text().splitlines()]


def seed_of(run):
    return json.loads((run.secret / "noise_seed.json").read_text())["seed"]


CLOTHES = {
    "gzip": ("notes.gz", lambda run: gzip.compress((run.secret / "participations.jsonl").read_bytes())),
    "CSV": ("cohorts.csv", lambda run: "\n".join(",".join(map(str, each)) for each in cohorts(run)).encode()),
    "a line, spaced otherwise": ("checkpoint/notes.txt", lambda run: json.dumps(cohorts(run)[0], indent=2).encode()),
    "hex": ("seed.txt", lambda run: hex(seed_of(run)).encode()),
    "separators": ("sub/seed.txt", lambda run: f"{seed_of(run):,}".encode()),
    "base64": ("after-2-rounds/more/summary.json", lambda run: base64.b64encode(str(seed_of(run)).encode())),
    "the name of a run's file": ("sub/rounds.jsonl", lambda run: hex(seed_of(run)).encode()),
    "the name of a picture": ("checkpoint/accuracy.png", lambda run: hex(seed_of(run)).encode()),
    "a run inside": ("sub/wandb/debug.log", lambda run: b"somebody's machine"),
    "of people": ("people/rows.csv", lambda run: b"clinic4 was judged"),
}


@pytest.mark.parametrize("clothes", CLOTHES)
def test_what_no_command_wrote_stays_and_is_named(run, tmp_path, clothes, dpfedmeta):
    """Nobody could recognise a secret in every form that it may have."""
    usual = archive(run, tmp_path / "usual.zip").files
    name, content = CLOTHES[clothes]
    (run.path / name).parent.mkdir(parents=True, exist_ok=True)
    (run.path / name).write_bytes(content(run))
    (run.path / "link").symlink_to(tmp_path)
    made = archive(run, tmp_path / "a.zip")
    assert made.files == usual
    assert made.unknown == ((name,) if not name.startswith("sub/wandb") else ())
    said = dpfedmeta("archive", run.path, "--out", tmp_path / "b.zip").out.replace("\n", " ")
    assert (f"1 files are not in it, since no command wrote them: {name}" in said) is bool(made.unknown)


def test_everything_that_commands_leave_in_a_run_is_known(run, tmp_path, dpfedmeta):
    """It is archived, or stays on purpose: a file of a new command has to be listed."""
    dpfedmeta("evaluate", run.path, "--episodes", "2", "--shots", "1", "--seeds", "0", "--workers", "1")
    dpfedmeta("evaluate", run.path, "--episodes", "2", "--steps", "0", "1", "--out", run.path, "--workers", "1")
    dpfedmeta("report", run.path)
    keep_launch(run, {"words": []})
    made = archive(run, tmp_path / "a.zip")
    assert made.unknown == ()
    there = {path.relative_to(run.path).as_posix() for path in run.path.rglob("*") if path.is_file()}
    assert {name for name in there - set(made.files) if not name.startswith("secret/")} <= {"launch.json", ".lock"}
    assert {"evaluation.json", "report.html", "accuracy.png"} <= set(made.files)
    assert any(name.startswith("evaluations/") for name in made.files)


def test_what_is_made_of_people_and_secrets_of_a_run_inside_stay(run, tmp_path):
    """Wherever they lie, and a copy of them under another name is refused."""
    usual = set(archive(run, tmp_path / "usual.zip").files)
    counted = archive(run, tmp_path / "counted.zip").left_out
    for name in ("people-clinic-1a2b3c4d.json", "people/people-own-test.csv", "people-all/rows.csv", "sub/secret/seed"):
        (run.path / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / name).write_text(f"clinic4 was judged {name}")
    made = archive(run, tmp_path / "a.zip")
    assert set(made.files) == usual
    assert (made.left_out, made.unknown) == (counted + 4, ())
    for name in ("people/people-own-test.csv", "sub/secret/seed"):
        shutil.copy(run.path / name, run.path / "clip.png")
        with pytest.raises(InputError, match=r"clip\.png: holds what is secret in .*/sub/secret/seed|people-own-test"):
            archive(run, tmp_path / "b.zip")


@pytest.mark.parametrize("leak", ["copy", "seed"])
def test_what_is_secret_is_refused_under_a_name_that_is_archived(run, tmp_path, leak):
    if leak == "copy":
        shutil.copy(run.secret / "participations.jsonl", run.path / "audit.json")
    else:
        (run.path / "audit.json").write_text(f"the seed was {seed_of(run)}\n")
    with pytest.raises(InputError, match=r"audit\.json: holds what .*secret"):
        archive(run, tmp_path / "a.zip")
    assert not list(tmp_path.glob("*.zip"))


def test_a_run_that_has_not_ended_and_bad_names_are_refused(run, tmp_path):
    for name in ("a.tar", "a.tgz", "a.ZIP", "no/a.zip", "r/a.zip"):
        with pytest.raises(InputError, match="--out"):
            archive(run, tmp_path / name)
    (tmp_path / "there.zip").touch()
    with pytest.raises(InputError, match="exists already"):
        archive(run, tmp_path / "there.zip")
    with only_writer(run.path), pytest.raises(InputError, match="this process itself"):
        archive(run, tmp_path / "a.zip")
    with pytest.raises(InputError, match="directory of a run"):
        archive(RunDirectory(tmp_path / "state"), tmp_path / "a.zip")
    (run.path / "summary.json").unlink()
    with pytest.raises(InputError, match="has not ended"):
        archive(run, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


def test_a_folder_has_a_model_card_beside_the_weights_and_verifies(run, tmp_path, dpfedmeta):
    dpfedmeta("archive", run.path, "--out", tmp_path / "hub")
    card = (tmp_path / "hub/README.md").read_text(encoding="utf-8")
    _, metadata, text = card.split("---\n", 2)
    content = yaml.safe_load(metadata)
    summary = run.read_json("summary.json")
    assert content["library_name"] == "dpfedmeta"
    assert content["model-index"][0]["results"][0]["metrics"][0]["value"] == summary["accuracy"]["mean"]
    found = audit(run)
    for cell in found.guarantees:
        epsilon = rounded_up(cell.epsilon, 4) if math.isfinite(cell.epsilon) else "nothing is promised"
        assert f"| {cell.unit} | {cell.observer} | {epsilon} | {cell.delta:g} | {cell.adjacency} |" in text
    assert read_content(run.ledger).heads[-1] in text
    assert "2 rounds over 60 clients" in text
    with safe_open(tmp_path / "hub/model.safetensors", "numpy") as weights:
        assert len(list(weights.keys())) > 2
    # Whatever is handed on has its digest.
    stated = json.loads((tmp_path / "hub/MANIFEST.json").read_text())["sha256"]
    files = {str(path.relative_to(tmp_path / "hub")) for path in (tmp_path / "hub").rglob("*") if path.is_file()}
    assert {"README.md", "model.safetensors"} < set(stated) == files - {"MANIFEST.json"}
    assert not (tmp_path / "hub/secret").exists()
    assert "files are as they were archived" in dpfedmeta("account", "--verify", tmp_path / "hub").out
    assert load(tmp_path / "hub").form is not None
    before = sorted(path.name for path in tmp_path.iterdir())
    assert "exists already" in dpfedmeta("archive", run.path, "--out", tmp_path / "hub", code=2).error
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def with_digests(folder):
    """What whoever edits a file of an archive does next."""
    content = json.loads((folder / MANIFEST).read_text())
    content["sha256"] = {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in content["sha256"]
    }  # fmt: skip
    (folder / MANIFEST).write_text(json.dumps(content, indent=2) + "\n")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("| nothing is promised |", "| 0.5 |"),
        ("## How to check it", "## How nobody has to check it"),
        ("\nOther runs over the same clients add to these numbers.", ""),
        ("## What is promised\n", "## What is promised\n\nNothing can be learned of anybody.\n"),
        ("Not verified: ", "Verified: "),
        ("library_name: dpfedmeta", "library_name: dpfedmeta\ncertified_by: an auditor"),
        ("license: mit\n", "license: mit, and epsilon = 0.1\n"),
        ("# hub\n", "# hub, epsilon = 0.1\n"),
        (" \n", "\n"),
    ],
)
def test_a_card_in_which_a_word_was_edited_is_refused(run, tmp_path, dpfedmeta, old, new):
    folder = tmp_path / "a hub"
    dpfedmeta("archive", run.path, "--out", folder, "--license", "mit")
    said = " ".join(dpfedmeta("account", "--verify", folder).out.split())
    assert "README.md agrees byte for byte with the ledger, and with the scores in summary.json" in said
    card = folder / "README.md"
    text = card.read_text().replace("# r\n", "# hub\n") if "hub" in old else card.read_text()
    edited = text.replace(old, new) if old.strip() else f"{text} "
    assert edited != card.read_text()
    card.write_text(edited)
    with_digests(folder)
    said = dpfedmeta("account", "--verify", folder, code=2).error
    assert re.search(r"README\.md, line \d+: states|--license mit, and epsilon = 0\.1: expected", said)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"abc", "model.safetensors: incomplete or of another version"),
        ("README.md", b"---\nlicense: [: {\n---\n", "README.md: its first lines are no YAML"),
    ],
)
def test_a_damaged_file_of_an_archive_is_one_line(run, tmp_path, dpfedmeta, name, content, said):
    dpfedmeta("archive", run.path, "--out", tmp_path / "hub")
    (tmp_path / "hub" / name).write_bytes(content)
    with_digests(tmp_path / "hub")
    assert said in dpfedmeta("account", "--verify", tmp_path / "hub", code=2).error


def test_without_a_manifest_card_and_weights_are_compared_all_the_same(run, tmp_path, dpfedmeta):
    """One file less turned off what needs the ledger alone; a README.md of the user's own is named."""
    dpfedmeta("archive", run.path, "--out", tmp_path / "hub")
    hub = RunDirectory(tmp_path / "hub")
    assert not_compared(hub) == ["episodes.json"]
    (hub.path / MANIFEST).unlink()
    assert not_compared(hub) == ["episodes.json"]
    assert "README.md agrees byte for byte" in dpfedmeta("account", "--verify", hub.path).out
    card, weights = hub.path / "README.md", hub.path / "model.safetensors"
    text, content = card.read_text(), weights.read_bytes()
    card.write_text(text.replace("| client | public |", "| person | public |"))
    assert re.search(r"README\.md, line \d+: states", dpfedmeta("account", "--verify", hub.path, code=2).error)
    card.write_text("# Our notes\n")
    assert not_compared(hub) == ["README.md", "episodes.json"]
    weights.write_bytes((run.path / "checkpoint/initial.safetensors").read_bytes())
    assert "model.safetensors: has other weights" in dpfedmeta("account", "--verify", hub.path, code=2).error
    weights.write_bytes(content)


def test_without_a_page_its_pictures_are_named(run, tmp_path, dpfedmeta):
    dpfedmeta("archive", run.path, "--out", tmp_path / "hub")
    hub = RunDirectory(tmp_path / "hub")
    (hub.path / "accuracy.png").write_bytes(b"x")
    (hub.path / "report.html").unlink(missing_ok=True)
    assert "accuracy.png" in not_compared(hub)


def test_a_card_says_what_holds_and_no_more():
    bound = SimpleNamespace(unit="client", observer="public", epsilon=1.25001, delta=1e-6, adjacency="add-remove")
    none = SimpleNamespace(unit="client", observer="server", epsilon=math.inf, delta=1e-6, adjacency="replace-one")
    found = SimpleNamespace(
        plan=PrivacyPlan(clients=400, cohort=20.0, rounds=2, noise_multiplier=1.0, client_delta=1e-6),
        guarantees=(bound, none),
        proven=SimpleNamespace(cautions=("a simulation", "chosen by a private sweep: report 7")),
        unverified="not verified: the noise",
    )  # fmt: skip
    summary = {"algo": "dp-agr", "dataset": "a: b\n---", "rounds": 2, "accuracy": None, "begins_with": None}
    card = model_card("n", summary, found, "head").decode()
    assert yaml.safe_load(card.split("---\n")[1])["tags"][-1] == "dp-agr"
    assert "**Attention:** a simulation." in card
    assert "**Attention:** chosen by a private sweep: report 7." in card
    assert "| client | public | 1.251 | 1e-06 | add-remove |" in card
    assert "| client | server | nothing is promised | 1e-06 | replace-one |" in card
    assert "dp.load(FOLDER).adapt" in card
    assert card.endswith("\nNot verified: the noise.\n")
    numbers = model_card("n", summary | {"error": {"mean": 0.5}}, found, "head").decode()
    assert "dp.load" not in numbers
    assert "`dpfedmeta evaluate FOLDER --on TABLE`" in numbers


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("begins with the body of strokes (generated)", "It begins with the body of strokes (generated)."),
        ("begins with the body of /home/ann/w.st (public)", "It begins with the body of w.st (public)."),
        ("encoder lite0 (MIT/BSD)", "It learns on the features of encoder lite0 (MIT/BSD)."),
    ],
)
def test_a_card_says_no_place_and_gives_no_file_a_name_of_the_hub(words, said):
    found = SimpleNamespace(
        plan=PrivacyPlan(clients=400, cohort=20.0, rounds=2, noise_multiplier=1.0, client_delta=1e-6),
        guarantees=(), proven=SimpleNamespace(cautions=()),
        unverified="not verified: the noise",
    )  # fmt: skip
    summary = {"algo": "dp-agr", "rounds": 2, "accuracy": {"mean": 0.5, "ci95": 0.1, "episodes": 4}}
    summary |= {"begins_with": words, "dataset": "/home/ann/cifar-fs.csv"}
    card = model_card("n", summary, found, "head").decode()
    assert said in card
    assert "ann" not in card
    assert "uoft-cs" not in card
    card = model_card("n", {**summary, "dataset": "cifar-fs"}, found, "head").decode()
    assert yaml.safe_load(card.split("---\n")[1])["datasets"] == ["uoft-cs/cifar100"]


def test_files_that_nobody_compared_are_named(run, dpfedmeta):
    aside = "after-7-rounds/model.safetensors"  # which no closing line names
    for folder in ("notes", "after-7-rounds"):
        (run.path / folder).mkdir()
    for name in ("summary.html", "registry.yaml", "notes/g.md", "secret/mine.txt", ".hidden", aside):
        (run.path / name).write_text("epsilon 0.1")
    assert not_compared(run) == [aside, "episodes.json", "notes/g.md", "registry.yaml", "summary.html"]
    said = dpfedmeta("account", "--verify", run.path).out.replace("\n", " ")
    assert f"not compared: {aside}, episodes.json, notes/g.md, registry.yaml, summary.html" in said
    for number in range(20):
        (run.path / f"more-{number:02}.txt").write_text("")
    said = dpfedmeta("account", "--verify", run.path).out.replace("\n", " ")
    assert "more-07.txt and 15 more" in said
    for number in range(20):
        (run.path / f"more-{number:02}.txt").unlink()


def test_paths_that_an_archive_shows_are_named(run, tiny_task_file, tmp_path, dpfedmeta):
    said = dpfedmeta("archive", run.path, "--out", tmp_path / "a.zip").out.replace("\n", " ")
    assert f"note: dataset = {tiny_task_file}, run.dir = " in said
    assert "the hashes of the ledger hold it" in said


def test_files_are_archived_in_their_order_however_a_folder_lists_them(run, tmp_path, monkeypatch):
    archive(run, tmp_path / "one.zip")
    listed = type(run.path).rglob
    monkeypatch.setattr(type(run.path), "rglob", lambda self, pattern: sorted(listed(self, pattern), reverse=True))
    archive(run, tmp_path / "two.zip")
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
