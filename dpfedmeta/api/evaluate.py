"""evaluate.py: finished runs on held-out public data, written to evaluation.json with pictures beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from dpfedmeta.api.evaluation_request import EvaluationRequest, check_comparable
from dpfedmeta.data.dataset import Dataset, open_dataset
from dpfedmeta.data.episode import check_shape
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.evaluation import Benchmark, Classification, FineTuning, Question, choose_fine_tuning, investigate
from dpfedmeta.models.ways import with_ways
from dpfedmeta.report.evaluation_plots import clients_plot, comparison_plot, steps_plot
from dpfedmeta.run_directory import EVALUATION
from dpfedmeta.runs.trained_run import TrainedRun, open_run
from dpfedmeta.tracking.evaluation_tables import evaluation_tables
from dpfedmeta.workers import Workers, available_cores, open_workers

STEPS_PLOT, CLIENTS_PLOT = "evaluation-steps.png", "evaluation-clients.png"
_COMPARISON = Path("evaluation-comparison.png")


def evaluate_runs(request: EvaluationRequest, console: Console) -> None:
    """Evaluate each run on the same episodes; print tables, write evaluation.json and pictures.

    Raises:
        InputError: Not run directories, not comparable, or more shots and queries than images.
    """
    runs = [open_run(path) for path in request.runs]
    check_comparable(request, runs)
    dataset = open_dataset(runs[0].settings.dataset, request.data_folder)
    if dataset.task.shared_classes is None:
        # Before the first minute of work.
        for shape in request.shapes(runs[0]):
            check_shape(dataset.test, shape, "test")
    request = replace(request, seeds=request.seeds or (runs[0].settings.run.seed,))
    evaluations: dict[str, dict[str, Any]] = {}
    with open_workers(request.workers or available_cores()) as workers:
        for run, name in zip(runs, _names(runs), strict=True):
            if dataset.task.shared_classes is None:
                evaluation = _adapted(request, run, dataset, workers)
            else:
                evaluation = _classified(run, dataset, workers)
            run.directory.write_json(EVALUATION, evaluation)
            evaluations[name] = evaluation
            for printed in evaluation_tables(name, evaluation):
                console.print(printed, highlight=False, soft_wrap=isinstance(printed, str))
            _draw(run, name, evaluation, console)
    if request.out or len(runs) > 1:
        path = request.out or _COMPARISON
        comparison_plot(path, evaluations)
        console.print(f"comparison: {path}", highlight=False, soft_wrap=True)


def _names(runs: list[TrainedRun]) -> list[str]:
    """Folder names where they tell the runs apart, else paths."""
    names = [run.directory.path.resolve().name for run in runs]
    return names if len(set(names)) == len(names) else [str(run.directory.path) for run in runs]


def _draw(run: TrainedRun, name: str, evaluation: Mapping[str, Any], console: Console) -> None:
    folder = run.directory.path
    if "by_steps" in evaluation["results"][0]:
        steps_plot(folder / STEPS_PLOT, name, evaluation)
        clients_plot(folder / CLIENTS_PLOT, name, evaluation)
        console.print(f"pictures: {folder / STEPS_PLOT}, {folder / CLIENTS_PLOT}", highlight=False, soft_wrap=True)
    console.print(f"numbers: {folder / EVALUATION}", highlight=False, soft_wrap=True)


def _classified(run: TrainedRun, dataset: Dataset, workers: Workers) -> dict[str, Any]:
    examination = Classification(pool=dataset.test, seed=run.settings.run.seed)
    found = examination.contest(workers, run.network, run.weights, run.untrained, run.adaptation, 0)
    results = {name: accuracy.as_json() for name, accuracy in found.items()}
    return {"protocol": examination.protocol, "note": None, "results": [results]}


def _adapted(request: EvaluationRequest, run: TrainedRun, dataset: Dataset, workers: Workers) -> dict[str, Any]:
    results, protocol = [], ""
    transductive = request.transductive or run.mixes_queries
    for shape in request.shapes(run):
        benchmark = Benchmark(
            pool=dataset.test, shape=shape, seed=request.seeds[0], split="test", transductive=transductive
        )
        question = _question(request, run, benchmark, dataset, workers)
        protocol = benchmark.protocol
        results.append(investigate(workers, benchmark, question, request.seeds, request.episodes).as_json())
    return {
        "protocol": protocol,
        "note": request.note(),
        "trained_ways": run.settings.task.ways,
        "trained_shots": run.settings.task.shots,
        "adaptation": run.adaptation.as_json(),
        "seeds": list(request.seeds),
        "results": results,
    }


def _question(
    request: EvaluationRequest, run: TrainedRun, benchmark: Benchmark, dataset: Dataset, workers: Workers
) -> Question:
    network, trained = with_ways(run.network, run.weights, benchmark.shape.ways)
    _, untrained = with_ways(run.network, run.untrained, benchmark.shape.ways)
    return Question(
        network=network,
        trained=trained,
        untrained=untrained,
        adaptation=run.adaptation,
        at=request.at(run.adaptation.steps),
        fine_tuning=_fine_tuning(request, run, benchmark, dataset, workers) if request.fine_tuning else None,
        has_body=run.has_body,
    )


def _fine_tuning(
    request: EvaluationRequest, run: TrainedRun, benchmark: Benchmark, dataset: Dataset, workers: Workers
) -> FineTuning:
    """On validation episodes of the same shape, or as many classes and images as that split has."""
    pool, shape = dataset.val, benchmark.shape
    least = min(pool.counts)
    shots = min(shape.shots, least - 1)
    fitting = EpisodeShape(ways=min(shape.ways, pool.classes), shots=shots, queries=min(shape.queries, least - shots))
    validation = replace(benchmark, pool=pool, shape=fitting, split="val")
    network, untrained = with_ways(run.network, run.untrained, fitting.ways)
    steps = run.adaptation.steps
    return choose_fine_tuning(workers, network, untrained, validation, steps, request.episodes)
