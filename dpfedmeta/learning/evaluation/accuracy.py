"""Interface and result type shared by all evaluations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dpfedmeta.core.params import Params
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.spec import NetworkSpec


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """Mean accuracy over episodes, or over images where there is one model for all.

    Attributes:
        mean: In [0, 1].
        ci95: Half the width of the 95% interval of the mean (normal approximation).
        episodes: How many.
        counted: What was counted.
        values: Of each, where they are at hand.
    """

    mean: float
    ci95: float
    episodes: int
    counted: str = "episodes"
    values: tuple[float, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, values: Sequence[float], counted: str = "episodes") -> Accuracy:
        """Compute the mean accuracy from the accuracies of at least 2 episodes or images."""
        count = len(values)
        deviation = float(np.std(values, ddof=1))
        return cls(
            mean=float(np.mean(values)),
            ci95=1.96 * deviation / math.sqrt(count),
            episodes=count,
            counted=counted,
            values=tuple(values),
        )

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Accuracy:
        """Read an accuracy that `as_json` wrote."""
        counted = "episodes" if "episodes" in found else "images"
        return cls(mean=found["mean"], ci95=found["ci95"], episodes=found[counted], counted=counted)

    def as_json(self, **more: object) -> dict[str, object]:
        """The form of summary.json."""
        return {"mean": self.mean, "ci95": self.ci95, self.counted: self.episodes, **more}

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}% ± {100 * self.ci95:.1f}"


class HeldOutEvaluation(Protocol):
    """Evaluation of a model on public data: by few-shot episodes, or as one classifier for all."""

    @property
    def protocol(self) -> str:
        """Evaluation protocol in words, stating the conditions of the accuracies."""
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
        """Compute the accuracies of the trained model and of the baselines, by their names in summary.json."""
        ...
