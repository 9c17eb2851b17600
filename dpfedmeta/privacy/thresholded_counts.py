"""Names that nobody listed: their counts with noise, and only those above a threshold (Korolova et al. 2009)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from scipy.special import ndtr

from dpfedmeta.accounting.events.noise_cost import ThresholdedNoise
from dpfedmeta.core.random.keyed_streams import for_message
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.mechanisms import Released, post_process, release_with
from dpfedmeta.privacy.units import Bounded, ClientUnit, message_of

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params

_COUNTS = "counts"


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """Gaussian noise on each count, rounded to a whole number, and a threshold.

    Attributes:
        noise: z, and p.
        names: Names that one client says at most.
        alone: Of p, what the names of one client may take; the rest is for other failures of the release.

    Guarantee:
        Counts move by sqrt(names) in L2 when a client comes or goes, so on names that others hold too this is the
        Gaussian mechanism of z; rounding and the threshold are post-processing. A name that one client alone holds
        counts 1, and reaches the threshold with probability alone/names at most.
    """

    noise: ThresholdedNoise
    names: int
    alone: float

    def __post_init__(self) -> None:
        if not 0 < self.alone <= self.noise.missed:
            raise ValueError(f"alone = {self.alone}: expected above 0 and no more than the plan's {self.noise.missed}")

    @property
    def deviation(self) -> float:
        """Deviation of the noise on one count."""
        return self.noise.multiplier * math.sqrt(self.names)

    @property
    def lowest(self) -> int:
        """The threshold: the smallest whole number that a count of 1 reaches seldom enough."""
        lowest = 2
        while self.names * float(ndtr(-(lowest - 1.5) / self.deviation)) > self.alone:
            lowest += 1
        return lowest

    def release(self, counts: Mapping[str, int], generator: SecretGenerator) -> Released[ClientUnit, dict[str, int]]:
        """The names whose noisy count reaches the threshold, with it."""
        names, lowest = sorted(counts), self.lowest
        query: Bounded[ClientUnit, Params] = Bounded(
            value=cast("Params", {_COUNTS: np.array([float(counts[name]) for name in names])}),
            sensitivity=math.sqrt(self.names),
        )
        own = for_message(generator, lambda: (*message_of(query), *(name.encode() for name in names)))
        added = np.rint(self.deviation * own.normal(len(names)))
        noisy = release_with(query, added, noise=self.noise, deviation=self.deviation, denominator=1.0)

        def above(value: Params) -> dict[str, int]:
            found = [int(count) for count in value[_COUNTS].tolist()]
            return {name: count for name, count in zip(names, found, strict=True) if count >= lowest}

        return post_process(above, [noisy], self.deviation)
