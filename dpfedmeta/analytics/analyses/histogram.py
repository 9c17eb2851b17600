"""Histograms of how many classes and images clients hold: which task.ways and task.shots the federation can afford."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import Handing
from dpfedmeta.analytics.secure_counts import CountedAnalysis, planned_counts
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import FloatArray, IntArray

if TYPE_CHECKING:
    from dpfedmeta.analytics.public_context import Ground

# Public grids: images of a class; classes, and images, of a client (the first edge of each bin).
_OF_A_CLASS = (1, 2, 5, 10, 15, 20, 30, 50)
_OF_A_CLIENT = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_CLASSES = (0, 1, 2, 3, 5, 10, 20, 50)
# Episodes of one class teach nothing.
_FEWEST_WAYS = 2


@dataclass(frozen=True, kw_only=True)
class Histogram(CountedAnalysis):
    """Counts of clients: by images, and for each number of images by how many classes have so many.

    Attributes:
        share: Which share of the clients an episode shall fit.

    Guarantee:
        A client adds 1 to exactly one bin of each of 9 histograms (one of its images, and one of its classes for each
        of 8 numbers of images), so the sensitivity under adding or removing a client is 3.
    """

    share: float = 0.9
    default_epsilon: ClassVar[float] = 0.5
    asks: ClassVar[str] = "how many images it holds, of how many classes"

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise InputError(f"--share {self.share:g}: a share above 0 and below 1")

    @property
    def _rows(self) -> int:
        return len(_OF_A_CLASS)

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """Return the plan of a release in which a client adds one count to each histogram."""
        dimension = self._rows * len(_CLASSES) + len(_OF_A_CLIENT)
        return planned_counts(plan, dimension, math.sqrt(self._rows + 1))

    def vector(self, images: Sequence[int]) -> IntArray:
        """SECRET: a client's bins, from how many images it holds of each of its classes."""
        classes = np.zeros((self._rows, len(_CLASSES)), dtype=np.int64)
        held = np.asarray(images, dtype=np.int64)
        for row, fewest in enumerate(_OF_A_CLASS):
            classes[row, _bin(_CLASSES, int((held >= fewest).sum()))] = 1
        sizes = np.zeros(len(_OF_A_CLIENT), dtype=np.int64)
        sizes[_bin(_OF_A_CLIENT, int(held.sum()))] = 1
        return np.concatenate([classes.reshape(-1), sizes])

    def check(self, ground: Ground) -> None:
        """Check that clients hold images, and not names alone."""
        ground.check_holdings()

    def counted(self, handing: Handing) -> IntArray | None:
        """SECRET: a client's bins."""
        return self.vector(list(handing.held.holdings(handing.client).values()))

    def read(self, counts: FloatArray, deviation: float) -> dict[str, Any]:
        """Post-processing of noisy counts."""
        split = self._rows * len(_CLASSES)
        classes, sizes = counts[:split].reshape(self._rows, -1), counts[split:]
        # Every client is in each histogram once; where the noise is most of it, a bin has no more than all.
        total = max(float(classes.sum() + sizes.sum()) / (self._rows + 1), float(counts.max()), 1.0)
        return {
            "clients": total,
            "deviation": deviation,
            "share": self.share,
            "labels": dict(zip(map(str, _CLASSES), classes[0].tolist(), strict=True)),
            "images": dict(zip(map(str, _OF_A_CLIENT), sizes.tolist(), strict=True)),
            "affordable": [
                row
                for place, ways in enumerate(_CLASSES)
                if ways >= _FEWEST_WAYS and (row := self._affordable(classes[:, place:], ways, total, deviation))
            ],
        }

    def _affordable(self, able: FloatArray, ways: int, total: float, deviation: float) -> dict[str, Any] | None:
        """The most images of each of `ways` classes that surely the wanted share of the clients has.

        Args:
            able: [rows, bins] of so many classes or more.
            ways: How many.
            total: Clients, about.
            deviation: Of the noise on a count.
        """
        half = 1.96 * deviation * math.sqrt(able.shape[1]) / total
        for images, row in zip(reversed(_OF_A_CLASS), able[::-1], strict=True):
            share = float(row.sum()) / total
            if share - half >= self.share:
                return {"ways": ways, "images": images, "clients": min(share, 1.0), "ci95": half}
        return None

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """Return lines on the episodes that enough clients can form, and on both histograms."""
        lines = [
            f"what at least {found['share']:.0%} of the clients can form (task.ways; task.shots + task.queries):",
            *(
                f"  {row['ways']:3} ways: up to {row['images']} images of each class "
                f"({row['clients']:.1%} ± {100 * row['ci95']:.1f} of the clients)"
                for row in found["affordable"]
            ),
        ]
        if not found["affordable"]:
            lines.append("  none: lower --share, ask more clients, or allow more epsilon")
        return [*lines, f"classes of a client: {_shares(found, 'labels')}", f"images: {_shares(found, 'images')}"]


def _bin(first: Sequence[int], value: int) -> int:
    """The bin of a value, by the bins' first edges, the least of which is 0."""
    return int(np.searchsorted(first, value, side="right")) - 1


def _shares(found: Mapping[str, Any], name: str) -> str:
    """Share of the clients in each bin, by the numbers that the bin holds; bins not told from 0 are left out."""
    noise, total = 3.0 * found["deviation"], found["clients"]
    first = [int(edge) for edge in found[name]]
    bins = [
        *(str(low) if high - low == 1 else f"{low} to {high - 1}" for low, high in pairwise(first)),
        f"{first[-1]} or more",
    ]
    counts = zip(bins, found[name].values(), strict=True)
    seen = [f"{words} {count / total:.1%}" for words, count in counts if count > noise]
    return ", ".join(seen) or "too few clients for the noise"


MEMBER = Histogram
