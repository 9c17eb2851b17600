"""Sums of whole numbers under secure aggregation: what one client moves them by, and what noise its shares add up to.

Kairouz, Liu, Steinke 2021 (https://arxiv.org/abs/2102.06387), with every part of a message rounded on its own. Lengths
are in units of the grid that messages are rounded to.
"""

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import FloatArray

# How many deviations of the sum fit between its centre and the end of the numbers modulo 2^bits. Beyond it a coordinate
# wraps round, which costs accuracy and never privacy.
ROOM = 4.0
# The server's own noise is at least so large, so that it blends with the clients' (docs/guarantees.md).
LEAST_OWN_VARIANCE = 4.0
# What a release checks for and the accountant counts with: the difference of two large floats is not exact.
SURE_OWN_VARIANCE = LEAST_OWN_VARIANCE / 2
# More bits gain nothing: at 16 the rounding costs half a percent.
BITS = range(8, 21)
# Vectors of whole numbers are added in steps that are as fine as noise in small shares needs.
COUNT_BITS = range(8, 32)


@dataclass(frozen=True, kw_only=True)
class WholeSum:
    """Public constants of the sum of one round.

    Attributes:
        bits: b: the server sees the sum modulo 2^b.
        dimension: Of a rotated message: a power of two.
        parts: M: vectors that a message is the sum of, each clipped and rounded on its own; no record is in two.
        units: c: the clip bound of a part over the width of the grid.
        deviation: sigma: of the noise that the server cannot know, if as few clients survive as may.
        least: Smallest cohort that is added up.
        most: Largest one.
        dropout: Share of an invited cohort that may be missing.
        unsure: Clients whose share of the noise is not counted: those that collude, and those that leave it out.
        exact: Whether vectors are whole multiples of the grid to begin with (counts): nothing is rotated or rounded.
    """

    bits: int
    dimension: int
    parts: int
    units: float
    deviation: float
    least: int
    most: int
    dropout: float
    unsure: int
    exact: bool = False

    def __post_init__(self) -> None:
        bits = COUNT_BITS if self.exact else BITS
        if self.bits not in bits:
            raise RefusedPlan(
                f"aggregation.bits = {self.bits}: expected a whole number from {bits.start} to {bits.stop - 1}"
            )
        if self.dimension < 1 or (not self.exact and self.dimension & (self.dimension - 1)):
            raise RefusedPlan(f"dimension = {self.dimension}: expected a power of two, the length of a rotated message")
        if not (0 < self.units < math.inf and 0 < self.deviation < math.inf):
            raise RefusedPlan(
                f"aggregation.bits = {self.bits}: too few for a sum of {self.most} clients with noise of deviation "
                f"{self.deviation:.3g}; give more bits"
            )

    @property
    def sensitivity(self) -> float:
        """Delta: largest length of a rounded part; a record that is zeroed out moves the sum by no more."""
        if self.exact:
            return self.units
        return rounded_length(self.units, self.dimension)

    def as_json(self) -> dict[str, Any]:
        """Its constants; what came later stands there only where it says something."""
        content = asdict(self)
        if not self.exact:
            del content["exact"]
        return content

    @property
    def growth(self) -> float:
        """Largest length of a rounded part over its clip bound."""
        return self.sensitivity / self.units

    @property
    def of_a_client(self) -> float:
        """M Delta: how far an honest client that comes or goes moves the sum."""
        return self.parts * self.sensitivity

    def fewest(self, invited: int) -> int:
        """V: with fewer survivors of an invited cohort nothing is unmasked."""
        # A product that is a whole number may come out a little larger in floats.
        return math.ceil((1.0 - self.dropout) * invited - 1e-9)

    def share(self, invited: int) -> float:
        """s^2: variance of the noise that each client of an invited cohort adds.

        Raises:
            ValueError: So few clients cannot make the noise.
        """
        sure = self.fewest(invited) - self.unsure
        if sure < 1:
            raise ValueError(
                f"{invited} invited clients cannot make the noise: after dropouts, colluding and hostile clients none "
                "is left whose share counts"
            )
        return self.deviation**2 / sure

    def clients_noise(self, invited: int) -> float:
        """Variance of the noise of all of an invited cohort."""
        return invited * self.share(invited)

    @property
    def total(self) -> float:
        """Variance of all noise of what is released, whoever took part: the server tops it up."""
        sizes, shares = _shares(self)
        return float((sizes * shares).max()) + LEAST_OWN_VARIANCE

    @property
    def largest_share(self) -> float:
        """The largest s^2."""
        return float(_shares(self)[1].max())

    @property
    def smallest_share(self) -> float:
        """The smallest s^2."""
        return float(_shares(self)[1].min())


@lru_cache(maxsize=256)
def _shares(whole: WholeSum) -> tuple[FloatArray, FloatArray]:
    """(n, s^2) of every size of a cohort."""
    sizes = range(whole.least, whole.most + 1)
    return np.array(sizes, dtype=float), np.array([whole.share(size) for size in sizes])


def rounded_length(units: float, dimension: int) -> float:
    """Delta: a vector of length `units`, rounded to whole numbers at random until it is no longer than this.

    Kairouz, Liu, Steinke 2021, with beta = exp(-1/2): a try succeeds with probability 1 - beta at least. Any vector can
    be rounded to a length of units + sqrt(d).
    """
    squared = units**2 + dimension / 4.0 + units + math.sqrt(dimension) / 2.0
    return min(units + math.sqrt(dimension), math.sqrt(squared))


def units_of(bits: int, *, dimension: int, parts: int, clients: int, noise: float, surplus: float) -> float:
    """c: as fine a grid as 2^bits numbers allow where all clients say the same; 0 where none does.

    Args:
        bits: b.
        dimension: Of a rotated message.
        parts: M.
        clients: Of the largest cohort.
        noise: z: sigma over M Delta.
        surplus: All noise of that cohort over sigma, as variances.
    """
    allowed = (2.0**bits / (2.0 * ROOM)) ** 2 - parts * clients / 4.0

    def spread(units: float) -> float:
        signal = (parts * units * clients) ** 2 / dimension
        return signal + surplus * (noise * parts * rounded_length(units, dimension)) ** 2

    if spread(0.0) >= allowed:
        return 0.0
    low, high = 0.0, 1.0
    while spread(high) < allowed:
        low, high = high, 2.0 * high
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if spread(middle) < allowed else (low, middle)
    return low
