"""A quantile of the norms of clients' messages before training: where the clip bound may begin.

Counts on a public geometric grid, in one round. The rule of Andrew et al. 2021 (https://arxiv.org/abs/1905.03871) needs
a round and a share of epsilon for each step; docs/analytics.md compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import Handing
from dpfedmeta.analytics.secure_counts import CountedAnalysis, planned_counts
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import FloatArray, IntArray

if TYPE_CHECKING:
    from dpfedmeta.analytics.public_context import Ground

_TOO_NOISY = 0.25


@dataclass(frozen=True, kw_only=True)
class Quantile(CountedAnalysis):
    """Which quantile, on which grid.

    Attributes:
        quantile: Share of clients whose norm shall lie below the answer.
        lowest: First edge of the grid; smaller norms are counted together.
        highest: Last edge; larger norms likewise.
        bins: Between the two.

    Guarantee:
        A client adds 1 to one count at most, so the sensitivity is 1 under adding or removing a client.
    """

    quantile: float = 0.5
    lowest: float = 1e-3
    highest: float = 1e3
    bins: int = 60
    default_epsilon: ClassVar[float] = 0.1
    asks: ClassVar[str] = "the length of the message that would begin the training"

    def __post_init__(self) -> None:
        if not 0 < self.quantile < 1:
            raise InputError(f"--quantile {self.quantile:g}: a share above 0 and below 1")
        if not (0 < self.lowest < self.highest < math.inf):
            raise InputError(f"--lowest {self.lowest:g} --highest {self.highest:g}: 0 < lowest < highest")
        if not 2 <= self.bins <= 1000:
            raise InputError(f"--bins {self.bins}: from 2 to 1000")

    @property
    def edges(self) -> FloatArray:
        """[bins + 1], geometric."""
        return np.asarray(np.geomspace(self.lowest, self.highest, self.bins + 1))

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """Return the plan of a release in which a client adds one count."""
        return planned_counts(plan, self.bins + 2, 1.0)

    def vector(self, norm: float) -> IntArray:
        """SECRET: the one bin of a client's norm; no bin where it is not finite."""
        counts = np.zeros(self.bins + 2, dtype=np.int64)
        if math.isfinite(norm):
            counts[int(np.searchsorted(self.edges, norm, side="right"))] = 1
        return counts

    def check(self, ground: Ground) -> None:
        """Check that clients form exact messages, whose norms can be counted."""
        ground.check_messages()

    def counted(self, handing: Handing) -> IntArray | None:
        """SECRET: the bin of a client's norm."""
        norm = handing.held.message_norm(handing.client)
        return None if norm is None else self.vector(norm)

    def read(self, counts: FloatArray, deviation: float) -> dict[str, Any]:
        """Post-processing of noisy counts [bins + 2].

        The distribution function is the best rising one (least squares) through the sums of the counts, and is
        inverted between the edges. The range allows for 1.96 deviations of the noise and of who was drawn. What the
        sums do not reach lies at the last edge, where more norms are larger than the noise explains; `beyond` says
        that so much of the range lies there too.
        """
        sums = np.cumsum(counts)[:-1]
        total, rising = max(float(counts.sum()), 1.0), isotonic(sums)
        wanted = self.quantile * total
        place = int(np.clip(np.searchsorted(rising, wanted), 1, self.bins))
        spread = math.sqrt(deviation**2 * (place + 1) + total * self.quantile * (1.0 - self.quantile))
        larger = bool(counts[-1] > 1.96 * deviation)
        low, middle, high = (
            self._inverse(rising, level, larger) for level in (wanted - 1.96 * spread, wanted, wanted + 1.96 * spread)
        )
        return {
            "bound": middle,
            "low": low,
            "high": high,
            "quantile": self.quantile,
            "beyond": larger and bool(wanted - 1.96 * spread > rising[-1]),
            "too_noisy": bool(1.96 * deviation * math.sqrt(place + 1) > _TOO_NOISY * total),
            "edges": self.edges.tolist(),
            "counts": counts.tolist(),
        }

    def _inverse(self, rising: FloatArray, level: float, larger: bool) -> float:
        """Return where the distribution function passes a level, linear in the logarithm between two edges."""
        logs = np.log(self.edges)
        # The first place of each height, so that a flat part is left at its beginning.
        steps, first = np.unique(rising, return_index=True)
        return float(np.exp(np.interp(level, steps, logs[first], right=logs[-1] if larger else None)))

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """The bound, and what to do with it."""
        if found.get("beyond") and not found["too_noisy"]:  # summaries of before 0.3.1 know none
            return [
                f"fewer than {found['quantile']:.0%} of the clients' messages are no longer than {found['bound']:.4g} "
                "(with 95% confidence), where the grid ends: ask again with a larger --highest"
            ]
        lines = [
            f"{found['quantile']:.0%} of the clients' messages are no longer than {found['bound']:.4g} "
            f"(between {found['low']:.4g} and {found['high']:.4g} with 95% confidence)"
        ]
        if found["too_noisy"]:
            lines.append("the noise is large against the counts: ask more clients (--cohort), or allow more epsilon")
        else:
            lines.append(f"as C_0 of training: --clip.initial {found['bound']:.4g}")
        return lines


def isotonic(values: FloatArray) -> FloatArray:
    """The rising sequence that is closest to `values` in least squares (pool adjacent violators)."""
    means: list[float] = []
    sizes: list[int] = []
    for value in values.tolist():
        means.append(value)
        sizes.append(1)
        while len(means) > 1 and means[-2] > means[-1]:
            size = sizes[-2] + sizes[-1]
            means[-2:] = [(means[-2] * sizes[-2] + means[-1] * sizes[-1]) / size]
            sizes[-2:] = [size]
    return np.repeat(means, sizes)


MEMBER = Quantile
