"""What every evaluation returns, and what it can be asked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dpfedmeta.meta.adaptation import Adaptation
from dpfedmeta.models.spec import NetworkSpec
from dpfedmeta.parameters import Params
from dpfedmeta.workers import Workers


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
        """From the accuracy of each episode or image; at least 2."""
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
        """What `as_json` wrote."""
        counted = "episodes" if "episodes" in found else "images"
        return cls(mean=found["mean"], ci95=found["ci95"], episodes=found[counted], counted=counted)

    def as_json(self, **more: object) -> dict[str, object]:
        """The form of summary.json."""
        return {"mean": self.mean, "ci95": self.ci95, self.counted: self.episodes, **more}

    def __str__(self) -> str:
        return f"{100 * self.mean:.1f}% ± {100 * self.ci95:.1f}"


class HeldOutEvaluation(Protocol):
    """How a model is judged on public data: by few-shot episodes, or as one classifier for all."""

    @property
    def protocol(self) -> str:
        """What the accuracies mean."""
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
        """Of one model."""
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
        """Of the trained model and of what it competes with, by their names in summary.json."""
        ...
