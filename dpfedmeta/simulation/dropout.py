"""Which invited clients answer in time: drop-out and stragglers, drawn without a look at anybody's data."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.special import ndtr

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.random.random_sources import FloatArray, IntArray, Purpose, SecretSource
from dpfedmeta.privacy.samplers import Cohort

Pattern = Literal["independent", "correlated", "diurnal"]

# Clients that share a fate under `correlated`, and time zones and rounds of a day under `diurnal`.
REGIONS = 10
ZONES = 24
ROUNDS_A_DAY = 24


@dataclass(frozen=True, kw_only=True)
class Availability:
    """Model of invited clients that do not answer, or answer too late.

    Attributes:
        dropout: Share of invited clients that never answer, on average.
        pattern: independent: each client by its own coin; correlated: whole regions at a time; diurnal: by the local
            time of day, so that the share swings around its average.
        spread: Standard deviation of the logarithm of a client's time to answer, whose median is 1.
        timeout: The round ends after this time, in medians; later answers are left out. None: the round waits.

    Guarantee:
        Which clients answer depends on client numbers, the round and the server's secret randomness, never on data. So
        a missing client counts as a message of 0: noise and denominator stay, every cell stays an upper bound, and
        the number of missing clients is as secret as the cohort.
    """

    dropout: float = 0.0
    pattern: Pattern = "independent"
    spread: float = 0.0
    timeout: float | None = None

    @classmethod
    def of(cls, settings: Settings) -> Availability:
        """Build the availability from the settings."""
        population = settings.population
        return cls(
            dropout=population.dropout,
            pattern=population.availability,
            spread=population.latency_spread,
            timeout=settings.server.timeout,
        )

    def answering(self, invited: Cohort, source: SecretSource) -> Cohort:
        """SECRET: those who answer in time."""
        if not self.dropout and self.timeout is None:
            return invited
        draws = source.generator(Purpose.AVAILABILITY, invited.round).normal(2 * len(invited.clients) + REGIONS)
        regions, coins, times = np.split(draws, [REGIONS, REGIONS + len(invited.clients)])
        fate = regions[invited.clients % REGIONS] if self.pattern == "correlated" else coins
        there = ndtr(fate) >= self._absent(invited.clients, invited.round)
        if self.timeout is not None:
            there &= np.exp(self.spread * times) <= self.timeout
        return replace(invited, clients=invited.clients[there])

    def _absent(self, clients: IntArray, round_: int) -> FloatArray:
        """Return the probability that each client is away."""
        if self.pattern != "diurnal":
            return np.full(len(clients), self.dropout)
        swing = min(self.dropout, 1.0 - self.dropout)
        phase = 2.0 * math.pi * (round_ / ROUNDS_A_DAY + (clients % ZONES) / ZONES)
        away: FloatArray = self.dropout + swing * np.cos(phase)
        return away
