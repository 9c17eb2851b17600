"""Four hospitals with all their patients: `missing:` beside leaving out who lacks a number, on the same people.

    python examples/people/missing.py --data heart-disease --out missing --trials 100

Each split keeps 34% of every hospital's patients back. One federation drops patients with a gap, and the columns that
most lack; the other one has all patients and columns, with a public constant and an indicator in the place of a gap.
Both are judged on the kept-back patients without a gap, and the second on all that are kept back. Nothing was chosen
here: constants of the further columns are a textbook's, everything else is that of people.py.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import yaml
from people import COMMON
from populations import HEART, HOSPITALS

import dpfedmeta as dp
from dpfedmeta.api.evaluate_people import evaluate_people
from dpfedmeta.learning.evaluation.accuracy import half_width
from dpfedmeta.learning.evaluation.people import RecordSplit

PLAIN, OFTEN = (0, 1, 3, 4, 5, 7, 8, 9), (10, 11, 12)
DUMMIES = {2: ("2", "3", "4"), 6: ("1", "2")}
# Slope of the ST segment, vessels coloured, thallium scan.
FURTHER = {"mean": (1.7, 0.7, 5.0), "deviation": (0.6, 0.9, 2.0)}
Row = list[str]


def read(folder: Path) -> dict[str, list[tuple[Row, bool, str]]]:
    """By hospital: (16 numbers as text, whether FLamby's 13 have no gap, label) of each patient."""
    found = {}
    for name in HOSPITALS:
        lines = (folder / f"processed.{name}.data").read_text().splitlines()
        found[name] = [_patient([each.strip() for each in line.split(",")]) for line in lines if line.strip()]
    return found


def _patient(row: Row) -> tuple[Row, bool, str]:
    whole = "?" not in [value for place, value in enumerate(row) if place not in OFTEN]
    dummies = [
        "?" if row[place] == "?" else str(int(float(row[place]) == float(value)))
        for place, values in DUMMIES.items()
        for value in values
    ]
    values = [row[place] for place in PLAIN] + dummies + [row[place] for place in OFTEN]
    return values, whole, HEART.labels[int(float(row[-1]) > 0)]


def write(path: Path, rows: Sequence[tuple[str, str, str, Row]]) -> Path:
    """A table of (client, split, label, numbers)."""
    with path.open("w", newline="") as file:
        head = ["client", "split", "class", *(f"x{place}" for place in range(len(rows[0][3])))]
        csv.writer(file).writerows([head, *([*row[:3], *row[3]] for row in rows)])
    return path


def judged(
    out: Path, split: int, held: dict[str, list[tuple[Row, bool, str]]], more: Mapping[str, object]
) -> dict[str, float]:
    """Mean accuracies over the hospitals, by the federation, the model and who is judged."""
    parts = {}
    for number, (name, own) in enumerate(held.items()):
        order = np.random.default_rng([split, number]).permutation(len(own))
        parts[name] = set(order[: int(0.66 * len(own))].tolist())
    found = {}
    for way, width in (("dropped", 13), ("missing", 16)):
        rows = [
            (name, "train" if place in parts[name] else "test", label, values[:width], whole)
            for name, own in held.items()
            for place, (values, whole, label) in enumerate(own)
        ]
        every, complete = [row[:4] for row in rows], [row[:4] for row in rows if row[4]]
        taken = complete if way == "dropped" else every
        folder = out / f"{way}-{split}"
        folder.mkdir()
        made_up = np.random.default_rng(0).normal(_of("mean", width), _of("deviation", width), (48, width)).round(2)
        public = [
            ("public", part, HEART.labels[n % 2], list(map(str, made_up[n])))
            for part in ("val", "test")
            for n in range(48)
        ]
        public = [(f"{client}-{part}", part, label, values) for client, part, label, values in public]
        write(folder / "people.csv", [*(row for row in taken if row[1] == "train"), *public])
        task = {
            "name": "heart", "source": {"reader": "vectors", "path": "people.csv"}, "features": width,
            "mean": [*_of("mean", width)], "deviation": [*_of("deviation", width)], "labels": [*HEART.labels],
            **({"missing": ["?"]} if way == "missing" else {}),
        }  # fmt: skip
        (folder / "heart.yaml").write_text(yaml.safe_dump(task))
        changes = {**COMMON, **HEART.training, "population.kind": "natural", "population.clients": 4}
        changes |= {"population.cohort": 4, "evaluation.every": 30, "run.dir": str(folder), "run.name": "run", **more}
        dp.train(dp.Settings.preset("maml", folder / "heart.yaml", changes), quiet=True)
        for whom, table in {"complete": complete, **({"all": every} if way == "missing" else {})}.items():
            scores = evaluate_people(
                folder / "run", write(folder / f"{whom}.csv", table), RecordSplit(shots=None, repeats=2, seed=0)
            ).scores
            for model in next(iter(scores[0].measures.values())):
                found[f"{way} | {whom} | {model}"] = float(
                    np.mean([each.first[model] for each in scores if each.judged])
                )
    return found


def _of(name: str, width: int) -> tuple[float, ...]:
    return (*getattr(HEART, name), *FURTHER[name])[:width]


def main(words: Sequence[str] | None = None, more: Mapping[str, object] | None = None) -> None:
    """Judge all splits and print one table; `more` are settings by their dotted names."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--data", type=Path, required=True, help="folder with the four published files")
    made.add_argument("--out", type=Path, required=True, help="a new folder")
    made.add_argument("--trials", type=int, default=100, help="how many random splits (100)")
    options = made.parse_args(words)
    if options.trials < 2:
        made.error("--trials: two or more, for an interval")
    options.out.mkdir()
    held, found = read(options.data), list[dict[str, float]]()
    print({name: (len(own), sum(whole for _, whole, _ in own)) for name, own in held.items()})
    for split in range(options.trials):
        found.append(judged(options.out, split, held, more or {}))
    print("| gaps | judged on | model | accuracy |\n|---|---|---|---|")
    for name in found[0]:
        values = [each[name] for each in found]
        print(f"| {name} | {np.mean(values):.3f} ± {half_width(values):.3f} |")


if __name__ == "__main__":
    main()
