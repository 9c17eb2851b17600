"""evaluate.py: a finished run on held-out test classes, written to evaluation.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from dpfedmeta.config import resolve
from dpfedmeta.data import EpisodeShape, open_dataset
from dpfedmeta.errors import InputError
from dpfedmeta.evaluation import (
    PROTOCOL,
    Benchmark,
    adapted_accuracy,
    pixel_neighbour_accuracy,
    pixel_prototype_accuracy,
)
from dpfedmeta.federation.backend import Workers, available_cores, open_workers
from dpfedmeta.federation.plan import evaluation_adaptation, network_spec
from dpfedmeta.meta import Adaptation
from dpfedmeta.models import NetworkSpec
from dpfedmeta.parameters import Params
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


@dataclass(frozen=True, kw_only=True, eq=False)
class _Contestants:
    """The same episodes for everybody."""

    network: NetworkSpec
    trained: Params
    untrained: Params
    adaptation: Adaptation

    def on(self, workers: Workers, benchmark: Benchmark, episodes: int) -> dict[str, dict[str, object]]:
        """Accuracy of each."""

        def adapted(params: Params, adaptation: Adaptation) -> dict[str, object]:
            return adapted_accuracy(workers, self.network, params, benchmark, adaptation, episodes).as_json()

        return {
            "accuracy": adapted(self.trained, self.adaptation),
            "accuracy_before_adaptation": adapted(self.trained, replace(self.adaptation, steps=0)),
            "accuracy_untrained": adapted(self.untrained, self.adaptation),
            "accuracy_pixel_prototype": pixel_prototype_accuracy(benchmark, episodes).as_json(),
            "accuracy_pixel_neighbour": pixel_neighbour_accuracy(benchmark, episodes).as_json(),
        }


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
    contestants = _Contestants(
        network=network_spec(settings, dataset.task),
        trained=trained,
        untrained=load_weights(run.initial_weights),
        adaptation=evaluation_adaptation(settings),
    )
    results = []
    table = Table(title=f"{request.run.name}: {PROTOCOL}, {request.episodes} episodes", title_justify="left")
    for column in ("shots", "adapted", "before", "untrained", "pixel prototype", "pixel neighbour"):
        table.add_column(column, justify="right")
    with open_workers(request.workers or available_cores()) as workers:
        for shots in request.shots or (settings.task.shots,):
            shape = EpisodeShape(ways=settings.task.ways, shots=shots, queries=settings.evaluation.queries)
            benchmark = Benchmark(pool=dataset.test, shape=shape, seed=settings.run.seed, split="test")
            accuracies = contestants.on(workers, benchmark, request.episodes)
            results.append({"ways": shape.ways, "shots": shots, "queries": shape.queries, **accuracies})
            table.add_row(str(shots), *(_percent(value) for value in accuracies.values()))
    run.write_json(
        EVALUATION,
        {"protocol": PROTOCOL, "trained_shots": settings.task.shots, "results": results},
    )
    console.print(table)


def _percent(value: dict[str, object]) -> str:
    mean, spread = value["mean"], value["ci95"]
    assert isinstance(mean, float)
    assert isinstance(spread, float)
    return f"{100 * mean:.1f} ± {100 * spread:.1f}"
