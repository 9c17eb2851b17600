"""Accuracies: the interface of all evaluations, their result, and the difference of two models on the same episodes."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.spec import NetworkSpec


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Mean accuracy over episodes, or over images where there is one model for all.

    Attributes:
        mean: In [0, 1].
        ci95: Half the width of the 95% interval of the mean (Student's t over `values`).
        episodes: How many.
        counted: What was counted.
        values: Of each, where they are at hand; of whole clients the mean of each client, in one order.
        each: What each of `values` is of: an episode, an image, a client, or a split of the only client.
        score: What it is: accuracy, or error of numbers to predict, in their unit.
    """

    mean: float
    ci95: float
    episodes: int
    counted: str = "episodes"
    values: tuple[float, ...] = field(default=(), repr=False, compare=False)
    score: str = field(default="accuracy", repr=False)
    each: str = field(default="episodes", repr=False, compare=False)

    @classmethod
    def of(cls, values: Sequence[float], counted: str = "episodes", score: str = "accuracy") -> Accuracy:
        """Compute the mean accuracy from the accuracies of at least 2 episodes or images."""
        return cls(
            mean=float(np.mean(values)),
            ci95=half_width(values),
            episodes=len(values),
            counted=counted,
            values=tuple(values),
            score=score,
            each=counted,
        )

    @classmethod
    def from_json(cls, found: Mapping[str, Any], score: str = "accuracy") -> Accuracy:
        """Read a score that `as_json` wrote."""
        counted = "episodes" if "episodes" in found else "images"
        return cls(mean=found["mean"], ci95=found["ci95"], episodes=found[counted], counted=counted, score=score)

    def as_json(self, **more: object) -> dict[str, object]:
        """The form of summary.json."""
        return {"mean": self.mean, "ci95": self.ci95, self.counted: self.episodes, **more}

    def __str__(self) -> str:
        if self.score != "accuracy":
            return f"{self.mean:.4g} ± {self.ci95:.2g}"
        return f"{100 * self.mean:.1f}% ± {100 * self.ci95:.1f}"


def half_width(values: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """Half the width of Student's 95% interval for the mean of at least 2 independent values."""
    count = len(values)
    return float(stdtrit(count - 1, 0.975)) * float(np.std(values, ddof=1)) / math.sqrt(count)


class HeldOutEvaluation(Protocol):
    """Evaluation of a model on public data: by few-shot episodes, or as one classifier for all."""

    @property
    def protocol(self) -> str:
        """Evaluation protocol in words, stating the conditions of the accuracies."""
        ...

    @property
    def score_name(self) -> str:
        """Name of the scores in files: accuracy, or error of numbers to predict."""
        ...

    @property
    def sizes(self) -> Mapping[str, int]:
        """Ways, shots and queries of an episode; empty: it is not by episodes."""
        ...

    def episodes_digest(self, workers: Workers, episodes: int) -> str | None:
        """Equal ones are the same episodes; None: it is not by episodes."""
        ...

    def accuracy(
        self, workers: Workers, network: NetworkSpec, model: Params, adaptation: Adaptation, episodes: int
    ) -> Accuracy:
        """Compute the accuracy of one model."""
        ...

    def compete(
        self,
        workers: Workers,
        network: NetworkSpec,
        trained: Params,
        untrained: Params,
        adaptation: Adaptation,
        episodes: int,
    ) -> dict[str, Accuracy]:
        """Compute the scores of the trained model and of the baselines, by their names in summary.json."""
        ...


@dataclass(frozen=True, kw_only=True)
class KeptEpisodes:
    """The accuracy on each episode of an evaluation; of public classes, so it may be published.

    Attributes:
        digest: Of all images and labels of the episodes in their order: equal digests are the same episodes.
        seeds: That they were drawn with.
        accuracies: In [0, 1], in the order of the episodes.
        what: Size of the episodes in words.
        protocol: What the accuracies mean; those of two protocols are not compared.
        counted: What each accuracy is of: an episode, the mean of a whole client, or a split of one.
    """

    digest: str
    seeds: tuple[int, ...]
    accuracies: tuple[float, ...]
    what: str = ""
    protocol: str = ""
    counted: str = "episodes"

    @classmethod
    def measured(cls, test: HeldOutEvaluation, workers: Workers, seed: int, accuracy: Accuracy) -> KeptEpisodes | None:
        """Keep an evaluation; None where it is not by episodes."""
        digest = test.episodes_digest(workers, accuracy.episodes)
        if digest is None:
            return None
        return cls(digest=digest, seeds=(seed,), accuracies=accuracy.values, counted=accuracy.each)

    @classmethod
    def of(cls, what: str, protocol: str, content: Mapping[str, Any]) -> KeptEpisodes | None:
        """Read episodes that `as_json` wrote; None for evaluations of earlier versions or without episodes."""
        if "episodes_digest" not in content:
            return None
        return cls(
            what=what,
            protocol=protocol,
            digest=str(content["episodes_digest"]),
            seeds=tuple(map(int, content["episode_seeds"])),
            accuracies=tuple(map(float, content["episodes"])),
            counted=str(content.get("counted", "episodes")),
        )

    def as_json(self) -> dict[str, object]:
        """Keys beside the mean that they make."""
        return {
            "episodes": list(self.accuracies),
            "episode_seeds": list(self.seeds),
            "episodes_digest": self.digest,
            **({} if self.counted == "episodes" else {"counted": self.counted}),
        }


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """Mean difference of two models on the same episodes.

    The interval is Student's for the mean of the differences (paired t): it holds what the draw of episodes can do to
    these two models, not what another seed of training could do.

    Attributes:
        mean: Of the first minus the second, in accuracies.
        ci95: Half the width of its 95% interval.
        episodes: How many.
        counted: What they are.
    """

    mean: float
    ci95: float
    episodes: int
    counted: str = "episodes"

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float], counted: str = "episodes") -> PairedDifference:
        """Compute the paired difference from accuracies on the same episodes, in the same order; at least 2.

        Raises:
            InputError: The numbers of episodes differ, or are below 2.
        """
        count = len(first)
        if count != len(second) or count < 2:
            raise InputError(f"cannot compare {count} with {len(second)} episodes: both need the same ones, at least 2")
        difference = np.asarray(first, dtype=np.float64) - np.asarray(second, dtype=np.float64)
        return cls(mean=float(difference.mean()), ci95=half_width(difference), episodes=count, counted=counted)

    @property
    def distinguishable(self) -> bool:
        """True if the confidence interval excludes zero."""
        return abs(self.mean) > self.ci95

    def __str__(self) -> str:
        low, high = 100 * (self.mean - self.ci95), 100 * (self.mean + self.ci95)
        words = "distinguishable" if self.distinguishable else "not distinguishable"
        return (
            f"{100 * self.mean:+.2f} points, 95% interval {low:+.2f} to {high:+.2f} (paired t, {self.episodes} "
            f"{self.counted}): {words} from zero"
        )


def digest_of_episode(episode: Episode) -> bytes:
    """Return the digest of an episode's images and labels."""
    digest = hashlib.blake2b(digest_size=16)
    for part in (episode.support_images, episode.support_labels, episode.query_images, episode.query_labels):
        digest.update(str(tuple(part.shape)).encode())
        digest.update(part.contiguous().numpy().tobytes())
    return digest.digest()
