"""Few-shot evaluation of personalised adaptation on held-out public classes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from dpfedmeta.data.episode import Episode, EpisodeShape, check_shape, draw_episode
from dpfedmeta.data.pool import ClassPool
from dpfedmeta.evaluation.accuracy import Accuracy
from dpfedmeta.federation.backend import Workers
from dpfedmeta.meta.adapt import Adaptation, adapted_logits
from dpfedmeta.models import NetworkSpec, build_network
from dpfedmeta.parameters import Params
from dpfedmeta.randomness import Purpose, public_generator

PROTOCOL = "single model, inductive, held-out test classes"
_EPISODES_PER_CHUNK = 10


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A fixed sequence of episodes from public classes; the same seed gives the same episodes."""

    pool: ClassPool
    shape: EpisodeShape
    seed: int
    split: str

    def __post_init__(self) -> None:
        check_shape(self.pool, self.shape, self.split)

    def episode(self, number: int) -> Episode:
        """Episode number `number`."""
        return draw_episode(self.pool, public_generator(self.seed, Purpose.EVALUATION, number), self.shape)

    @property
    def protocol(self) -> str:
        """What the accuracies mean."""
        return PROTOCOL

    def accuracy(
        self, workers: Workers, network: NetworkSpec, model: Params, adaptation: Adaptation, episodes: int
    ) -> Accuracy:
        """Of the model after adaptation."""
        return adapted_accuracy(workers, network, model, self, adaptation, episodes)

    def contest(
        self,
        workers: Workers,
        network: NetworkSpec,
        trained: Params,
        untrained: Params,
        adaptation: Adaptation,
        episodes: int,
    ) -> dict[str, Accuracy]:
        """Of the trained model and of what it competes with."""
        return contest(workers, network, trained, untrained, self, adaptation, episodes)


def adapted_accuracy(
    workers: Workers,
    network: NetworkSpec,
    model: Params,
    benchmark: Benchmark,
    adaptation: Adaptation,
    episodes: int,
) -> Accuracy:
    """Accuracy after adapting `model` to each episode (steps = 0: before adaptation)."""
    arrays = {name: value.cpu().numpy() for name, value in model.items()}
    tasks = (
        (network, arrays, benchmark, adaptation, start, min(start + _EPISODES_PER_CHUNK, episodes))
        for start in range(0, episodes, _EPISODES_PER_CHUNK)
    )
    return Accuracy.of([value for part in workers.map(_chunk, tasks) for value in part])


def _chunk(
    spec: NetworkSpec,
    model: Mapping[str, npt.NDArray[np.float32]],
    benchmark: Benchmark,
    adaptation: Adaptation,
    start: int,
    end: int,
) -> list[float]:
    params = {name: torch.from_numpy(value.copy()) for name, value in model.items()}
    network = _network(spec)
    accuracies = []
    for number in range(start, end):
        episode = benchmark.episode(number)
        predicted = adapted_logits(network, params, episode, adaptation).argmax(1)
        accuracies.append(float((predicted == episode.query_labels).double().mean()))
    return accuracies


@lru_cache(maxsize=4)
def _network(spec: NetworkSpec) -> nn.Module:
    return build_network(spec)


def pixel_prototype_accuracy(benchmark: Benchmark, episodes: int) -> Accuracy:
    """Nearest class mean in pixels: needs no learning at all."""
    values = []
    for number in range(episodes):
        episode = benchmark.episode(number)
        ways, shots = benchmark.shape.ways, benchmark.shape.shots
        means = episode.support_images.reshape(ways, shots, -1).mean(1)
        nearest = torch.cdist(episode.query_images.flatten(1), means).argmin(1)
        values.append(float((nearest == episode.query_labels).double().mean()))
    return Accuracy.of(values)


def pixel_neighbour_accuracy(benchmark: Benchmark, episodes: int) -> Accuracy:
    """Nearest support image in pixels."""
    values = []
    for number in range(episodes):
        episode = benchmark.episode(number)
        distance = torch.cdist(episode.query_images.flatten(1), episode.support_images.flatten(1))
        predicted = episode.support_labels[distance.argmin(1)]
        values.append(float((predicted == episode.query_labels).double().mean()))
    return Accuracy.of(values)


def contest(
    workers: Workers,
    network: NetworkSpec,
    trained: Params,
    untrained: Params,
    benchmark: Benchmark,
    adaptation: Adaptation,
    episodes: int,
) -> dict[str, Accuracy]:
    """The same episodes for everybody: the trained model after and before adaptation, the untrained one, pixels.

    Returns:
        Accuracies by their names in summary.json and evaluation.json.
    """

    def adapted(params: Params, how: Adaptation) -> Accuracy:
        return adapted_accuracy(workers, network, params, benchmark, how, episodes)

    return {
        "accuracy": adapted(trained, adaptation),
        "accuracy_before_adaptation": adapted(trained, replace(adaptation, steps=0)),
        "accuracy_untrained": adapted(untrained, adaptation),
        "accuracy_pixel_prototype": pixel_prototype_accuracy(benchmark, episodes),
        "accuracy_pixel_neighbour": pixel_neighbour_accuracy(benchmark, episodes),
    }
