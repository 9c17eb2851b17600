"""A cost that nobody planned for: households of up to so many clients, which come and go together. One file.

Members of a household may be in one cohort, so it moves a sum by their number of clip bounds at most. Nothing is
amplified: when its members come may not be independent. T rounds are k sqrt(T)/z-GDP.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.release_costs import ReleaseCost
from dpfedmeta.privacy.mechanisms import release_with

MEMBERS = 3


class HouseholdCost(ReleaseCost):
    def composed(self, phases, neighbours, delta, grids=()):
        return gaussian_epsilon(self.mu(phases, neighbours), delta), "gdp"

    def delta_at(self, phases, neighbours, epsilon):
        return float(gaussian_delta(epsilon, self.mu(phases, neighbours)))

    def mu(self, phases, neighbours):
        distance = MEMBERS * (1.0 if neighbours == "add-remove" else 2.0)
        return math.sqrt(sum(phase.rounds * phase.event.noise.mu(distance) ** 2 for phase in phases))

    def pair(self, phases, neighbours):
        return f"N({MEMBERS}, z^2) against N(0, z^2), of households"


@dataclass(frozen=True, kw_only=True)
class HouseholdNoise(GaussianNoise):
    cost: ClassVar = f"{__name__}:HouseholdCost"


@dataclass(frozen=True, kw_only=True)
class Households:
    plan: Any

    @staticmethod
    def noise(multiplier):
        return HouseholdNoise(multiplier=multiplier)

    def init(self, form):
        return {}

    def event(self, round_):
        return self.plan.at(round_)

    def release(self, round_, query, state, generator):
        event = self.event(round_)
        deviation = event.total_noise * query.sensitivity
        added = deviation * generator.normal(sum(value.numel() for value in query.value.values()))
        return release_with(query, added, noise=event.noise, deviation=deviation, denominator=event.cohort), state


class HalfCost(ReleaseCost):
    """Does not say what rounds cost."""

    pair = HouseholdCost.pair


@dataclass(frozen=True, kw_only=True)
class HalfNoise(GaussianNoise):
    cost: ClassVar = f"{__name__}:HalfCost"


class Half(Households):
    @staticmethod
    def noise(multiplier):
        return HalfNoise(multiplier=multiplier)
