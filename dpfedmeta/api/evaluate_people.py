"""Evaluation of a run on people's own records: one row for each, beside baselines, kept with the run's secrets."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.params import Params, arrays_of
from dpfedmeta.core.worker_pool import open_workers
from dpfedmeta.data.sources import Source
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.user_sources.readers import columns_in, own_contents
from dpfedmeta.learning.evaluation.baselines import Adapted, Alone, Learner, Majority, PixelPrototype
from dpfedmeta.learning.evaluation.people import LearnersOf, Person, PersonScores, RecordSplit, as_json, compared, judge
from dpfedmeta.learning.models.resize_head import with_ways
from dpfedmeta.training.personal.user_inputs import InputForm
from dpfedmeta.training.results.trained_run import TrainedRun, open_run

THIS_RUN, BEFORE, UNTRAINED = "this run, adapted", "this run, before adaptation", "untrained weights, same adaptation"
ALONE, PROTOTYPE, MAJORITY = "each alone: softmax regression", "nearest class prototype", "majority of own classes"
NO_PROMISE = "these numbers are made of people's records: no guarantee covers them, so show them to nobody else"


@dataclass(frozen=True, kw_only=True, eq=False)
class PeopleEvaluation:
    """SECRET: a run on people's own records.

    Attributes:
        run: The run.
        data: Folder or table.
        protocol: How it was measured.
        scores: One for each client.
    """

    run: Path
    data: Path
    protocol: str
    scores: tuple[PersonScores, ...]

    def content(self) -> dict[str, Any]:
        """All of it, as JSON says it."""
        return {
            "run": self.run.resolve().name,
            "data": str(self.data),
            "protocol": self.protocol,
            **as_json(self.scores),
            "differences": {
                name: None if found is None else {"mean": found.mean, "ci95": found.ci95}
                for name in (UNTRAINED, ALONE, PROTOTYPE, MAJORITY)
                for found in (compared(self.scores, THIS_RUN, name),)
            },
        }


def evaluate_people(
    run: Path,
    data: Path,
    split: RecordSplit,
    data_folder: Path | None = None,
    watch: Callable[[str, float], None] = lambda what, done: None,
) -> PeopleEvaluation:
    """Judge a run on people's own records; nothing is written.

    Each client's records are split within classes, again and again. One part adapts the model, the other judges it.
    Classes with one record, and clients with fewer than two larger classes, are not judged.

    Args:
        run: Run directory.
        data: A table with the columns client and class, a folder CLIENT/CLASS/IMAGE, or the data of one client. Where
            they name parts, those of test.
        split: How records are split.
        data_folder: Where the run's data are looked for if they moved.
        watch: Told of progress.

    Raises:
        InputError: No run, or data of another form; says where.

    Guarantee:
        None: everything is computed from these people's records without noise. It stays on this machine unless
        somebody shows it.
    """
    opened = open_run(run, data_folder)
    if opened.task.encoding is not None:
        raise InputError(
            f"--on {data}: {run} was trained on the features of an encoder, and people's own images are not encoded; "
            "evaluate it without --on"
        )
    if opened.task.shared_classes is not None:
        raise InputError(f"--on {data}: {run} learned one classifier for all, which does not adapt; leave out --on")
    people = _people(opened, data)
    learners = learners_of(opened)
    scores = []
    with open_workers(1):  # one thread: with more, small products wait for each other
        for number, person in enumerate(people):
            watch(f"{person.name or data.name}", number / len(people))
            scores.append(judge(person, number, split, learners))
    if not any(each.judged for each in scores):
        raise InputError(f"{data}: no client has two classes with two records each, so nobody can be judged")
    shots = "half of" if split.shots is None else f"{split.shots} of"
    protocol = (
        f"each client adapts on {shots} its records of each class and is judged on the others; {split.repeats} "
        f"splits at random (seed {split.seed}), single model, inductive"
    )
    return PeopleEvaluation(run=run, data=data, protocol=protocol, scores=tuple(scores))


def _people(run: TrainedRun, data: Path) -> list[Person]:
    if not data.exists():
        raise InputError(f"--on {data}: not there; give a folder of images, a CSV file or a .npz file")
    task, columns = run.task, _columns(run.task.source, data)
    contents = own_contents(data, task.form, columns, task.pixel_range, several=True)
    form = InputForm.of(task.form, *task.constants)
    held: dict[str, list[tuple[str, Any]]] = {}
    # A block may be part of a class: images are decoded a few at a time.
    records = np.concatenate(list(contents.decode()))
    first = 0
    for entry in contents.classes:
        held.setdefault(entry.client, []).append((entry.name, records[first : first + entry.images]))
        first += entry.images
    return [
        Person(
            name=name,
            records=form.tensor(torch.from_numpy(np.concatenate([block for _, block in own]))),
            labels=np.repeat(np.arange(len(own)), [len(block) for _, block in own]),
            classes=tuple(label for label, _ in own),
        )
        for name, own in sorted(held.items())
    ]


def _columns(source: Source, data: Path) -> tuple[str, ...]:
    """Names of the numbers that the run was trained on, in their order; empty where they have none."""
    if not isinstance(source, OwnSource):
        return ()
    if not Path(source.path).exists():
        raise InputError(
            f"--on {data}: {source.path}, on which the run was trained, is not there, so the order of its columns is "
            "not known; put it back, or name its folder with --data-dir"
        )
    return columns_in(source.reader, Path(source.path))


def learners_of(run: TrainedRun) -> LearnersOf:
    """Return what is judged: the run and every baseline, by how many records of each class a client has."""
    vocabulary, steps = run.task.form.vocabulary, run.adaptation.steps

    def adapted(weights: Params, ways: int, at: int) -> Adapted:
        network, resized = with_ways(run.network, weights, ways)
        return Adapted(network=network, weights=arrays_of(resized), adaptation=run.adaptation, at=(at,))

    @lru_cache(maxsize=32)
    def networks(ways: int) -> Mapping[str, Learner]:
        return {
            THIS_RUN: adapted(run.weights, ways, steps),
            BEFORE: adapted(run.weights, ways, 0),
            UNTRAINED: adapted(run.untrained, ways, steps),
        }

    def found(counts: tuple[int, ...]) -> Mapping[str, Learner]:
        return {
            **networks(len(counts)),
            ALONE: Alone(vocabulary=vocabulary),
            PROTOTYPE: PixelPrototype(vocabulary=vocabulary),
            MAJORITY: Majority(label=int(np.argmax(counts))),
        }

    return found


def keep_people(evaluation: PeopleEvaluation, folder: Path | None) -> tuple[Path, Path]:
    """Write JSON and CSV, readable by this user alone: into the run's secret folder, or the one that is given.

    Raises:
        InputError: It cannot be written.
    """
    target = folder or evaluation.run / "secret"
    digest = hashlib.sha256(str(evaluation.data.resolve()).encode()).hexdigest()[:8]
    stem = f"people-{evaluation.data.stem}-{digest}"
    paths = (target / f"{stem}.json", target / f"{stem}.csv")
    table = io.StringIO()
    writer = csv.writer(table)
    names = list(next(each for each in evaluation.scores if each.judged).accuracy)
    writer.writerow(["client", "classes", "records", "judged", *names, *(f"{name}, balanced" for name in names)])
    for each in evaluation.scores:
        values = [*(each.accuracy.get(name, "") for name in names), *(each.balanced.get(name, "") for name in names)]
        writer.writerow([each.name, len(each.records), sum(each.records.values()), each.judged, *values])
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(paths[0], (json.dumps(evaluation.content(), indent=1) + "\n").encode(), SECRET)
        replace_file(paths[1], table.getvalue().encode(), SECRET)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}); --out DIR names another folder") from error
    return paths
