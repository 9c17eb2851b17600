"""Fed-Heart-Disease: four hospitals, ill or not, beside each hospital alone, its majority and all data in one place.

    python examples/heart/heart.py --data /path/to/heart-disease --out heart --splits 20

The data are the four processed files of UCI's heart disease set, prepared as FLamby does (2022): columns 10 to 12 and
rows with gaps are left out, and columns 2 and 6 become dummies. Each split draws 66% of every hospital's patients to
train on; the rest judges. Hospitals differ in size and in how many are ill; all of their training patients take part.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

import dpfedmeta as dp
from dpfedmeta.api.evaluate_people import evaluate_people
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.evaluation.baselines import Alone
from dpfedmeta.learning.evaluation.people import RecordSplit
from dpfedmeta.learning.targets.classification import Classification

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
LABELS = ("healthy", "ill")
_LEFT_OUT, _DUMMIES = (10, 11, 12), {2: (2, 3, 4), 6: (1, 2)}
# Mean and deviation as a textbook would guess them, of no patient here: age, sex, pressure, cholesterol, sugar, rate,
# angina, depression of the ST segment; then the dummies.
MEAN = (54.0, 0.5, 130.0, 220.0, 0.2, 140.0, 0.4, 1.0, *5 * (0.3,))
DEVIATION = (9.0, 0.5, 18.0, 90.0, 0.4, 25.0, 0.5, 1.1, *5 * (0.45,))
# Tried on splits 1000 and 1001 alone, which are not among those that are reported.
TRAINING = {
    "meta.method": "fedavg", "meta.order": None, "meta.adapt": None, "meta.learn": "all", "task.shots": 1,
    "task.queries": 1, "meta.steps": 20, "meta.lr": 0.1, "meta.batch": None, "server.rounds": 30,
    "population.cohort": 4, "population.clients": 4, "population.sampler": "fixed",
    "population.max_participations": None, "clip.policy": "none", "server.optimizer": "sgd", "server.beta1": 0.0,
    "server.lr": 1.0, "server.final_lr": None, "model.name": "linear", "model.norm": "none", "task.ways": 2,
    "model.features": "raw", "evaluation.every": 30, "evaluation.episodes": 2, "evaluation.validation_episodes": 2,
    "evaluation.queries": 1, "evaluation.shots": 1, "evaluation.adapt": "all", "evaluation.steps": 20,
    "evaluation.lr": 0.1, "run.workers": 1,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class Patients:
    """One hospital: [n, 13] numbers as they are measured, and [n] whether a patient is ill."""

    records: np.ndarray
    ill: np.ndarray


def read_hospitals(folder: Path) -> dict[str, Patients]:
    """All patients without a gap."""
    return {name: _read(folder / f"processed.{name}.data") for name in HOSPITALS}


def _read(path: Path) -> Patients:
    rows = [line.split(",") for line in path.read_text().splitlines() if line.strip()]
    kept = [[value for place, value in enumerate(row) if place not in _LEFT_OUT] for row in rows]
    found = [[float(value) for value in row] for row in kept if "?" not in row]
    plain = [[v for place, v in enumerate(row[:-1]) if place not in _DUMMIES] for row in found]
    dummies = [[float(row[place] == value) for place in _DUMMIES for value in _DUMMIES[place]] for row in found]
    return Patients(records=np.hstack([plain, dummies]), ill=np.array([row[-1] > 0 for row in found]).astype(np.int64))


def split_of(count: int, hospital: int, split: int) -> np.ndarray:
    """Which patients of a hospital train: 66%, by the number of the split."""
    order = np.random.default_rng([split, hospital]).permutation(count)
    trains = np.zeros(count, dtype=bool)
    trains[order[: int(0.66 * count)]] = True
    return trains


@dataclass(frozen=True, kw_only=True, eq=False)
class Hospitals:
    """The four as clients (dpfedmeta.data.populations.population.Population): all training patients of each."""

    held: Sequence[Patients]
    trains: Sequence[np.ndarray]

    @property
    def clients(self) -> int:
        """Four."""
        return len(self.held)

    def episode(self, client: int) -> Episode:
        """All of its training patients; federated averaging needs no query set."""
        own, rows = self.held[client], self.trains[client]
        records = ((own.records[rows] - MEAN) / DEVIATION).astype(np.float32)
        return Episode(
            support_images=torch.from_numpy(records),
            support_labels=torch.from_numpy(own.ill[rows]),
            query_images=torch.zeros(0, records.shape[1]),
            query_labels=torch.zeros(0, dtype=torch.int64),
        )


def write_task(folder: Path) -> Path:
    """Write the task file: the public list of labels and constants, and made-up patients for validation and test.

    A run wants clients that no hospital is; these were never anybody, and nothing is chosen by them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator, columns = np.random.default_rng(0), [f"x{number}" for number in range(len(MEAN))]
    with (folder / "made-up.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "split", "class", *columns])
        for split in ("train", "val", "test"):
            for label in 2 * LABELS:
                values = np.round(generator.normal(MEAN, DEVIATION), 2)
                writer.writerow([f"made-up-{split}", split, label, *values])
    constants = f"mean: {json.dumps(MEAN)}\ndeviation: {json.dumps(DEVIATION)}\nlabels: {json.dumps(LABELS)}\n"
    source = "source: {reader: vectors, path: made-up.csv}\n"
    (folder / "heart.yaml").write_text(f"name: heart\n{source}features: {len(MEAN)}\n{constants}")
    return folder / "heart.yaml"


def write_patients(path: Path, held: Mapping[str, Patients], trains: Sequence[np.ndarray]) -> None:
    """Write the table that judges: of every hospital the patients that trained, and those that judge."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "split", "class", *(f"x{number}" for number in range(len(MEAN)))])
        for (name, own), rows in zip(held.items(), trains, strict=True):
            for record, ill, train in zip(own.records.tolist(), own.ill.tolist(), rows.tolist(), strict=True):
                writer.writerow([name, "train" if train else "test", LABELS[ill], *record])


def judged(task: Path, held: Mapping[str, Patients], split: int, out: Path) -> dict[str, dict[str, float | None]]:
    """Train on one split; mean over hospitals of every measure, by model."""
    trains = [split_of(len(own.ill), number, split) for number, own in enumerate(held.values())]
    own = Hospitals(held=list(held.values()), trains=trains)
    changes = {**TRAINING, "run.dir": str(out / "runs"), "run.name": f"split-{split}"}
    settings = dp.Settings.preset("maml", task, changes)
    path = out / "runs" / f"split-{split}"
    if not (path / "summary.json").is_file():
        dp.train(settings, population=own, quiet=True)
    table = out / f"split-{split}.csv"
    write_patients(table, held, trains)
    found = evaluate_people(path, table, RecordSplit(shots=None, repeats=2, seed=0))
    models = {name: [each.measures for each in found.scores] for name in found.scores[0].first}
    rows = {
        name: {measure: _mean([each[measure][name] for each in every]) for measure in every[0]}
        for name, every in models.items()
    }
    return {**rows, "all data in one place": _pooled(own)}


def _pooled(own: Hospitals) -> dict[str, float | None]:
    """Softmax regression on the training patients of all, judged like the others."""
    episodes = [own.episode(client) for client in range(own.clients)]
    records = torch.cat([each.support_images for each in episodes])
    labels, found, kind = torch.cat([each.support_labels for each in episodes]), [], Classification(shared=2)
    for held, rows in zip(own.held, own.trains, strict=True):
        judging = torch.from_numpy(((held.records[~rows] - MEAN) / DEVIATION).astype(np.float32))
        query = torch.from_numpy(held.ill[~rows])
        episode = Episode(support_images=records, support_labels=labels, query_images=judging, query_labels=query)
        found.append(kind.measures(Alone().outputs(episode, 2), query))
    return {name: _mean([each[name] for each in found]) for name in found[0]}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def main(words: Sequence[str] | None = None) -> None:
    """Judge all splits and print one table."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--data", type=Path, required=True, help="folder with the four processed files")
    made.add_argument("--out", type=Path, default=Path("heart"), help="folder for runs and tables")
    made.add_argument("--splits", type=int, default=20, help="how many random splits (20)")
    made.add_argument("--first", type=int, default=0, help="number of the first split (0)")
    options = made.parse_args(words)
    held, task = read_hospitals(options.data), write_task(options.out)
    print({name: len(own.ill) for name, own in held.items()})
    found = []
    for split in range(options.first, options.first + options.splits):
        found.append(judged(task, held, split, options.out))
        (options.out / "found.json").write_text(json.dumps(found, indent=1))
    print(table_of(found))


def table_of(found: Sequence[Mapping[str, Mapping[str, float | None]]]) -> str:
    """Means over splits as Markdown, and the paired difference from each hospital alone."""
    rows = ["| model | accuracy | balanced | AUC | accuracy less alone (95%) |", "|---|---|---|---|---|"]
    alone = np.array([each["each alone: softmax regression"]["accuracy"] for each in found], dtype=float)
    for name in found[0]:
        own = {measure: [each[name][measure] for each in found] for measure in found[0][name]}
        difference = np.array(own["accuracy"], dtype=float) - alone
        half = 1.96 * difference.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else 0.0
        means = [_mean(own[measure]) for measure in ("accuracy", "balanced", "auc")]
        shown = ["-" if mean is None else f"{mean:.3f}" for mean in means]
        rows.append(f"| {name} | {' | '.join(shown)} | {difference.mean():+.3f} ± {half:.3f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
