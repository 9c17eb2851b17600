"""A mechanism that nobody planned for, with a state: a public coin chooses between two sizes of noise. One file.

Everybody sees the coin, so an observer's divergence is the mean of those of the two.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.privacy.mechanisms import NoMechanism, post_process, release_with


@dataclass(frozen=True, kw_only=True)
class CoinNoise:
    small: float
    large: float
    steady: ClassVar[bool] = False

    def each(self):
        return GaussianNoise(multiplier=self.small), GaussianNoise(multiplier=self.large)

    def profile(self, epsilons, distance):
        return sum(noise.profile(epsilons, distance) for noise in self.each()) / 2

    def largest_loss(self, distance):
        return max(noise.largest_loss(distance) for noise in self.each())

    def mu(self, distance):
        # The smaller noise covers both.
        return self.each()[0].mu(distance)

    def replaced(self, rate, grid):
        return None

    def dp_event(self, distance):
        return None

    @property
    def words(self):
        return f"Gaussian noise of z = {self.small:.4g} or {self.large:.4g}, by a public coin"


@dataclass(frozen=True, kw_only=True)
class Coin:
    plan: Any
    claimed: float = 1.0

    @staticmethod
    def noise(multiplier):
        return CoinNoise(small=multiplier, large=2 * multiplier)

    def init(self, form):
        return {"flips": torch.zeros(2, dtype=torch.int64)}

    def release(self, round_, query, state, generator):
        event = self.event(round_)
        chosen = int(generator.binomial(1, 0.5))
        noise = event.noise.each()[chosen]
        deviation = noise.multiplier * query.sensitivity
        size = sum(value.numel() for value in query.value.values())
        released = release_with(
            query,
            deviation * generator.normal(size),
            noise=event.noise,
            deviation=deviation,
            denominator=event.cohort,
        )
        flips = state["flips"].clone()
        flips[chosen] += 1
        return released, {"flips": flips}

    def event(self, round_):
        return self.plan.at(round_)


class Cheat(Coin):
    """Adds less noise than the plan counts with, and says so."""

    def event(self, round_):
        from dataclasses import replace

        return replace(self.plan.at(round_), noise=GaussianNoise(multiplier=0.1))


class Costless:
    """Says nothing of what it costs."""

    def __init__(self, plan):
        pass


class Noiseless(Coin):
    """Charges noise, and releases without."""

    def release(self, round_, query, state, generator):
        return NoMechanism(denominator=self.event(round_).cohort).release(query, generator), state


class Less(Coin):
    """States a hundredth of the deviation."""

    share = 0.01

    def release(self, round_, query, state, generator):
        event = self.event(round_)
        deviation = self.share * (event.total_noise or 1.0) * query.sensitivity
        added = deviation * generator.normal(sum(value.numel() for value in query.value.values()))
        released = release_with(query, added, noise=event.noise, deviation=deviation, denominator=event.cohort)
        return released, state


class LessGaussian(Less):
    """Likewise, of noise whose deviation the plan knows."""

    @staticmethod
    def noise(multiplier):
        return GaussianNoise(multiplier=multiplier)


class Nought(Less):
    """States that there is none."""

    share = 0.0


class Often(LessGaussian):
    """Releases the sum three times for one charge; the mean of them has less noise."""

    share = 1.0

    def release(self, round_, query, state, generator):
        each = [super(Often, self).release(round_, query, state, generator)[0] for _ in range(3)]

        def mean(*values):
            return {name: sum(value[name] for value in values) / len(values) for name in values[0]}

        return post_process(mean, each, each[0].noise_deviation), state


class Another(LessGaussian):
    """Releases with noise that it never charged."""

    share = 1.0

    def event(self, round_):
        return self.plan.at(round_)

    def release(self, round_, query, state, generator):
        event = self.event(round_)
        size = sum(value.numel() for value in query.value.values())
        released = release_with(
            query,
            generator.normal(size),
            noise=GaussianNoise(multiplier=0.01),
            deviation=event.total_noise * query.sensitivity,
            denominator=event.cohort,
        )
        return released, state


class Bare(Coin):
    """Releases nothing that left a mechanism."""

    def release(self, round_, query, state, generator):
        return dict(query.value), state
