"""Randomness as data: one generator per (seed, purpose, round or client).

Two families never mix. *Public* generators are keyed by ``run.seed`` and drive data, population and
initial weights. *Secret* generators drive noise and cohorts (privacy rule 5); they are keyed by a seed that
nobody wrote down, or read the operating system directly.
"""

from __future__ import annotations

import os
import random
import secrets
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.stats import binom

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


class Purpose(IntEnum):
    """What a generator is for; part of its key, so that two purposes never share a stream."""

    COHORT = 1
    SERVER_NOISE = 2
    SUPPORT_NOISE = 3
    QUERY_NOISE = 4
    CLIENT_DATA = 5
    WEIGHTS = 6
    EVALUATION = 7
    TASK_DATA = 8
    AVAILABILITY = 9
    LOCAL_BATCHES = 10
    MESSAGE_NOISE = 11


def public_generator(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """A reproducible generator for things that are public in a simulation: data, population, weights."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, int(purpose), *key])))


class SecretGenerator(Protocol):
    """One stream of secret randomness."""

    def normal(self, size: int) -> FloatArray:
        """`size` independent standard normal values."""
        ...

    def binomial(self, trials: int, probability: float) -> int:
        """One binomial draw."""
        ...

    def sample(self, population: int, size: int) -> IntArray:
        """`size` distinct integers of range(population), uniformly, in random order."""
        ...


class SecretSource(Protocol):
    """Hands out secret generators by key. Picklable, so that clients can run in worker processes."""

    @property
    def reproducible(self) -> bool:
        """Whether the same key gives the same stream again."""
        ...

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """The generator of (purpose, key)."""
        ...

    def again(self, key: tuple[int, ...]) -> SecretSource:
        """The source of a further attempt at a round: it shares no stream with another attempt. (): the first one."""
        ...


@dataclass(frozen=True)
class _KeyedGenerator:
    generator_: np.random.Generator

    def normal(self, size: int) -> FloatArray:
        return self.generator_.standard_normal(size)

    def binomial(self, trials: int, probability: float) -> int:
        return int(self.generator_.binomial(trials, probability))

    def sample(self, population: int, size: int) -> IntArray:
        return self.generator_.choice(population, size=size, replace=False, shuffle=True).astype(np.int64)


@dataclass(frozen=True)
class KeyedSource:
    """Secret generators keyed by one secret seed: a round that is done again gets the identical noise.

    The streams come from Philox with a 128-bit key; good statistics, not a cryptographic generator.
    Whoever knows the seed can subtract the noise. ``--secure-rng`` (OperatingSystemSource) removes the seed.
    """

    seed: int
    attempt: tuple[int, ...] = ()

    @property
    def reproducible(self) -> bool:
        """Always true."""
        return True

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """The generator of (seed, purpose, key)."""
        sequence = np.random.SeedSequence([self.seed, int(purpose), *key, *self.attempt])
        return _KeyedGenerator(np.random.Generator(np.random.Philox(sequence)))

    def again(self, key: tuple[int, ...]) -> KeyedSource:
        """The same seed with a longer key."""
        return replace(self, attempt=key)


class _OperatingSystemGenerator:
    """Draws straight from the operating system's cryptographic generator."""

    def normal(self, size: int) -> FloatArray:
        # Box-Muller on 53-bit uniforms; (0, 1] inside the logarithm so that it is finite.
        pairs = (size + 1) // 2
        words = np.frombuffer(os.urandom(16 * pairs), dtype=np.uint64) >> np.uint64(11)
        uniform = words.astype(np.float64) * 2.0**-53
        radius = np.sqrt(-2.0 * np.log1p(-uniform[:pairs]))
        angle = 2.0 * np.pi * uniform[pairs:]
        return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:size]

    def binomial(self, trials: int, probability: float) -> int:
        # ppf(0) is -1 by scipy's convention.
        return max(0, int(binom.ppf(random.SystemRandom().random(), trials, probability)))

    def sample(self, population: int, size: int) -> IntArray:
        return np.asarray(random.SystemRandom().sample(range(population), size), dtype=np.int64)


@dataclass(frozen=True)
class OperatingSystemSource:
    """Noise and cohorts from the operating system: nothing to keep secret, nothing to reproduce."""

    @property
    def reproducible(self) -> bool:
        """Always false: a round that is done again is a new release and is charged again."""
        return False

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """A fresh generator; the key does not matter."""
        return _OperatingSystemGenerator()

    def again(self, key: tuple[int, ...]) -> OperatingSystemSource:
        """Every attempt is fresh."""
        return self


def draw_secret_seed() -> int:
    """A 128-bit seed from the operating system."""
    return secrets.randbits(128)
