"""The wheel, installed outside the tree over the present dependencies."""

import configparser
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
READS = """
import dpfedmeta, importlib.resources as r
print(dpfedmeta.__version__)
print(dpfedmeta.__file__)
for package, name in (
    ("dpfedmeta.tasks", "omniglot.yaml"), ("dpfedmeta.tasks", "omniglot-split.csv"),
    ("dpfedmeta.configs", "algo/dp-agrlr.yaml"), ("dpfedmeta.report", "run.html.j2"), ("dpfedmeta", "py.typed"),
):
    r.files(package).joinpath(name).read_text()
import dpfedmeta.federation.run, dpfedmeta.federation.evaluate_run, dpfedmeta.command_line
"""


def test_every_package_is_listed():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    listed = set(setup["options"]["packages"].split())
    found = {".".join(file.parent.relative_to(ROOT).parts) for file in (ROOT / "dpfedmeta").rglob("__init__.py")}
    assert listed == found | {"dpfedmeta.tasks", "dpfedmeta.configs"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A copy of the sources, so that building leaves nothing in the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split("\0")  # fmt: skip
    for name in filter(None, tracked):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "source" / name).write_bytes((ROOT / name).read_bytes())
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, folder / "source"], check=True, timeout=120
    )
    (wheel,) = folder.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True, timeout=120)
    return folder / "site"


def test_the_wheel_reads_its_data_outside_the_tree(installed, tmp_path):
    # PYTHONPATH comes before site-packages, so before the editable install.
    done = subprocess.run(
        [sys.executable, "-c", READS],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(installed)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    version, path = done.stdout.split()
    assert Path(path).is_relative_to(installed)
    assert version == "0.1.0"
