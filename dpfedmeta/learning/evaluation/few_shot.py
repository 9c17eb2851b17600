"""Few-shot evaluation on held-out public classes, and the baseline that fine-tunes without meta-learning."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.params import Params, arrays_of
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.core.worker_pool import InProcess, Workers
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Episode, draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.capacity_checks import able_clients, check_shape
from dpfedmeta.learning.evaluation.accuracy import Accuracy, digest_of_episode
from dpfedmeta.learning.evaluation.baselines import Adapted, Learner, PixelNeighbour, PixelPrototype, scores
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.models.initial_weights import with_ways
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.targets.classification import OWN_CLASSES

PROTOCOL = "single model, inductive, held-out test classes"
TRANSDUCTIVE_PROTOCOL = (
    "single model, TRANSDUCTIVE (normalisation statistics from support and query images together), "
    "held-out test classes"
)
_EPISODES_PER_CHUNK = 10

Outcomes = npt.NDArray[np.float64]
"""Accuracies [episodes, numbers of steps] of one learner."""
# Wide enough for raw and for scaled features; the best one is looked for on validation classes.
STEP_SIZES = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# Tried one after the other where the best so far lies at an end, so that the baseline is not held down by our choice.
FURTHER = (0.0003, 0.001, 30.0, 100.0, 300.0)
LEAST_STEPS = 20
MOST_VALIDATION_EPISODES = 40


class EpisodeSequence(Protocol):
    """A fixed sequence of episodes of public data, picklable."""

    @property
    def transductive(self) -> bool:
        """True if normalisation takes its statistics from support and query images together."""
        ...

    @property
    def targets(self) -> TargetKind:
        """Kind of the labels, which says how predictions are judged."""
        ...

    def episode(self, number: int) -> Episode:
        """Episode number `number`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A fixed sequence of episodes from public classes; the same seed gives the same episodes.

    Attributes:
        pool: The classes.
        shape: Size of an episode.
        seed: Which episodes.
        split: What the classes are, for messages.
        transductive: Whether normalisation takes its statistics from support and query images together.
        targets: Kind of the labels, which says how predictions are judged.
    """

    pool: ClassPool
    shape: EpisodeShape
    seed: int
    split: str
    transductive: bool = False
    targets: TargetKind = OWN_CLASSES

    def __post_init__(self) -> None:
        check_shape(self.pool, self.shape, self.split)

    def episode(self, number: int) -> Episode:
        """Episode number `number`."""
        return draw_episode(self.pool, public_generator(self.seed, Purpose.EVALUATION, number), self.shape)

    @property
    def able(self) -> int:
        """Test clients that hold enough for an episode, where the data name clients."""
        return len(able_clients(self.pool, self.shape))

    @property
    def protocol(self) -> str:
        """Evaluation protocol in words, stating the conditions of the accuracies."""
        words = TRANSDUCTIVE_PROTOCOL if self.transductive else PROTOCOL
        if not self.pool.clients:
            return words
        named = len({*self.pool.clients})
        others = f" of {named:,}; the others hold too little for an episode" if self.able < named else ""
        whose = f"{self.able:,} held-out test clients{others}; the interval is over episodes, not over clients"
        return words.replace("held-out test classes", whose)

    @property
    def score_name(self) -> str:
        """Name of the scores in files."""
        return self.targets.score_name

    @property
    def sizes(self) -> dict[str, int]:
        """Ways, shots and queries of an episode."""
        return {"ways": self.shape.ways, "shots": self.shape.shots, "queries": self.shape.queries}

    def episodes_digest(self, workers: Workers, episodes: int) -> str | None:
        """Return the digest of the images and labels of the first `episodes` episodes."""
        return episodes_digest(workers, (self,), episodes)

    def accuracy(
        self, workers: Workers, network: NetworkSpec, model: Params, adaptation: Adaptation, episodes: int
    ) -> Accuracy:
        """Compute the accuracy of the model after adaptation."""
        network, model = with_ways(network, model, self.targets.outputs(self.shape.ways))
        return adapted_accuracy(workers, network, model, self, adaptation, episodes)

    def compete(
        self,
        workers: Workers,
        network: NetworkSpec,
        trained: Params,
        untrained: Params,
        adaptation: Adaptation,
        episodes: int,
    ) -> dict[str, Accuracy]:
        """The same episodes for all: the trained model after and before adaptation, the untrained one, pixels.

        Returns:
            Accuracies by their names in summary.json and evaluation.json.
        """
        outputs, name = self.targets.outputs(self.shape.ways), self.score_name
        _, untrained = with_ways(network, untrained, outputs)
        network, trained = with_ways(network, trained, outputs)
        at = (adaptation.steps,)
        after = Adapted(network=network, weights=arrays_of(trained), adaptation=adaptation, at=at)
        found = outcomes(workers, self, competitors(after, untrained), episodes)
        return {each: Accuracy.of(values[:, 0].tolist(), score=name) for each, values in found.items()}


def competitors(after: Adapted, untrained: Params, *, whole: bool = False) -> dict[str, Learner]:
    """Learners by the names of their scores in summary.json: a model, itself not adapted or not trained, baselines.

    Args:
        after: The trained model, judged after adaptation.
        untrained: Weights before round 0.
        whole: Whether clients hold their own numbers of classes and records.
    """
    targets = after.adaptation.targets
    name = targets.score_name
    return {
        name: after,
        f"{name}_before_adaptation": after.before,
        f"{name}_untrained": replace(after, weights=arrays_of(untrained)),
        **{f"{name}_{end}": each for end, each in targets.baselines(after.network.vocabulary, whole=whole).items()},
    }


def episodes_digest(workers: Workers, benchmarks: Sequence[EpisodeSequence], episodes: int) -> str:
    """Return the digest of all images and labels of each benchmark's first `episodes` episodes, drawn again for it."""
    tasks = ((each, start, end) for each in benchmarks for start, end in _chunks(episodes))
    return hashlib.blake2b(b"".join(workers.map(_digests, tasks)), digest_size=16).hexdigest()


def _digests(benchmark: EpisodeSequence, start: int, end: int) -> bytes:
    return b"".join(digest_of_episode(benchmark.episode(number)) for number in range(start, end))


def _chunks(episodes: int) -> Iterator[tuple[int, int]]:
    for start in range(0, episodes, _EPISODES_PER_CHUNK):
        yield start, min(start + _EPISODES_PER_CHUNK, episodes)


def outcomes(
    workers: Workers, benchmark: EpisodeSequence, learners: Mapping[str, Learner], episodes: int
) -> dict[str, Outcomes]:
    """Run all learners on the same episodes; each episode is drawn once.

    Returns:
        Accuracies of each learner by its name, [episodes, numbers of steps after which it is evaluated].
    """
    tasks = ((benchmark, learners, start, end) for start, end in _chunks(episodes))
    parts = list(workers.map(_chunk, tasks))
    return {name: np.array([row for part in parts for row in part[name]]) for name in learners}


def _chunk(
    benchmark: EpisodeSequence, learners: Mapping[str, Learner], start: int, end: int
) -> dict[str, list[list[float]]]:
    found: dict[str, list[list[float]]] = {name: [] for name in learners}
    for number in range(start, end):
        episode = benchmark.episode(number)
        for name, learner in learners.items():
            own = scores(learner, episode, benchmark.targets, transductive=benchmark.transductive)
            found[name].append(own)
    return found


def adapted_accuracy(
    workers: Workers,
    network: NetworkSpec,
    model: Params,
    benchmark: Benchmark,
    adaptation: Adaptation,
    episodes: int,
) -> Accuracy:
    """Accuracy after adapting `model` to each episode (steps = 0: before adaptation)."""
    one = Adapted(network=network, weights=arrays_of(model), adaptation=adaptation, at=(adaptation.steps,))
    return _alone(workers, benchmark, one, episodes)


def pixel_prototype_accuracy(benchmark: Benchmark, episodes: int) -> Accuracy:
    """Nearest class mean in pixels: needs no learning at all."""
    return _alone(InProcess(), benchmark, PixelPrototype(), episodes)


def pixel_neighbour_accuracy(benchmark: Benchmark, episodes: int) -> Accuracy:
    """Nearest support image in pixels."""
    return _alone(InProcess(), benchmark, PixelNeighbour(), episodes)


def _alone(workers: Workers, benchmark: Benchmark, learner: Learner, episodes: int) -> Accuracy:
    found = outcomes(workers, benchmark, {"it": learner}, episodes)["it"][:, 0]
    return Accuracy.of(found.tolist(), score=benchmark.score_name)


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """Fine-tuning of the untrained network: the baseline without meta-learning.

    Attributes:
        steps: Gradient steps on all layers.
        lr: Step size with the best accuracy on validation classes after these steps.
        tried: Mean validation accuracy by step size.
        episodes: Number of validation episodes.
    """

    steps: int
    lr: float
    tried: Mapping[float, float]
    episodes: int

    @property
    def adaptation(self) -> Adaptation:
        """Inner loop that does this fine-tuning."""
        return Adaptation(adapt="all", steps=self.steps, lr=self.lr)

    def as_json(self) -> dict[str, object]:
        """The form of evaluation.json."""
        tried = {f"{lr:g}": accuracy for lr, accuracy in self.tried.items()}
        return {"lr": self.lr, "steps": self.steps, "validation": tried, "validation_episodes": self.episodes}


def choose_fine_tuning(
    workers: Workers, network: NetworkSpec, untrained: Params, validation: Benchmark, steps: int, episodes: int
) -> FineTuning:
    """Choose the step size on validation classes, never on test classes.

    Args:
        workers: Where episodes run.
        network: The untrained network, for the number of classes of `validation`.
        untrained: Its weights.
        validation: Episodes of validation classes.
        steps: The run's own number of steps; at least LEAST_STEPS are taken.
        episodes: Validation episodes; at most MOST_VALIDATION_EPISODES are used.
    """
    taken, count = max(steps, LEAST_STEPS), min(episodes, MOST_VALIDATION_EPISODES)
    weights = arrays_of(untrained)
    tried: dict[float, float] = {}
    wanted: tuple[float, ...] = STEP_SIZES
    while wanted:
        how = {lr: Adaptation(adapt="all", steps=taken, lr=lr) for lr in wanted}
        learners = {
            str(lr): Adapted(network=network, weights=weights, adaptation=adaptation, at=(taken,))
            for lr, adaptation in how.items()
        }
        found = outcomes(workers, validation, learners, count)
        tried |= {lr: float(found[str(lr)].mean()) for lr in wanted}
        best = max(sorted(tried), key=lambda lr: tried[lr])
        wanted = beyond(best, tried)
    return FineTuning(steps=taken, lr=best, tried=dict(sorted(tried.items())), episodes=count)


def beyond(best: float, tried: Mapping[float, float]) -> tuple[float, ...]:
    """Return the next step size to try if the best one so far is at an end of those tried; else empty."""
    if best == max(tried):
        return tuple(lr for lr in FURTHER if lr > best)[:1]
    if best == min(tried):
        return tuple(lr for lr in FURTHER if lr < best)[-1:]
    return ()
