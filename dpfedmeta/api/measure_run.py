"""Measurements of one run on held-out public data."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from dpfedmeta.api.evaluation_request import (
    EvaluationRequest,
)
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import Watched, Workers
from dpfedmeta.data.dataset import Dataset
from dpfedmeta.data.populations.capacity_checks import largest_shape
from dpfedmeta.data.populations.whole_population import everybody
from dpfedmeta.learning.evaluation import (
    Benchmark,
    EvaluationQuestion,
    FineTuning,
    SharedClassifier,
    choose_fine_tuning,
    distribution,
    investigate,
)
from dpfedmeta.learning.evaluation.accuracy import KeptEpisodes
from dpfedmeta.learning.evaluation.held_out_clients import WholeClientsBenchmark
from dpfedmeta.learning.models.initial_weights import with_ways
from dpfedmeta.planning.client_population import authors_of
from dpfedmeta.training.results.trained_run import TrainedRun

Watch = Callable[[str, float], None]
"""Told what is being done, and which share of it is."""


def measured(
    request: EvaluationRequest, run: TrainedRun, dataset: Dataset, workers: Workers, watch: Watch
) -> dict[str, Any]:
    """Measure a run on the test part of its data: whole clients, episodes of classes, or images of one classifier.

    Returns:
        Results for each number of ways and shots, and how they were measured.
    """
    if request.whole(run.settings) is not None:
        return _whole(request, run, dataset, Watched(workers, partial(watch, "whole clients")))
    if dataset.task.shared_classes is None:
        return _adapted(request, run, dataset, workers, watch)
    return _classified(run, dataset, Watched(workers, partial(watch, "images")))


def _classified(run: TrainedRun, dataset: Dataset, workers: Workers) -> dict[str, Any]:
    held_out_evaluation = SharedClassifier(pool=dataset.test, seed=run.settings.run.seed)
    found = held_out_evaluation.compete(workers, run.network, run.weights, run.untrained, run.adaptation, 0)
    results = {name: accuracy.as_json() for name, accuracy in found.items()}
    return {"protocol": held_out_evaluation.protocol, "note": None, "results": [results]}


def _whole(request: EvaluationRequest, run: TrainedRun, dataset: Dataset, workers: Workers) -> dict[str, Any]:
    """Evaluate a run of whole clients on those of the test part, as at its end."""
    shape = request.whole(run.settings)
    assert shape is not None
    clients = everybody(dataset.test, shape, request.seeds[0], authors_of(run.settings))
    mixed = request.transductive or run.mixes_queries
    held_out = WholeClientsBenchmark(clients=clients, transductive=mixed, targets=run.adaptation.targets)
    found = held_out.compete(workers, run.network, run.weights, run.untrained, run.adaptation, request.episodes)
    results: dict[str, object] = {name: accuracy.as_json() for name, accuracy in found.items()}
    spread = {name: distribution(found[name].values) for name in ("accuracy", "accuracy_untrained")}
    kept = KeptEpisodes.measured(held_out, workers, request.seeds[0], found["accuracy"])
    assert kept is not None
    results |= {"clients": spread, **kept.as_json()}
    seeds = list(request.seeds[:1])
    return {"protocol": held_out.protocol, "note": request.note(), "seeds": seeds, "results": [results]}


def _adapted(
    request: EvaluationRequest, run: TrainedRun, dataset: Dataset, workers: Workers, watch: Watch
) -> dict[str, Any]:
    results, protocol = [], ""
    transductive = request.transductive or run.mixes_queries
    for shape in request.shapes(run.settings):
        benchmark = Benchmark(
            pool=dataset.test, shape=shape, seed=request.seeds[0], split="test", transductive=transductive
        )
        size = f"{shape.ways}-way {shape.shots}-shot"
        choosing = Watched(workers, partial(watch, f"{size}: choosing the step size of fine-tuning"))
        question = _question(request, run, benchmark, dataset, choosing)
        protocol = benchmark.protocol
        asking = Watched(workers, partial(watch, f"{size}: {request.episodes} episodes"))
        results.append(investigate(asking, benchmark, question, request.seeds, request.episodes).as_json())
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
) -> EvaluationQuestion:
    network, trained = with_ways(run.network, run.weights, run.adaptation.targets.outputs(benchmark.shape.ways))
    _, untrained = with_ways(run.network, run.untrained, run.adaptation.targets.outputs(benchmark.shape.ways))
    return EvaluationQuestion(
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
    fitting = largest_shape(dataset.val, benchmark.shape)
    if fitting is None:
        raise InputError(
            "the validation split fills no episode of two classes with two records each, on which the step size of "
            "fine-tuning is chosen; use --no-fine-tuning"
        )
    validation = replace(benchmark, pool=dataset.val, shape=fitting, split="val")
    # Fine-tuning has one step size: what a method learns beside the network has no part in it.
    plain = run.adaptation.rule.network(run.untrained)
    network, untrained = with_ways(run.network, plain, run.adaptation.targets.outputs(fitting.ways))
    steps = run.adaptation.steps
    return choose_fine_tuning(workers, network, untrained, validation, steps, request.episodes)
