"""Benefit of adaptation for single clients: by number of steps, by client, and beside the baselines."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.params import Params, arrays_of
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation.accuracy import Accuracy, KeptEpisodes
from dpfedmeta.learning.evaluation.baselines import Adapted, FeaturePrototype, Learner, PixelNeighbour, PixelPrototype
from dpfedmeta.learning.evaluation.few_shot import Benchmark, FineTuning, Outcomes, episodes_digest, outcomes
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.spec import NetworkSpec

BINS = 20
WORST = 0.1
_PATHS = ("accuracy", "accuracy_untrained", "accuracy_fine_tuned")


@dataclass(frozen=True, kw_only=True, eq=False)
class EvaluationQuestion:
    """Learners to compare, and the numbers of adaptation steps after which they are evaluated.

    Attributes:
        network: Network for the number of classes of the episodes.
        trained: Weights to evaluate.
        untrained: Weights before training.
        adaptation: Inner loop of held-out clients; its number of steps is K.
        at: Numbers of steps, ascending; includes 0 and K.
        fine_tuning: Fine-tuning of the untrained network; None: this baseline is left out.
        has_body: Whether the network has a body that computes features.
    """

    network: NetworkSpec
    trained: Params
    untrained: Params
    adaptation: Adaptation
    at: tuple[int, ...]
    fine_tuning: FineTuning | None
    has_body: bool

    @property
    def fine_tuned_at(self) -> tuple[int, ...]:
        """Numbers of steps in `at` below that of the fine-tuning, followed by the fine-tuning's own."""
        if self.fine_tuning is None:
            return ()
        last = self.fine_tuning.steps
        return (*(steps for steps in self.at if steps < last), last)


@dataclass(frozen=True, kw_only=True, eq=False)
class Findings:
    """Accuracies on the episodes of one shape, over one or several seeds.

    Attributes:
        shape: Size of an episode.
        question: Learners and numbers of steps that were evaluated.
        seeds: Seed of each sequence of episodes.
        by_seed: For each seed, accuracies [episodes, steps] by learner.
        digest: Digest of all episodes.
    """

    shape: EpisodeShape
    question: EvaluationQuestion
    seeds: tuple[int, ...]
    by_seed: tuple[Mapping[str, Outcomes], ...]
    digest: str

    def values(self, name: str) -> Outcomes:
        """Accuracies [episodes of all seeds, steps] of a learner.

        All seeds judge the same weights and every episode is an independent draw, so pooling is joining.
        """
        return np.concatenate([found[name] for found in self.by_seed])

    def as_json(self) -> dict[str, object]:
        """Return one entry of `results` in evaluation.json."""
        asked, shape = self.question, self.shape
        last = asked.at.index(asked.adaptation.steps)
        single = [name for name in self.by_seed[0] if name not in _PATHS]
        return {
            "ways": shape.ways,
            "shots": shape.shots,
            "queries": shape.queries,
            "accuracy": self._accuracy("accuracy", last, steps=asked.adaptation.steps),
            "accuracy_untrained": self._accuracy("accuracy_untrained", last),
            **self._fine_tuned(),
            **{name: self._accuracy(name, 0) for name in single},
            "by_steps": [self._at(place, steps) for place, steps in enumerate(asked.at)],
            "clients": {
                name: distribution(self.values(name)[:, last].tolist()) for name in ("accuracy", "accuracy_untrained")
            },
            "seeds": [
                {"seed": seed, "accuracy": Accuracy.of(found["accuracy"][:, last].tolist()).as_json()}
                for seed, found in zip(self.seeds, self.by_seed, strict=True)
            ],
            **self._episodes(last).as_json(),
        }

    def _episodes(self, place: int) -> KeptEpisodes:
        accuracies = tuple(self.values("accuracy")[:, place].tolist())
        return KeptEpisodes(digest=self.digest, seeds=self.seeds, accuracies=accuracies)

    def _fine_tuned(self) -> dict[str, object]:
        tuning = self.question.fine_tuning
        if tuning is None:
            return {}
        return {"accuracy_fine_tuned": self._accuracy("accuracy_fine_tuned", -1, **tuning.as_json())}

    def _accuracy(self, name: str, place: int, **more: object) -> dict[str, object]:
        return Accuracy.of(self.values(name)[:, place].tolist()).as_json(**more)

    def _at(self, place: int, steps: int) -> dict[str, object]:
        row: dict[str, object] = {"steps": steps}
        row |= {name: self._accuracy(name, place) for name in ("accuracy", "accuracy_untrained")}
        if steps in self.question.fine_tuned_at:
            row["accuracy_fine_tuned"] = self._accuracy("accuracy_fine_tuned", self.question.fine_tuned_at.index(steps))
        return row


def investigate(
    workers: Workers, benchmark: Benchmark, question: EvaluationQuestion, seeds: Sequence[int], episodes: int
) -> Findings:
    """Ask everybody on the same episodes.

    Args:
        workers: Where episodes run.
        benchmark: Classes and shape; its seed is replaced by each of `seeds`.
        question: Who competes.
        seeds: One sequence of episodes for each.
        episodes: For each seed, at least 2.
    """
    learners = _contestants(question)
    sequences = [replace(benchmark, seed=seed) for seed in seeds]
    found = tuple(outcomes(workers, sequence, learners, episodes) for sequence in sequences)
    digest = episodes_digest(workers, sequences, episodes)
    return Findings(shape=benchmark.shape, question=question, seeds=tuple(seeds), by_seed=found, digest=digest)


def _contestants(question: EvaluationQuestion) -> dict[str, Learner]:
    trained, untrained = arrays_of(question.trained), arrays_of(question.untrained)
    path = Adapted(network=question.network, weights=trained, adaptation=question.adaptation, at=question.at)
    made: dict[str, Learner] = {
        "accuracy": path,
        "accuracy_before_adaptation": path.before,
        "accuracy_untrained": replace(path, weights=untrained),
    }
    if question.fine_tuning is not None:
        plain = arrays_of(question.adaptation.rule.network(question.untrained))
        made["accuracy_fine_tuned"] = replace(
            path, weights=plain, adaptation=question.fine_tuning.adaptation, at=question.fine_tuned_at
        )
    if question.has_body:
        made["accuracy_trained_prototype"] = FeaturePrototype(network=question.network, weights=trained)
        made["accuracy_untrained_prototype"] = FeaturePrototype(network=question.network, weights=untrained)
    vocabulary = question.network.vocabulary
    return {
        **made,
        "accuracy_pixel_prototype": PixelPrototype(vocabulary=vocabulary),
        "accuracy_pixel_neighbour": PixelNeighbour(vocabulary=vocabulary),
    }


def distribution(values: Sequence[float]) -> dict[str, object]:
    """Compute the spread of accuracy over clients: mean of the worst tenth, histogram of BINS equal bins of [0, 1]."""
    worst = sorted(values)[: math.ceil(WORST * len(values))]
    return {
        "worst_tenth": float(np.mean(worst)),
        "histogram": {
            "edges": [place / BINS for place in range(BINS + 1)],
            "episodes": _histogram(np.asarray(values, dtype=np.float64)).tolist(),
        },
    }


def _histogram(values: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    # Accuracies are fractions with few values, many of them on an edge: the edge belongs to the bin above.
    places = np.minimum(np.floor(values * BINS + 1e-9).astype(np.int64), BINS - 1)
    return np.bincount(places, minlength=BINS).astype(np.int64)
