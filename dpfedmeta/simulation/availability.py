"""Invited clients that answer: drop-out, stragglers, and clients whose own ledger declines; no data decide."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from scipy.special import ndtr

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger, RecordBudget
from dpfedmeta.accounting.ledger.participation_ledger import SpacedLedger
from dpfedmeta.accounting.participation_cost import Spending
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


class Willing(Protocol):
    """Clients that may decline."""

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that do not, each of which wrote it down before it answers."""
        ...


def _those(folder: Path, cohort: Cohort, accepts: Callable[[Path, Cohort], bool]) -> Cohort:
    folder.mkdir(mode=0o700, exist_ok=True)
    stay = [client for client in cohort.clients.tolist() if accepts(folder / f"{client}.jsonl", cohort)]
    return replace(cohort, clients=np.asarray(stay, dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class SpacedClients:
    """Ledgers of the rounds that clients joined: a file for each client that was ever drawn.

    Attributes:
        folder: Folder of the ledgers; as secret as the list of participants.
        spacing: Limit on participations that every client enforces.
    """

    folder: Path
    spacing: Spacing

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that are not asked too soon, or too often.

        Guarantee:
            Whether a client declines depends on its own participations alone.
        """
        return _those(self.folder, cohort, self._accepts)

    def _accepts(self, path: Path, cohort: Cohort) -> bool:
        ledger = SpacedLedger(path, self.spacing)
        if ledger.holds(cohort.round, cohort.again):
            return True
        if not ledger.accepts(cohort.round):
            return False
        ledger.join(cohort.round, cohort.again)
        return True


@dataclass(frozen=True, kw_only=True)
class ClientLedgers:
    """Ledgers of privacy spent by clients: a file for each client that was ever drawn.

    Attributes:
        folder: Folder of the ledgers; as secret as the list of participants.
        budget: Budget towards the server that every client allows each of its records.
        each: Privacy loss of a record in one participation.
    """

    folder: Path
    budget: RecordBudget
    each: Spending

    def willing(self, cohort: Cohort) -> Cohort:
        """The clients that do not decline, each charged on its own disk before it answers.

        Guarantee:
            Whether a client declines depends on its own participations alone, never on data, so under Poisson sampling
            it acts like a participation cap. Fixed-size sampling with client ledgers is refused.
        """
        return _those(self.folder, cohort, self._accepts)

    def _accepts(self, path: Path, cohort: Cohort) -> bool:
        ledger = ClientLedger(path, self.budget)
        if ledger.holds(cohort.round, cohort.again):
            return True
        if not ledger.accepts(self.each):
            return False
        ledger.charge(cohort.round, self.each, cohort.again)
        return True
