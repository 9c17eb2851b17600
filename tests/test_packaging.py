import ast
import configparser
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

import dpfedmeta

ROOT = Path(__file__).parents[1]
PROGRAM = """
import json
from importlib import resources
import dpfedmeta, dpfedmeta.configs, dpfedmeta.tasks
import dpfedmeta.cli.arguments, dpfedmeta.api.evaluate, dpfedmeta.training.run_training
from dpfedmeta.config.load import resolve
from dpfedmeta.config.presets import algorithm_names
from dpfedmeta.data.task_file import load_task, task_names

print(json.dumps({
    "files": [module.__file__ for module in (dpfedmeta, dpfedmeta.configs, dpfedmeta.tasks)],
    "version": dpfedmeta.__version__,
    "tasks": task_names(),
    "split": len(load_task("omniglot")[1]),
    "algorithms": algorithm_names(),
    "epsilon": resolve("dp-agrlr-micro", "strokes").privacy.client.epsilon,
    "templates": [
        t.name for t in resources.files("dpfedmeta.reporting.html").iterdir() if t.name.endswith((".j2", ".css"))
    ],
    "page": (resources.files("dpfedmeta.reporting.html") / "run.html.j2").read_text()[:15],
    "typed": (resources.files("dpfedmeta") / "py.typed").is_file(),
}))
"""


def setup_cfg():
    parsed = configparser.ConfigParser()
    parsed.read(ROOT / "setup.cfg", encoding="utf-8")
    return parsed


def pip(*words, cwd):
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *map(str, words)],
        cwd=cwd,
        env=os.environ | {"PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The wheel, built from a copy of the tree and unpacked outside it."""
    pytest.importorskip("setuptools", minversion="64")
    folder = tmp_path_factory.mktemp("packaging")
    source, target = folder / "source", folder / "target"
    source.mkdir()
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("dpfedmeta", "tasks", "configs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    pip("install", "--no-deps", "--no-compile", "--target", target, wheel, cwd=folder)
    return target


def run_installed(installed, folder, *words):
    """Python in a folder of its own, with the unpacked wheel."""
    # -S: no site-packages of its own, so that an editable installation cannot stand in for a missing file.
    path = os.pathsep.join([str(installed), *{sysconfig.get_path(name) for name in ("purelib", "platlib")}])
    done = subprocess.run(
        [sys.executable, "-S", *map(str, words)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_package_finds_all_its_files(installed, tmp_path):
    seen = json.loads(run_installed(installed, tmp_path, "-c", PROGRAM))
    assert all(Path(file).is_relative_to(installed) for file in seen["files"])
    assert seen["version"] == dpfedmeta.__version__
    assert seen["tasks"] == sorted(path.stem for path in (ROOT / "tasks").glob("*.yaml"))
    assert seen["algorithms"] == sorted(path.stem for path in (ROOT / "configs" / "algo").glob("*.yaml"))
    assert sorted(seen["templates"]) == sorted(
        path.name for path in (ROOT / "dpfedmeta/reporting/html").iterdir() if path.suffix in (".j2", ".css")
    )
    assert (seen["split"], seen["epsilon"], seen["typed"]) == (1623, 1.5, True)
    assert seen["page"] == "<!doctype html>"


@pytest.mark.slow
def test_the_installed_command_trains_in_an_empty_folder(installed, tmp_path):
    words = ["--algo=maml", "--dataset=strokes", "--rounds=2", "--cohort=4", "--model.width=4", "--run.name=r"]
    words += ["--evaluation.validation_episodes=4", "--evaluation.episodes=8", "--run.workers=2"]
    printed = run_installed(installed, tmp_path, installed / "bin" / "dpfedmeta", "train", *words)
    assert "report: runs/r/report.html" in printed
    assert json.loads((tmp_path / "runs/r/summary.json").read_text())["rounds"] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_the_wheel_holds_every_module_and_nothing_else(installed):
    files = {
        path.relative_to(installed).as_posix()
        for path in installed.rglob("*")
        if path.is_file()
        and path.parent.name != "bin"
        and ".dist-info" not in path.parent.name
        and ".dist-info" not in path.parent.parent.name
    }
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dpfedmeta").rglob("*.py")}
    beside = {f"dpfedmeta/{folder}/__init__.py" for folder in ("tasks", "configs")}
    assert {file for file in files if file.endswith(".py")} == modules | beside
    assert {file.split("/")[0] for file in files} == {"dpfedmeta"}
    weights = {path.relative_to(ROOT).as_posix() for path in (ROOT / "dpfedmeta").rglob("*.safetensors")}
    assert weights
    assert {file for file in files if file.endswith(".safetensors")} == weights


def test_metadata_name_the_version_and_the_extras(installed):
    (metadata,) = installed.glob("dpfedmeta-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").splitlines()
    assert "Name: dpfedmeta" in lines
    assert f"Version: {dpfedmeta.__version__}" in lines
    assert {f"Provides-Extra: {name}" for name in setup_cfg()["options.extras_require"]} <= set(lines)


def test_every_folder_with_code_is_listed():
    listed = set(setup_cfg()["options"]["packages"].split())
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "dpfedmeta").rglob("__init__.py")}
    assert {".".join(folder.parts) for folder in folders} | {"dpfedmeta.tasks", "dpfedmeta.configs"} == listed
    with_code = {path.parent.relative_to(ROOT) for path in (ROOT / "dpfedmeta").rglob("*.py")}
    assert with_code == folders


def test_every_required_package_has_a_tested_version():
    pinned = {
        line.split("==")[0].strip().lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    parsed = setup_cfg()
    options = [parsed["options"]["install_requires"], parsed["options.extras_require"]["search"]]
    options = "\n".join(options).split("\n")
    required = {line.split(">=")[0].strip().lower() for line in options if line.strip()}
    assert required <= pinned


def test_the_citation_and_the_changelog_name_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == dpfedmeta.__version__
    assert cited["cff-version"] == "1.2.0"
    assert {"title", "message", "authors", "references"} <= set(cited)
    headings = [line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line[:3] == "## "]
    assert headings[0].split()[1] == dpfedmeta.__version__


def test_every_extra_is_named_where_readers_look():
    named = (ROOT / "docs/how-to/install.md").read_text(encoding="utf-8")
    assert [name for name in setup_cfg()["options.extras_require"] if f"`{name}`" not in named] == []


OLD = "import sys; sys.version_info = (3, 8, 0); sys.argv = {words!r}; {what}"


@pytest.mark.parametrize(
    ("what", "words", "code"),
    [
        ("import dpfedmeta", ["-m"], 2),
        ("import dpfedmeta", ["-c"], 1),
        ("sys.path[0] = 'scripts'; import checkout; checkout.command('train')", ["scripts/train.py"], 2),
    ],
)
def test_an_older_python_is_told_which_one_is_needed(what, words, code):
    done = subprocess.run(
        [sys.executable, "-c", OLD.format(words=words, what=what)], cwd=ROOT, capture_output=True, text=True
    )
    *before, last = done.stderr.splitlines()
    assert done.returncode == code
    assert "dpfedmeta needs Python 3.11 or later" in last
    assert "docs/how-to/install.md" in last
    # A program that imports the package has its traceback; a command has one line.
    assert bool(before) == (code == 1)


def test_an_older_python_can_read_what_tells_it():
    told = [ROOT / "dpfedmeta/__init__.py", ROOT / "scripts/checkout.py"]
    for path in [*told, *(ROOT / "scripts").glob("*.py")]:
        if "checkout import" in path.read_text() or path in told:
            ast.parse(path.read_text(), str(path), feature_version=(3, 8))
