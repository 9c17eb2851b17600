"""What is published before round 0 follows from public data and settings alone: all clients' data are replaced.

The files of a run that are not in `secret/`, and what the plan says on the terminal (docs/guarantees.md has the table).
"""

import io
import re
import shutil

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from dpfedmeta.config.load import resolve
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.data.names import splits_of
from dpfedmeta.simulation.cohort_sums import LocalBackend
from dpfedmeta.training import run_training as run_module
from dpfedmeta.training.run_training import run_training
from dpfedmeta.training.terminal.progress import Terminal

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


def published(folder, monkeypatch):
    """(By file what a run published, what it said) by the time that its first clients compute."""
    clients = sum(split == "train" for split in SPLITS.values())
    given = {key: value.format(clients=clients) for key, value in GIVEN.items()} | {"run.dir": str(folder.parent)}

    def stop(*given):
        raise Stopped

    said = io.StringIO()
    console = Console(file=said, width=200)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        patch.setattr(LocalBackend, "cohort_sum", stop)
        # How fast this machine is today; it is measured on clients of public data (training.cost).
        patch.setattr(run_module, "clients_per_second", lambda *given: 50.0)
        run_training(resolve("dp-agr", str(folder), None, given), callbacks=[Terminal(console)])
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
    (one, said), (two, told) = found
    assert {"plan.json", "config.yaml", "ledger.jsonl"} <= one.keys(), one.keys()
    assert any(name.endswith("safetensors") for name in one), one.keys()
    for name in one:
        assert one[name].decode(errors="replace").splitlines() == two[name].decode(errors="replace").splitlines(), name
    assert one.keys() == two.keys()
    assert said == told
    assert "28 x 28" in said
