"""Evaluation of a run on people's own records: one row for each, beside baselines, kept with the run's secrets."""

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dpfedmeta.api.own_records import own_records
from dpfedmeta.config.dataset_names import data_of_run
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.core.files.run_checks import check_outside_runs
from dpfedmeta.core.files.run_directory import SECRET_FOLDER
from dpfedmeta.core.params import Params, arrays_of
from dpfedmeta.core.worker_pool import open_workers
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.repeated_images import different, words_of_copies
from dpfedmeta.data.sources import Source
from dpfedmeta.data.storage.decoded_cache import ClassEntry
from dpfedmeta.data.task import OwnSource, Task
from dpfedmeta.data.user_sources.labels import labelled
from dpfedmeta.data.user_sources.readers import columns_in, people_contents
from dpfedmeta.learning.evaluation.baselines import Adapted, Scorer
from dpfedmeta.learning.evaluation.people import Person, PersonScores, RecordSplit, ScorersOf, as_json, compared, judge
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.models.initial_weights import with_ways
from dpfedmeta.training.personal.user_inputs import InputForm
from dpfedmeta.training.results.run_archive import PEOPLE
from dpfedmeta.training.results.trained_run import TrainedRun, open_run

THIS_RUN, BEFORE, UNTRAINED = "this run, adapted", "this run, before adaptation", "untrained weights, same adaptation"
OWN_TEST = "own-test"
OF_EACH = "{:g}% of them, which did not"
NO_PROMISE = "these numbers are made of people's records: no guarantee covers them, so show them to nobody else"


@dataclass(frozen=True, kw_only=True, eq=False)
class PeopleEvaluation:
    """SECRET: a run on people's own records.

    Attributes:
        run: The run.
        data: Folder or table; None: what training clients kept back.
        protocol: How it was measured.
        scores: One for each client.
        targets: Kind of the labels.
    """

    run: Path
    data: Path | None
    protocol: str
    scores: tuple[PersonScores, ...]
    targets: TargetKind

    def content(self) -> dict[str, Any]:
        """All of it, as JSON says it."""
        names = list(next(each for each in self.scores if each.judged).first)
        return {
            "run": self.run.resolve().name,
            "data": OWN_TEST if self.data is None else str(self.data),
            "protocol": self.protocol,
            "measures": list(self.targets.measure_names),
            **as_json(self.scores, higher_is_better=self.targets.higher_is_better),
            "differences": {
                name: None if found is None else {"mean": found.mean, "ci95": found.ci95}
                for name in names
                if name not in (THIS_RUN, BEFORE)
                for found in (compared(self.scores, THIS_RUN, name),)
            },
        }


def evaluate_people(
    run: Path,
    data: Path | None,
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
            they name parts, those of test; of the run's own table its test clients. None: the run's own training
            clients; each adapts on what trained and is judged on what it kept back (population.own_test).
        split: How records are split, where the data do not say it.
        data_folder: Where the run's data are looked for if they moved.
        watch: Told of progress.

    Raises:
        InputError: No run, or data of another form; says where.

    Guarantee:
        None: everything is computed from these people's records without noise. It stays on this machine unless
        somebody shows it.
    """
    opened, asked = open_run(run, data_folder), "--own-test" if data is None else f"--on {data}"
    if opened.task.encoding is not None:
        raise InputError(
            f"{asked}: {run} was trained on the features of an encoder, and people's own images are not encoded; "
            "evaluate it on test classes"
        )
    if opened.task.shared_classes is not None:
        raise InputError(f"{asked}: {run} learned one classifier for all, which does not adapt; leave it out")
    people = own_records(opened, data_folder) if data is None else _people(opened, data)
    tested = None if data is None else _test_clients(opened, data, data_folder)
    if tested:
        people = [person for person in people if person.name in tested]
    targets = opened.adaptation.targets
    scorers = scorers_of(opened)
    scores = []
    with open_workers(1):  # one thread: with more, small products wait for each other
        for number, person in enumerate(people):
            watch(person.name or (OWN_TEST if data is None else data.name), number / len(people))
            scores.append(judge(person, number, split, scorers, targets))
    if not any(each.judged for each in scores):
        needed = "two records" if targets.numbers else "two classes with two records each"
        raise InputError(f"{asked.removeprefix('--on ')}: no client has {needed}, so nobody can be judged")
    if data is None:
        share = 100 * opened.settings.population.own_test
        kept = OF_EACH.format(share)
        protocol = f"each training client adapts on its records that trained and is judged on {kept}; {_model(opened)}"
    else:
        protocol = _protocol(split, targets, [person.adapts is not None for person in people], _model(opened))
    whose = "of the run's own table its test clients alone" if tested else None
    protocol = "; ".join(filter(None, (protocol, whose, _copies(people))))
    return PeopleEvaluation(run=run, data=data, protocol=protocol, scores=tuple(scores), targets=targets)


def _test_clients(run: TrainedRun, data: Path, data_folder: Path | None) -> frozenset[str]:
    """Test clients of the table that the run was trained on, as it divided them; none: another table."""
    source = run.task.source
    if not isinstance(source, OwnSource) or not Path(source.path).exists() or not data.samefile(source.path):
        return frozenset()
    dataset = open_dataset(data_of_run(run.settings.dataset, data_folder), data_folder, run.settings.task.ways)
    return frozenset(dataset.test.clients)


def _copies(people: Sequence[Person]) -> str | None:
    """Say how many of these people's records are copies."""
    blocks = [
        np.column_stack([person.labels, person.records.flatten(1).numpy()]).astype(np.float64) for person in people
    ]
    return words_of_copies(sum(map(len, blocks)), sum(map(different, blocks)))


def _model(run: TrainedRun) -> str:
    """Say whether a prediction depends on the other records that are judged."""
    mixed = "TRANSDUCTIVE (normalisation statistics from all records of a client together)"
    return f"single model, {mixed if run.mixes_queries else 'inductive'}"


def _protocol(split: RecordSplit, targets: TargetKind, given: Sequence[bool], end: str) -> str:
    """Describe how clients were judged; `given` tells of each if the data say on which records it adapts."""
    said = "its records of train and is judged on those of test"
    if all(given):
        return f"each client adapts on {said}, {end}"
    shots, of_each = (
        "half of" if split.shots is None else f"{split.shots} of",
        "" if targets.numbers else " of each class",
    )
    return (
        f"each client {'without records of train ' if any(given) else ''}adapts on {shots} its records{of_each} and is "
        f"judged on the others; {split.repeats} splits at random (seed {split.seed}), "
        + (f"each other one adapts on {said}, once; " if any(given) else "")
        + end
    )


def _people(run: TrainedRun, data: Path) -> list[Person]:
    if not data.exists():
        raise InputError(f"--on {data}: not there; give a folder of images, or a .csv, .parquet or .npz file")
    task, columns = run.task, _columns(run.task.source, data)
    contents = people_contents(data, task.form, columns, task.pixel_range)
    contents = labelled(str(data), contents, task.labels, task.targets)
    # Missing values are replaced already.
    form = InputForm.of(replace(task.form, missing=None), *task.constants, columns=columns)
    held: dict[str, list[tuple[ClassEntry, Any]]] = {}
    # A block may be part of a class: images are decoded a few at a time.
    records = np.concatenate(list(contents.decode()))
    if task.form.kind == "vectors":
        form.ask(records[:, : records.shape[1] - (task.targets is not None)].astype(np.float64), f"{data}: ")
    first = 0
    for entry in contents.classes:
        held.setdefault(entry.client, []).append((entry, records[first : first + entry.images]))
        first += entry.images
    return [_person(name, own, form, task) for name, own in sorted(held.items())]


def _person(name: str, own: Sequence[tuple[ClassEntry, Any]], form: InputForm, task: Task) -> Person:
    blocks, counts = np.concatenate([block for _, block in own]), [len(block) for _, block in own]
    classes = task.labels or tuple(dict.fromkeys(entry.name for entry, _ in own))
    labels = np.repeat([classes.index(entry.name) for entry, _ in own], counts)
    adapts = np.repeat([entry.split == "train" for entry, _ in own], counts)
    if task.targets is not None:
        blocks, labels = blocks[:, :-1], blocks[:, -1]
    return Person(
        name=name,
        records=form.tensor(torch.from_numpy(np.ascontiguousarray(blocks)), ask=False),
        labels=labels,
        classes=classes,
        adapts=adapts if adapts.any() else None,
    )


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


def scorers_of(run: TrainedRun) -> ScorersOf:
    """Return what is judged: the run and every baseline, by how many records of each class a client adapts on."""
    vocabulary, steps, targets = run.task.form.vocabulary, run.adaptation.steps, run.adaptation.targets

    def adapted(weights: Params, outputs: int) -> Adapted:
        network, resized = with_ways(run.network, weights, outputs)
        return Adapted(network=network, weights=arrays_of(resized), adaptation=run.adaptation, at=(steps,))

    @lru_cache(maxsize=32)
    def networks(outputs: int) -> Mapping[str, Scorer]:
        return {
            THIS_RUN: adapted(run.weights, outputs),
            BEFORE: adapted(run.weights, outputs).before,
            UNTRAINED: adapted(run.untrained, outputs),
        }

    def found(counts: tuple[int, ...]) -> Mapping[str, Scorer]:
        return {**networks(targets.outputs(len(counts))), **targets.alone(vocabulary, counts)}

    return found


def keep_people(evaluation: PeopleEvaluation, folder: Path | None) -> tuple[Path, Path]:
    """Write JSON and CSV, readable by this user alone: into the run's secret folder, or the one that is given.

    Raises:
        InputError: It cannot be written, or is inside a run and not in its secret folder.
    """
    target = folder or evaluation.run / SECRET_FOLDER
    check_outside_runs("--out", target)
    stem = f"{PEOPLE}{OWN_TEST}"
    if evaluation.data is not None:
        digest = hashlib.sha256(str(evaluation.data.resolve()).encode()).hexdigest()[:8]
        stem = f"{PEOPLE}{evaluation.data.stem}-{digest}"
    paths = (target / f"{stem}.json", target / f"{stem}.csv")
    table = io.StringIO()
    writer = csv.writer(table)
    names = list(next(each for each in evaluation.scores if each.judged).first)
    first, *others = evaluation.targets.measure_names
    further = [f"{name}, {measure}" for measure in others for name in names]
    writer.writerow(["client", "classes", "records", "judged", *names, *further])
    for each in evaluation.scores:
        values = [each.measures[measure].get(name) for measure in (first, *others) for name in names]
        held = sum(count > 0 for count in each.records.values())
        writer.writerow([each.name, held, sum(each.records.values()), each.judged, *values])
    try:
        target.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_file(paths[0], (json.dumps(evaluation.content(), indent=1) + "\n").encode(), SECRET)
        replace_file(paths[1], table.getvalue().encode(errors="backslashreplace"), SECRET)
    except OSError as error:
        raise InputError(f"{target}: cannot be written ({error.strerror}); --out DIR names another folder") from error
    return paths
