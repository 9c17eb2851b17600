"""The size that a plan is audited at where its own would show nothing: few clients, all of them in every round."""

import math
from collections.abc import Mapping
from pathlib import Path

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.load import resolve
from dpfedmeta.config.settings import Settings
from dpfedmeta.learning.models.weight_shapes import METRIC

# Weaker than what is typed, stronger than the preset. Everybody takes part, so that no round is amplified. The network
# is small, since no epsilon depends on it, and so is the task.
_SMALL: Mapping[str, str] = {
    "population.clients": "8",
    "population.cohort": "8",
    "population.max_participations": "null",
    "server.rounds": "5",
    "server.schedule": "[]",
    "model.name": "mlp",
    "model.width": "2",
    "model.norm": "none",
    "model.features": "raw",
    "model.initial": "null",
    "model.downscale": "null",
    "model.first_gain": "1.0",
    "meta.steps": "1",
    "meta.divisions": "1",
    "task.ways": "2",
    "task.shots": "1",
    "task.queries": "1",
    "record.micro_ways": "null",
    "record.micro_shots": "1",
    "record.micro_queries": "1",
    "clip.window": "2",
    "clip.count_noise": "10",
    "run.workers": "1",
    "run.device": "cpu",
}
# For a canary record the network is one whose gradient of it points one way, whatever noise was in the steps before.
OF_RECORDS: Mapping[str, str] = {
    "model.name": "linear",
    "model.width": "1",
    "meta.learn": "all",
    "meta.adapt": "all",
    "meta.lr": "0.001",
}
# What a metric is solved for from has no other network, and its directions decide over the work. A second phase stays.
_OF_METRICS: Mapping[str, str] = {
    "model.name": METRIC,
    "model.width": "2",
    "meta.learn": "body",
    "meta.adapt": "head",
    "meta.own.directions": "8",
}
# Random directions of so many coordinates for each canary hardly overlap; a hidden unit has one for each pixel.
_COORDINATES_EACH, _PIXELS = 12, 784
# As a run without rounds to spare would have it.
_BOOKS: Mapping[str, str] = {"evaluation.every": "1000000", "run.checkpoint_every": "1000000"}
# A larger epsilon takes fewer runs to come near.
_TARGETS: Mapping[str, str] = {
    "privacy.client.epsilon": "8.0",
    "privacy.client.delta": "1.0e-5",
    "privacy.record.epsilon": "8.0",
}


def audited_settings(
    algo: str | None,
    dataset: str | None,
    config: Path | None,
    given: Mapping[str, str],
    *,
    as_planned: bool,
    more: Mapping[str, str] | None = None,
) -> Settings:
    """The settings that are audited.

    Args:
        algo: As for training.
        dataset: Likewise.
        config: Likewise.
        given: What was typed.
        as_planned: Whether the sizes stay those of the preset.
        more: Further sizes, where it is not as planned.

    Raises:
        InputError: A setting is wrong.
    """
    planned = resolve(algo, dataset, config, given)
    if as_planned:
        return resolve(algo, dataset, config, {"evaluation.every": _BOOKS["evaluation.every"], **given})
    targets = {
        name: value
        for name, value in _TARGETS.items()
        if name.endswith("delta") or getattr(planned.privacy, name.split(".")[1]).epsilon is not None
    }
    drawn = sampling_of(planned.population.sampler).audited
    sizes = {**_SMALL, **_BOOKS, **drawn, **targets, **(more or {})}
    if planned.model.name == METRIC:
        sizes |= {**_OF_METRICS, **_noise_of_phases(planned), **_directions_of(more or {})}
    return resolve(algo, dataset, config, {**sizes, **given})


def _noise_of_phases(planned: Settings) -> Mapping[str, str]:
    """Noise of later rounds as it is planned, with everybody in each round."""
    kept = [f"{{from_round: {each.from_round}, noise_scale: {each.noise_scale}}}" for each in planned.server.schedule]
    return {"server.schedule": f"[{', '.join(kept)}]"}


def _directions_of(more: Mapping[str, str]) -> Mapping[str, str]:
    """Directions whose moments have as many coordinates as so many canaries need."""
    canaries = more.get("population.clients")
    if canaries is None:
        return {}
    return {"meta.own.directions": str(math.ceil(math.sqrt(_COORDINATES_EACH * int(canaries))))}


def of_canaries(count: int) -> Mapping[str, str]:
    """Sizes of an audit with many canaries, and random directions for all of them."""
    width = max(2, math.ceil(_COORDINATES_EACH * count / _PIXELS))
    return {
        "population.clients": str(count),
        "population.cohort": str(count),
        "server.rounds": "3",
        "model.width": str(width),
    }
