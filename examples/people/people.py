"""People as they are: a model for hospitals, wearers or patients, judged on each one's own records beside baselines.

    python examples/people/people.py --population heart --data heart-disease --out heart --trials 100
    python examples/people/people.py --population wisdm --data wisdm --out wisdm
    python examples/people/people.py --population parkinsons --data parkinsons --out parkinsons

Everybody takes part with all of its records, however many there are. Hospitals train on 66% of their patients and are
judged on the others, in one random split after another. Of wearers and patients some train, and others are judged: each
adapts the model on its first records and is judged on its later ones. Twelve people, on whom constants were chosen,
train always and judge nothing (--development: two thirds of these train, and the others judge).
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
import yaml
from populations import COMMON, OF_CLIENTS, OF_RECORDS, POPULATIONS, PeopleTask, Person, flamby_half_of, half_of

import dpfedmeta as dp
from dpfedmeta.api.evaluate_people import evaluate_people
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.learning.evaluation.accuracy import half_width
from dpfedmeta.learning.evaluation.people import RecordSplit
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.targets.classification import Classification
from dpfedmeta.learning.targets.regression import Regression

DEVELOPMENT, JUDGED = 12, 12
"""People that constants are chosen on, and of the others those that judge one trial."""

Scores = dict[str, dict[str, dict[str, float | None]]]
"""Measures by person, model and measure."""


@dataclass(frozen=True, kw_only=True, eq=False)
class People:
    """Clients (dpfedmeta.data.populations.population.Population): all records of each, those that adapt as support.

    A model that is learned for adaptation has later records as query set; federated averaging steps on both alike.
    """

    task: PeopleTask
    held: Sequence[Person]

    @property
    def clients(self) -> int:
        """Number of them."""
        return len(self.held)

    def episode(self, client: int) -> Episode:
        """All records of a client; where all of them adapt, the first half adapts."""
        own = self.held[client]
        adapts = np.arange(len(own.adapts)) < len(own.adapts) // 2 if own.adapts.all() else own.adapts
        return episode_of(self.task, own, adapts)


def episode_of(task: PeopleTask, own: Person, adapts: np.ndarray) -> Episode:
    """The records of a person as a network has them."""
    records = torch.from_numpy(((own.records - task.mean) / task.deviation).astype(np.float32))
    targets = own.targets if task.labels else _range(task, own.targets)
    labels, support = torch.from_numpy(targets), torch.from_numpy(adapts)
    return Episode(
        support_images=records[support],
        support_labels=labels[support],
        query_images=records[~support],
        query_labels=labels[~support],
    )


def _range(task: PeopleTask, numbers: np.ndarray) -> np.ndarray:
    known = TargetRange(**task.targets)
    return ((numbers - known.centre) / known.scale).astype(np.float32)


def kind_of(task: PeopleTask) -> TargetKind:
    """How predictions are judged."""
    if task.labels:
        return Classification(shared=len(task.labels))
    return Regression(range=TargetRange(**task.targets))


def write_task(task: PeopleTask, folder: Path, trained: Sequence[Person] = ()) -> Path:
    """Write the task file: public labels and constants, and made-up people for validation and test.

    Nothing is chosen by these. Who trains is in the table where records are promised something, else made up too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    generator, spread = np.random.default_rng(0), 24 * max(1, len(task.labels))
    targets = np.arange(spread) % len(task.labels) if task.labels else np.full(spread, task.targets.get("centre", 0.0))
    made_up = [
        Person(
            name=f"made-up-{split}",
            records=np.round(generator.normal(task.mean, task.deviation, (spread, len(task.mean))), 2),
            targets=targets,
            adapts=np.full(spread, fill_value=False),
        )
        for split in ("train", "val", "test")
    ]
    parts = {each.name: each.name[8:] for each in made_up} | {own.name: "train" for own in trained}
    write_table(task, folder / "people.csv", [*trained, *made_up[bool(trained) :]], parts)
    content = {
        "name": task.name,
        "source": {"reader": "vectors", "path": "people.csv"},
        "features": len(task.mean),
        "mean": [*task.mean],
        "deviation": [*task.deviation],
        **({"labels": [*task.labels]} if task.labels else {"kind": "regression", "targets": dict(task.targets)}),
    }
    (folder / f"{task.name}.yaml").write_text(yaml.safe_dump(content))
    return folder / f"{task.name}.yaml"


def write_table(task: PeopleTask, path: Path, held: Sequence[Person], parts: Mapping[str, str]) -> None:
    """Write people's records as a table; records that adapt are of the part train, unless `parts` names one."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        column = "class" if task.labels else "target"
        writer.writerow(["client", "split", column, *(f"x{number}" for number in range(len(task.mean)))])
        for own in held:
            for record, target, adapts in zip(own.records.tolist(), own.targets.tolist(), own.adapts, strict=True):
                part = parts.get(own.name, "train" if adapts else "test")
                writer.writerow([own.name, part, task.labels[target] if task.labels else target, *record])


@dataclass(frozen=True, kw_only=True, eq=False)
class Trial:
    """One training, and who is judged by it.

    Attributes:
        name: Of the run.
        trained: Clients, with the records that train.
        judged: People, with the records that adapt and those that judge.
    """

    name: str
    trained: list[Person]
    judged: list[Person]


def trials_of(
    task: PeopleTask, held: Sequence[Person], first: int, count: int | None, *, development: bool, flamby: bool = False
) -> list[Trial]:
    """Splits of every hospital; or folds of people, each of whom is judged once."""
    if flamby:
        return [_split("flamby", [flamby_half_of(own) for own in held])]
    if not task.left_out:
        splits = range(1000 + first, 1002 + first) if development else range(first, first + (count or 20))
        return [
            _split(f"split-{split}", [half_of(own, number, split) for number, own in enumerate(held)])
            for split in splits
        ]
    order = [held[place] for place in np.random.default_rng(0).permutation(len(held))]
    chosen, others = order[:DEVELOPMENT], order[DEVELOPMENT:]
    if development:
        train = 2 * DEVELOPMENT // 3
        return [Trial(name="development", trained=chosen[:train], judged=chosen[train:])]
    folds = [others[start : start + JUDGED] for start in range(0, len(others), JUDGED)]
    made = [
        Trial(name=f"fold-{number}", trained=[each for each in order if each not in fold], judged=fold)
        for number, fold in enumerate(folds)
    ]
    return made[first : None if count is None else first + count]


def _split(name: str, judged: list[Person]) -> Trial:
    return Trial(name=name, trained=[own.of(own.adapts) for own in judged], judged=judged)


def judged(task: PeopleTask, file: Path, trial: Trial, out: Path, more: Mapping[str, object]) -> Scores:
    """Train, and judge every model on everybody's own records."""
    people = People(task=task, held=trial.trained)
    rounds = {**task.training, **more}.get("server.rounds")
    sizes = {"population.clients": people.clients, "population.cohort": people.clients, "evaluation.every": rounds}
    moments = "moments" in str(more.get("meta.method"))
    changes = {**({} if moments else {**COMMON, **task.training, **sizes}), **more}
    changes |= {"run.dir": str(out / "runs"), "run.name": trial.name}
    path = out / "runs" / trial.name
    if not (path / "summary.json").is_file():
        if "privacy.record.epsilon" in more:
            file = write_task(task, out / f"{trial.name}-data", trial.trained)
            algo = "moments-agrlr-secure" if moments else "dp-agrlr-secure"
            dp.train(dp.Settings.preset(algo, file, changes), quiet=True)
        else:
            algo = "maml" if "privacy.client.epsilon" not in more else "dp-agr"
            dp.train(dp.Settings.preset(algo, file, changes), population=people, quiet=True)
    table = out / f"{trial.name}.csv"
    write_table(task, table, trial.judged, {})
    found: Scores = {}
    scores = evaluate_people(path, table, RecordSplit(shots=None, repeats=2, seed=0)).scores
    # One with a single class is no person to tell classes apart for.
    for each in (each for each in scores if each.judged):
        models = next(iter(each.measures.values()))
        found[each.name] = {model: {name: own[model] for name, own in each.measures.items()} for model in models}
    pooled = in_one_place(task, trial)
    for name, own in found.items():
        own["all data in one place"] = pooled[name]
    return found


def in_one_place(task: PeopleTask, trial: Trial) -> dict[str, dict[str, float | None]]:
    """Softmax or ridge regression on all records that train, judged like the others; nothing adapts.

    As each one alone has it (learning.evaluation.baselines), in a form whose work grows in proportion to records.
    """
    parts = [episode_of(task, own, np.ones(len(own.targets), dtype=bool)) for own in trial.trained]
    records, labels = (
        torch.cat([getattr(each, name) for each in parts]) for name in ("support_images", "support_labels")
    )
    centre, deviation = records.mean(0), records.std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    seen = torch.cat([(records - centre) / deviation, torch.ones(len(records), 1)], 1)
    weights, kind, found = _softmax(seen, labels, task) if task.labels else _ridge(seen, labels), kind_of(task), {}
    for own in trial.judged:
        query = episode_of(task, own, own.adapts)
        asked = torch.cat([(query.query_images - centre) / deviation, torch.ones(len(query.query_labels), 1)], 1)
        found[own.name] = dict(kind.measures(asked @ weights, query.query_labels))
    return found


def _softmax(seen: torch.Tensor, labels: torch.Tensor, task: PeopleTask) -> torch.Tensor:
    """500 steps of the inverse of a bound of the curvature."""
    weights, wanted = torch.zeros(seen.shape[1], len(task.labels)), torch.eye(len(task.labels))[labels]
    rate = 2.0 / float(seen.square().sum(1).mean())
    for _ in range(500):
        weights = weights - rate * seen.T @ (torch.softmax(seen @ weights, 1) - wanted) / len(seen)
    return weights


def _ridge(seen: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean, and what is explained beside it; the penalty is one for each record."""
    mean, features = labels.mean(), seen[:, :-1].double()
    penalised = features.T @ features + len(seen) * torch.eye(features.shape[1], dtype=torch.float64)
    slopes = torch.linalg.solve(penalised, features.T @ (labels - mean).double()).float()
    return torch.cat([slopes, mean[None]])[:, None]


def table_of(task: PeopleTask, found: Sequence[Scores]) -> str:
    """Means with 95% intervals as Markdown, the worst tenth, and the paired difference from each one alone.

    Over splits of the mean over hospitals, or over people. The worst is a split's worst hospital, or a tenth of people.
    """
    if task.left_out:
        units = [[own] for trial in found for own in trial.values()]
    else:
        units = [list(trial.values()) for trial in found]
    names = kind_of(task).measure_names
    models = list(units[0][0])
    values = {
        (model, name): [_mean([own[model][name] for own in unit]) for unit in units]
        for model in models
        for name in names
    }
    alone = next(model for model in models if model.startswith("each alone"))
    head = f"| model | {' | '.join(names)} | worst tenth | {names[0]} less alone |"
    rows = [head, "|" + "---|" * (len(names) + 3)]
    for model in models:
        cells = [_shown(values[model, name]) for name in names]
        pairs = zip(values[model, names[0]], values[alone, names[0]], strict=True)
        difference = [one - other for one, other in pairs if one is not None and other is not None]
        groups = (
            [[own[model][names[0]] for unit in units for own in unit]]
            if task.left_out
            else [[own[model][names[0]] for own in unit] for unit in units]
        )
        worst = np.mean([_worst(group, highest=not kind_of(task).higher_is_better) for group in groups])
        rows.append(f"| {model} | {' | '.join(cells)} | {worst:.3f} | {_shown(difference, sign=True)} |")
    return "\n".join(rows)


def _worst(values: Sequence[float | None], *, highest: bool) -> float:
    """The mean of the worst tenth, at least of one."""
    known = sorted((value for value in values if value is not None), reverse=highest)
    return float(np.mean(known[: max(1, len(known) // 10)]))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


def _shown(values: Sequence[float | None], *, sign: bool = False) -> str:
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return "-"
    mean = f"{known.mean():{'+' if sign else ''}.3f}"
    return f"{mean} ± {half_width(known.tolist()):.3f}" if len(known) > 1 else mean


def main(words: Sequence[str] | None = None) -> None:
    """Judge all trials and print one table."""
    made = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    made.add_argument("--population", choices=POPULATIONS, required=True, help="whose records")
    made.add_argument("--data", type=Path, required=True, help="folder with the published files")
    made.add_argument("--out", type=Path, required=True, help="folder for runs and tables")
    made.add_argument("--first", type=int, default=0, help="number of the first trial (0)")
    made.add_argument("--trials", type=int, help="how many: random splits (20), or folds of people (all)")
    made.add_argument("--epsilon", type=float, help="promise it to whole clients, at delta 1e-3 towards the public")
    made.add_argument("--records", type=float, help="promise it to records under sums, at 1e-4")
    made.add_argument("--moments", action="store_true", help="with --records: by moments, in one round")
    made.add_argument("--development", action="store_true", help="judge on the people that constants are chosen on")
    made.add_argument("--flamby", action="store_true", help="judge hospitals on FLamby's own split alone")
    made.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="other settings than the example's")
    options = made.parse_args(words)
    task = POPULATIONS[options.population]
    if options.flamby and task.left_out:
        made.error("--flamby is a split of hospitals; leave it out")
    more = {name: yaml.safe_load(value) for name, _, value in (each.partition("=") for each in options.set)}
    if options.epsilon is not None:
        more = {**OF_CLIENTS, "privacy.client.epsilon": options.epsilon, **more}
    if options.records is not None:
        more = {**(task.moments if options.moments else OF_RECORDS), "privacy.record.epsilon": options.records, **more}
    held, file, found = task.read(options.data), write_task(task, options.out), list[Scores]()
    chosen = {"development": options.development, "flamby": options.flamby}
    print(f"{len(held)} clients, {sum(len(own.targets) for own in held):,} records")
    for trial in trials_of(task, held, options.first, options.trials, **chosen):
        found.append(judged(task, file, trial, options.out, more))
        (options.out / "found.json").write_text(json.dumps(found, indent=1))
    print(table_of(task, found))


if __name__ == "__main__":
    main()
