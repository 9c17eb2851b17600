"""What is published before round 0 follows from public data and settings alone: all clients' data are replaced.

The files of a run that are not in `secret/`, and what the plan says on the terminal (docs/guarantees.md has the table).
"""

import csv
import io
import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from PIL import Image
from rich.console import Console

from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.names import splits_of
from dpfedmeta.data.populations.population import open_population
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training import run_training as run_module
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.setup import RunOptions
from dpfedmeta.training.terminal.progress import Terminal
from tests.conftest import TINY

NAMES = [f"person{number:02d}" for number in range(12)]
SPLITS = splits_of(NAMES, 1)
GIVEN = {
    "model.width": "4", "server.rounds": "2", "population.kind": "natural", "population.clients": "{clients}",
    "population.cohort": "3", "task.ways": "2", "task.shots": "1", "task.queries": "1", "evaluation.episodes": "2",
    "evaluation.validation_episodes": "2", "evaluation.queries": "1", "run.workers": "1", "run.noise_seed": "3",
    "clip.window": "2", "privacy.client.delta": "0.001", "run.name": "r",
}  # fmt: skip


class Stopped(BaseException):
    """Round 0 would begin."""


def write(folder, of, draw):
    """Images of one client: (side, colours, how many classes, images of each)."""
    side, mode, classes, images = of
    for kind in range(classes):
        place = folder / f"thing{kind}"
        place.mkdir(parents=True)
        for number in range(images):
            shape = (side, side) if mode == "L" else (side, side, 3)
            Image.fromarray(draw.integers(0, 256, shape, np.uint8)).save(place / f"{number}.png")


def published(folder, monkeypatch, population=None, **more):
    """(By file what a run published, what it said) by the time that its first clients compute."""
    clients = sum(split == "train" for split in SPLITS.values())
    given = {key: value.format(clients=clients) for key, value in GIVEN.items()} | {"run.dir": str(folder.parent)}
    given |= more

    def stop(*given):
        raise Stopped

    said = io.StringIO()
    console = Console(file=said, width=200)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(LocalBackend, "cohort_sum", stop)
        # How fast this machine is today; it is measured on clients of public data (training.cost).
        patch.setattr(run_module, "clients_per_second", lambda *given: 50.0)
        options = RunOptions(population=population)
        run_training(resolve("dp-agr", str(folder), None, given), options, callbacks=[Terminal(console)])
    run = RunDirectory(folder.parent / "r")
    files = {}
    for path in sorted(run.path.rglob("*")):
        if path.is_file() and run.secret not in path.parents:
            files[str(path.relative_to(run.path))] = path.read_bytes()
    # Its name is random, and the hash of the line with it; a charge has the digest of the environment.
    files["ledger.jsonl"] = re.sub(rb'"(run|hash|inputs|previous)": ?"[0-9a-f]*"', b"", files["ledger.jsonl"])
    return files, said.getvalue()


OTHERS = {
    "other pixels": (28, "L", 3, 4),
    "other sizes and colours": (40, "RGB", 3, 4),
    "other numbers of classes and images": (28, "L", 5, 7),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_is_published_before_round_0_knows_no_training_client(tmp_path, monkeypatch, other):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    found = []
    folder = tmp_path / "place" / "people"
    for seed, of in ((1, OTHERS["other pixels"]), (2, OTHERS[other])):
        shutil.rmtree(folder.parent, ignore_errors=True)
        public, private = np.random.default_rng(0), np.random.default_rng(seed)
        for name in NAMES:
            trains = SPLITS[name] == "train"
            write(folder / name, of if trains else OTHERS["other pixels"], private if trains else public)
        found.append(published(folder, monkeypatch))
    assert "28 x 28" in same(*found)


def same(first, *others):
    """All that was published is the same, byte for byte; returns what was said."""
    for other in others:
        (one, said), (two, told) = first, other
        check_same(one, two)
        assert said == told
    return first[1]


def check_same(one, two):
    assert {"plan.json", "config.yaml", "ledger.jsonl"} <= one.keys(), one.keys()
    assert any(name.endswith("safetensors") for name in one), one.keys()
    for name in one:
        assert one[name].decode(errors="replace").splitlines() == two[name].decode(errors="replace").splitlines(), name
    assert one.keys() == two.keys()


# Rows of one's own: (class, split, number of the record in it). A hash decides over no part: the rows say it.
ROWS = [
    (f"{split}{label}", split, number)
    for split in ("train", "val", "test")
    for label in range(4)
    for number in range(6)
]
FEWER = {
    "all": ROWS,
    "a record less": [row for row in ROWS if row[0] != "train1" or row[2]],
    "a class less": [row for row in ROWS if row[0] != "train3"],
    "more of all": [*ROWS, *((f"train{label}", "train", 6) for label in range(4))],
}


def draw(row):
    """What this record is, whichever others there are."""
    return np.random.default_rng([ord(row[1][1]), int(row[0][-1]), row[2]])


def pixels(row):
    return draw(row).integers(0, 256, (28, 28), np.uint8)


def folder_of_classes(place, rows):
    for row in rows:
        path = place / row[1] / row[0] / f"{row[2]}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels(row)).save(path)


def listed(place, rows):
    folder_of_classes(place.parent / "images", rows)
    table(place, ["path", "class", "split"], ((f"images/{r[1]}/{r[0]}/{r[2]}.png", r[0], r[1]) for r in rows))


def numbers(place, rows):
    table(place, ["class", "split", "a", "b", "c"], ([*r[:2], *draw(r).normal(size=3).round(3)] for r in rows))


def arrays(place, rows):
    records = np.stack([draw(row).normal(size=3) for row in rows]).astype(np.float32)
    np.savez(place, records=records, classes=[row[0] for row in rows], splits=[row[1] for row in rows])


def tokens(place, rows):
    words = (" ".join(map(str, draw(row).integers(1, 20, 6))) for row in rows)
    table(place, ["class", "split", "tokens"], ((*row[:2], each) for row, each in zip(rows, words, strict=True)))


def table(place, head, rows):
    with place.open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])


WRITERS = {"folder": folder_of_classes, "list.csv": listed, "rows.csv": numbers, "rows.npz": arrays, "said.csv": tokens}
LEARNED = {"rows.csv": "mlp", "rows.npz": "mlp", "said.csv": "text"}
CASES = [("virtual", name) for name in WRITERS] + [("disjoint", "folder"), ("disjoint", "rows.csv")]


@pytest.mark.parametrize(("kind", "data"), CASES)
def test_nobody_learns_how_many_records_of_ones_own_there_are(tmp_path, monkeypatch, kind, data):
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    more = {"population.kind": kind, "population.clients": "3" if kind == "disjoint" else "40"}
    if data in LEARNED:
        more |= {"model.name": LEARNED[data], "model.initial": "null"}
    found, place = [], tmp_path / "place" / data
    for rows in FEWER.values():
        shutil.rmtree(place.parent, ignore_errors=True)
        place.parent.mkdir()
        WRITERS[data](place, rows)
        if data == "said.csv":  # how long sequences are, no table says
            source = {"reader": "tokens", "path": data}
            given = {"name": "said", "source": source, "length": 6, "vocabulary": 20}
            (place.parent / "task.yaml").write_text(yaml.safe_dump(given))
        task = place.parent / "task.yaml"
        found.append(published(task if task.exists() else place, monkeypatch, **more))
    assert "simulated clients hold" in same(*found).replace("\n", " ")


def test_nobody_learns_how_many_records_a_population_that_was_handed_over_has(tmp_path, monkeypatch, tiny_strokes):
    """Its images may be anybody's, though the benchmark is public."""
    monkeypatch.setenv("DPFEDMETA_STATE", str(tmp_path / "state"))
    (tmp_path / "runs").mkdir()
    task = tmp_path / "runs" / "tiny.yaml"
    task.write_text(yaml.safe_dump(TINY))
    found, pool = [], tiny_strokes.train
    for counts in (pool.counts, (*pool.counts[:-1], pool.counts[-1] - 1)):
        clients = open_population(
            "virtual", replace(pool, counts=counts), EpisodeShape(ways=2, shots=1, queries=1), 40, 0
        )
        shutil.rmtree(tmp_path / "runs" / "r", ignore_errors=True)
        more = {"population.kind": "virtual", "population.clients": "40"}
        found.append(published(task, monkeypatch, clients, **more))
    assert "whose number is private" in same(*found).replace("\n", " ")


def test_the_images_of_a_benchmark_are_counted(tmp_path, monkeypatch):
    task = tmp_path / "tiny.yaml"
    task.write_text(yaml.safe_dump(TINY))
    files, said = published(task, monkeypatch, **{"population.kind": "virtual", "population.clients": "40"})
    assert "made from 240 images" in said.replace("\n", " ")
    assert json.loads(files["plan.json"])["described"]["population"]["images"] == 240
