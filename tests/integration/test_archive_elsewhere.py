"""An honest archive of data of one's own is verified by whoever has nothing but the archive."""

import random
import shutil
import zipfile

import pytest

from tests.integration.test_foreign_tables import HEAD, SHAPE, folder, rows, table


def labelled(place):
    path = place / "table.csv"
    path.write_text(table(HEAD, rows(size=30)))
    return path


def images(place):
    folder(place / "images")
    return place / "images"


def task_file(place, head=HEAD, more="labels: [ill, well]\n", lines=None):
    (place / "table.csv").write_text(table(head, lines or rows(size=30)))
    path = place / "task.yaml"
    path.write_text(f"name: clinics\nsource: {{reader: vectors, path: table.csv}}\nfeatures: 4\n{more}")
    return path


def numbers(place):
    coins = random.Random(3)
    lines = [[row[0], f"{coins.random():.3f}", *row[2:]] for row in rows(size=30)]
    more = "kind: regression\ntargets: {centre: 0, scale: 1, lowest: -2, highest: 2}\n"
    return task_file(place, ("client", "target", *HEAD[2:]), more, lines)


ROUNDS = ("--rounds", 2, "--cohort", 3, "--noise-multiplier", 1, "--evaluation.episodes", 4,
          "--evaluation.validation_episodes", 4)  # fmt: skip
CASES = [
    ("dp-agr", labelled),
    ("dp-agr", numbers),
    pytest.param("dp-agr", images, marks=pytest.mark.slow),
    pytest.param("dp-agr", task_file, marks=pytest.mark.slow),
    ("moments-agr", task_file),
]


@pytest.mark.parametrize(("algo", "made"), CASES)
def test_it_agrees_where_the_data_are_not(dpfedmeta, tmp_path, algo, made):
    there = tmp_path / "there"
    there.mkdir()
    data = made(there)
    shape = SHAPE[2:] if made is numbers else SHAPE
    rounds = ROUNDS if algo == "dp-agr" else ROUNDS[6:]
    dpfedmeta("train", "--algo", algo, "--dataset", data, *shape, *rounds, "--run.workers", 1, "--run.name", "r",
              folder=there)  # fmt: skip
    dpfedmeta("archive", "runs/r", "--out", tmp_path / "r.zip", folder=there)
    shutil.rmtree(there)
    here = tmp_path / "here"
    with zipfile.ZipFile(tmp_path / "r.zip") as file:
        file.extractall(here)
    (run,) = (path.parent for path in here.rglob("report.html"))
    found = dpfedmeta("account", "--verify", run, folder=tmp_path)
    for words in ("report.html agrees byte for byte", "summary.json agrees", "plan.json agrees"):
        assert words in found.out, found.out
