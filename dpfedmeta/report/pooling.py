"""Several runs that differ only by their seed: one mean, one interval."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import t


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A mean with the half-width of its 95% interval.

    Attributes:
        mean: The mean.
        ci95: Half the width of its interval.
        runs: How many runs it is from. With one run the interval is over episodes alone.
    """

    mean: float
    ci95: float
    runs: int = 1

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Measured:
        """Read the value in the form of summary.json."""
        return cls(mean=float(value["mean"]), ci95=float(value["ci95"]))

    def as_json(self) -> dict[str, float | int]:
        """The form of summary.json, with the number of runs."""
        return {"mean": self.mean, "ci95": self.ci95, "runs": self.runs}


def pooled(values: Sequence[Measured]) -> Measured:
    """Mean over seeds.

    The spread between seeds holds both the seeds' own and that of the episodes, so Student's interval on the runs'
    means covers both. A few seeds may agree by chance: the interval is never narrower than episodes alone make it.
    """
    count = len(values)
    mean = sum(value.mean for value in values) / count
    episodes = math.sqrt(sum(value.ci95**2 for value in values)) / count
    if count == 1:
        return Measured(mean=mean, ci95=episodes)
    variance = sum((value.mean - mean) ** 2 for value in values) / (count - 1)
    seeds = float(t.ppf(0.975, count - 1)) * math.sqrt(variance / count)
    return Measured(mean=mean, ci95=max(seeds, episodes), runs=count)
