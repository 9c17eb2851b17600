"""evaluate.py: a finished run on held-out test classes, written to evaluation.json."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfedmeta.config import resolve
from dpfedmeta.data import EpisodeShape, open_dataset
from dpfedmeta.errors import InputError
from dpfedmeta.evaluation import PROTOCOL, Benchmark, contest
from dpfedmeta.federation.backend import available_cores, open_workers
from dpfedmeta.federation.client_plan import evaluation_adaptation, network_spec
from dpfedmeta.tracking.run_directory import CONFIG, EVALUATION, RunDirectory, load_weights


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What evaluate.py was asked.

    Attributes:
        run: Run directory.
        shots: Support images per class, one evaluation each; empty: as trained.
        episodes: Episodes per evaluation.
        data_folder: Where the images are.
        workers: Worker processes; None: cores.
    """

    run: Path
    shots: tuple[int, ...]
    episodes: int
    data_folder: Path | None
    workers: int | None


def evaluate_run(request: EvaluationRequest, console: Console) -> None:
    """Evaluate by shots, print a table, write evaluation.json.

    Raises:
        InputError: Not a run directory, or more shots and queries than images.
    """
    if request.episodes < 2 or any(shots < 1 for shots in request.shots):
        raise InputError("--episodes must be at least 2 and --shots at least 1")
    run = RunDirectory(request.run)
    trained = load_weights(run.weights)
    settings = resolve(None, None, run.path / CONFIG)
    dataset = open_dataset(settings.dataset, request.data_folder)
    network, adaptation = network_spec(settings, dataset.task), evaluation_adaptation(settings)
    untrained = load_weights(run.initial_weights)
    results = []
    table = Table(title=f"{request.run.name}: {PROTOCOL}, {request.episodes} episodes", title_justify="left")
    for column in ("shots", "adapted", "before", "untrained", "pixel prototype", "pixel neighbour"):
        table.add_column(column, justify="right")
    with open_workers(request.workers or available_cores()) as workers:
        for shots in request.shots or (settings.task.shots,):
            shape = EpisodeShape(ways=settings.task.ways, shots=shots, queries=settings.evaluation.queries)
            benchmark = Benchmark(pool=dataset.test, shape=shape, seed=settings.run.seed, split="test")
            accuracies = contest(workers, network, trained, untrained, benchmark, adaptation, request.episodes)
            values = {name: accuracy.as_json() for name, accuracy in accuracies.items()}
            results.append({"ways": shape.ways, "shots": shots, "queries": shape.queries, **values})
            table.add_row(str(shots), *(str(accuracy) for accuracy in accuracies.values()))
    run.write_json(
        EVALUATION,
        {"protocol": PROTOCOL, "trained_shots": settings.task.shots, "results": results},
    )
    console.print(table)
