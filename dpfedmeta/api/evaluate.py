"""Runs on held-out public data: measured, then kept by what was measured, with pictures beside."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch

from dpfedmeta.api.evaluation_request import (
    COMPARISON,
    ENOUGH_EPISODES,
    EvaluationRequest,
    check_comparable,
    several,
)
from dpfedmeta.api.measure_run import Watch, measured
from dpfedmeta.api.run import Run
from dpfedmeta.config.dataset_names import data_of_run
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import Workers, available_cores, open_workers
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.populations.capacity_checks import check_shape
from dpfedmeta.data.populations.whole_population import check_whole
from dpfedmeta.data.repeated_images import copies_words
from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.planning.client_population import authors_of
from dpfedmeta.planning.data_digests import changed_since
from dpfedmeta.planning.user_modules import own_modules
from dpfedmeta.reporting.plots.evaluation_plots import clients_plot, comparison_plot, steps_plot
from dpfedmeta.simulation.distributed.consistency_check import check_together
from dpfedmeta.training.results.evaluation_store import keep_evaluation, kept_evaluations
from dpfedmeta.training.results.trained_run import TrainedRun, open_run
from dpfedmeta.training.terminal.evaluation_tables import evaluation_tables
from dpfedmeta.training.terminal.tables import as_text

STEPS_PLOT, CLIENTS_PLOT = "evaluation-steps.png", "evaluation-clients.png"


@dataclass(frozen=True, kw_only=True, repr=False)
class Evaluation:
    """Evaluation of one run on held-out classes; evaluation.json says the same.

    Attributes:
        name: Of the run, where several are compared.
        path: Its directory.
        folder: Where it is kept: the run directory, or the one that was given.
        content: All that was measured.
        pictures: Paths of the pictures beside it; none where nothing could be written.
    """

    name: str
    path: Path
    folder: Path
    content: Mapping[str, Any]
    pictures: tuple[Path, ...] = ()

    @property
    def protocol(self) -> str:
        """Description of the measurement."""
        return str(self.content["protocol"])

    @property
    def results(self) -> Sequence[Mapping[str, Any]]:
        """Results for each number of ways and shots: `accuracy`, its baselines, `by_steps` and `clients`."""
        found: Sequence[Mapping[str, Any]] = self.content["results"]
        return found

    @property
    def accuracy(self) -> Accuracy:
        """Accuracy of the first result, after adaptation."""
        return Accuracy.from_json(self.results[0]["accuracy"])

    def __repr__(self) -> str:
        return as_text(*evaluation_tables(self.name, self.content))


def evaluations(
    request: EvaluationRequest, watch: Watch = lambda what, done: None, workers: Workers | None = None
) -> Iterator[Evaluation]:
    """Evaluate each run on the same episodes, on these workers or those of the request. Nothing is written.

    Raises:
        InputError: Not run directories, not comparable, or more shots and queries than images.
    """
    runs = [open_run(path, request.data_folder) for path in request.runs]
    check_comparable(request, runs)
    _check_has_classes(runs)
    trained = runs[0].settings
    data = data_of_run(trained.dataset, request.data_folder)
    # Runs on pixels and on the features of encoders have the same episodes, and other records.
    opens = {
        run.task.encoding: partial(open_dataset, data, request.data_folder, trained.task.ways, run.task.encoding)
        for run in runs
    }
    datasets = {encoding: opened() for encoding, opened in opens.items()}
    dataset = datasets[runs[0].task.encoding]
    whole = request.whole(runs[0].settings)
    if whole is not None:
        check_whole(dataset.test, whole, "test", authors_of(trained))
    elif dataset.task.shared_classes is None:
        # Before the first minute of work.
        for shape in request.shapes(runs[0].settings):
            check_shape(dataset.test, shape, "test", asked=True)
    request = replace(request, seeds=request.seeds or (runs[0].settings.run.seed,))
    names = _names(runs)
    folders = _folders(request, runs, names)
    opened = open_workers(request.workers or available_cores()) if workers is None else nullcontext(workers)
    with opened as workers:
        for encoding, each in datasets.items():
            own = [module for run in runs for module in own_modules(run.settings, each.task)]
            check_together(workers, each, None, torch.device("cpu"), opens[encoding], own)
        for run, name in zip(runs, names, strict=True):
            dataset = datasets[run.task.encoding]
            content = measured(request, run, dataset, workers, partial(_named, watch, name))
            path = run.directory.path
            notes = (content["note"], changed_since(run.directory, dataset), *copies_words(dataset, "test"))
            content = content | {"note": "; ".join(filter(None, notes)) or None}
            yield Evaluation(name=name, path=path, folder=folders[path], content={**_of_run(run), **content})


def _check_has_classes(runs: Sequence[TrainedRun]) -> None:
    for run in runs:
        if run.adaptation.targets.numbers:
            raise InputError(
                f"{run.directory.path}: predicts numbers, which episodes of classes cannot judge; give the people that "
                "it is judged on: --on TABLE"
            )


def kept(evaluation: Evaluation) -> Evaluation:
    """Write evaluation.json, a file for each thing that was measured, and the pictures.

    Raises:
        NotKept: The folder cannot be written; says what to do. What was measured is not lost.
    """
    folder = evaluation.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        keep_evaluation(folder, evaluation.content)
        return replace(evaluation, pictures=_drawn(folder, evaluation.name, evaluation.content))
    except OSError as error:
        raise NotKept(
            f"{folder}: cannot be written ({error.strerror}), so this evaluation is not kept; --out DIR (in Python "
            "out=DIR) writes it to another folder"
        ) from error


class NotKept(OSError):
    """An evaluation that was made, and could not be written."""


def _folders(request: EvaluationRequest, runs: Sequence[TrainedRun], names: Sequence[str]) -> dict[Path, Path]:
    """Return the folder of each run's evaluation; a folder holds those of one run.

    Raises:
        InputError: The folder that was given holds evaluations of another run.
    """
    if request.folder is None:
        return {run.directory.path: run.directory.path for run in runs}
    found: dict[Path, Path] = {}
    for run, name in zip(runs, names, strict=True):
        folder = request.folder if len(runs) == 1 else request.folder / Path(name).name
        if folder in found.values():
            raise InputError(f"--out {request.folder}: two of the runs are called {folder.name}; evaluate them apart")
        others = {str(each.get("run")) for each in kept_evaluations(folder)} - {run.directory.path.resolve().name}
        if others:
            raise InputError(f"--out {folder}: holds evaluations of {', '.join(sorted(others))}; choose another folder")
        found[run.directory.path] = folder
    return found


def _of_run(run: TrainedRun) -> dict[str, Any]:
    """Return the name of the run and the state that its weights are of: status, rounds done, rounds planned."""
    name = run.directory.path.resolve().name
    encoder = run.settings.model.encoder
    return {
        "run": name,
        "status": run.stage,
        "rounds": run.rounds,
        "planned_rounds": run.planned_rounds,
        **({"encoder": encoder} if encoder else {}),
        **({"records": run.network.records} if run.network.records != "images" else {}),
    }


def evaluate(
    runs: str | PathLike[str] | Run | Sequence[str | PathLike[str] | Run],
    *,
    shots: int | Sequence[int] = (),
    ways: int | Sequence[int] = (),
    steps: int | Sequence[int] = (),
    seeds: Sequence[int] = (),
    episodes: int = ENOUGH_EPISODES,
    transductive: bool = False,
    fine_tuning: bool = True,
    out: str | PathLike[str] | None = None,
    data_folder: str | PathLike[str] | None = None,
    workers: int | None = None,
) -> tuple[Evaluation, ...]:
    """Evaluate runs on held-out test classes, several on the same episodes. Nothing is printed.

    Each is kept by what it measured, as docs/evaluation.md says; one that cannot be written is returned all the same,
    with a warning.

    Args:
        runs: A run or the path of one, or several of one benchmark.
        shots: Support images per class; none: as trained.
        ways: Classes per episode; none: as trained.
        steps: Numbers of gradient steps after which is asked, besides 0 and those of the run (K), as range(21); none:
            every number from 0 to K.
        seeds: One sequence of episodes each; none: the seed of the first run.
        episodes: Episodes per evaluation and seed.
        transductive: Statistics from support and query images together.
        fine_tuning: Whether the untrained network is fine-tuned beside, which takes most of the time.
        out: A folder for everything that is written, in place of the run directories; or a .png file, for the picture
            that compares the runs.
        data_folder: Where the images are; None: DPFEDMETA_DATA.
        workers: Worker processes; None: cores.

    Returns:
        One evaluation for each run.

    Raises:
        InputError: Not run directories, not comparable, or something that was given does not fit.
    """
    given = [runs] if isinstance(runs, str | PathLike | Run) or not isinstance(runs, Sequence) else list(runs)
    odd = next((run for run in given if not isinstance(run, str | PathLike | Run)), None)
    if odd is not None:
        raise InputError(f"runs: expected runs or their paths, got {odd!r}")
    request = EvaluationRequest(
        runs=tuple(run.path if isinstance(run, Run) else Path(run) for run in given),
        shots=several("shots", shots),
        ways=several("ways", ways),
        steps=several("steps", steps),
        seeds=several("seeds", seeds),
        episodes=episodes,
        transductive=transductive,
        fine_tuning=fine_tuning,
        out=None if out is None else Path(out),
        data_folder=None if data_folder is None else Path(data_folder),
        workers=workers,
    )
    if not request.runs:
        raise InputError("runs: none is given; name at least one")
    found = tuple(_kept_or_warned(each) for each in evaluations(request))
    if request.out is not None:
        comparison(request, found)
    return found


def _kept_or_warned(evaluation: Evaluation) -> Evaluation:
    try:
        return kept(evaluation)
    except NotKept as error:
        warnings.warn(str(error), stacklevel=3)
        return evaluation


def comparison(request: EvaluationRequest, found: Sequence[Evaluation]) -> Path | None:
    """The picture that compares the runs, where one was asked for or there are several."""
    if len(found) < 2 and (request.out is None or request.folder is not None):
        return None
    path = request.picture or Path(COMPARISON)
    comparison_plot(path, {each.name: each.content for each in found})
    return path


def _named(watch: Watch, name: str, what: str, done: float) -> None:
    watch(f"{name}, {what}", done)


def _names(runs: list[TrainedRun]) -> list[str]:
    """Folder names where they tell the runs apart, else paths."""
    names = [run.directory.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.directory.path) for run in runs]


def _drawn(folder: Path, name: str, content: Mapping[str, Any]) -> tuple[Path, ...]:
    if "by_steps" not in content["results"][0]:
        return ()
    steps_plot(folder / STEPS_PLOT, name, content)
    clients_plot(folder / CLIENTS_PLOT, name, content)
    return folder / STEPS_PLOT, folder / CLIENTS_PLOT
