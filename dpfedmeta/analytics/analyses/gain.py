"""Gain of personalised adaptation for the clients themselves: mean accuracy before and after, with an interval."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import Handing, PendingRelease
from dpfedmeta.analytics.secure_counts import CountedAnalysis, planned_counts
from dpfedmeta.core.random.random_sources import FloatArray, IntArray

if TYPE_CHECKING:
    from dpfedmeta.analytics.client_answers import Held
    from dpfedmeta.analytics.public_context import Ground

# An accuracy is a whole number of thousandths.
_PARTS = 1000


@dataclass(frozen=True, kw_only=True)
class Gain(CountedAnalysis):
    """Four numbers of a client: that it answered, its accuracy after and before, their difference squared.

    Attributes:
        run: Folder of the run whose model is adapted.

    Guarantee:
        With both accuracies a and b clipped to [0, 1] the numbers (1, a, b, (a-b)^2) have length sqrt(3) at most: for
        fixed b the squared length 1 + a^2 + b^2 + (a-b)^4 is convex in a and the other way round, so it is largest in a
        corner. They are rounded to thousandths, the last one downwards. Sensitivity sqrt(3) under adding or removing a
        client.
    """

    run: str
    default_epsilon: ClassVar[float] = 1.0
    asks: ClassVar[str] = "the accuracy of a model on its own images, before and after adapting it to them"

    def planned(self, plan: PrivacyPlan) -> PrivacyPlan:
        """Four numbers in thousandths."""
        return planned_counts(plan, 4, _PARTS * math.sqrt(3.0))

    def vector(self, before: float, after: float) -> IntArray:
        """SECRET: a client's four numbers."""
        a, b = (round(_PARTS * min(max(value, 0.0), 1.0)) for value in (after, before))
        return np.array([_PARTS, a, b, (a - b) ** 2 // _PARTS], dtype=np.int64)

    def check(self, ground: Ground) -> None:
        """Check that the run has a model of this network."""
        _ = ground.model

    def told(self, asking: PendingRelease, ground: Ground) -> bytes:
        """The model."""
        return ground.model

    def check_told(self, told: bytes, plan: PrivacyPlan, held: Held) -> None:
        """Check that clients are told a model of the network."""
        held.check_model(told)

    def counted(self, handing: Handing) -> IntArray | None:
        """SECRET: a client's numbers."""
        found = handing.held.accuracies(handing.client, handing.told)
        return None if found is None else self.vector(*found)

    def read(self, counts: FloatArray, deviation: float) -> dict[str, Any]:
        """Post-processing of the noisy sums of (1, a, b, (a-b)^2), in thousandths.

        The interval holds for clients like these: it adds the variance between clients over their number to that of the
        noise of both sums of a ratio, and half a thousandth of each accuracy for their rounding.
        """
        sums, deviation = counts / _PARTS, deviation / _PARTS
        clients = max(float(sums[0]), 1.0)
        after, before = float(sums[1]) / clients, float(sums[2]) / clients
        gain = after - before
        spread = max(float(sums[3]) / clients - gain**2, 0.0)
        noise = deviation**2 * (2.0 + gain**2) / clients**2
        return {
            "clients": clients,
            "deviation": deviation,
            "before": before,
            "after": after,
            "gain": gain,
            "ci95": 1.96 * math.sqrt(spread / clients + noise) + 1.0 / _PARTS,
        }

    def words(self, found: Mapping[str, Any]) -> list[str]:
        """The gain, with its interval."""
        gain, half = (100.0 * found[name] for name in ("gain", "ci95"))
        lines = [
            f"adaptation to their own images brings the clients {gain:+.1f} ± {half:.1f} points of accuracy (95%): "
            f"from {found['before']:.1%} to {found['after']:.1%}, about {found['clients']:,.0f} clients"
        ]
        if half > abs(gain):
            lines.append("the interval holds zero: ask more clients (--cohort), or allow more epsilon")
        return lines


MEMBER = Gain
