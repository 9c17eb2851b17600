"""Request of an audit: its subject and its size; a request that can prove nothing is refused."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.auditing.findings import AUDITS, AuditName
from dpfedmeta.auditing.reduced_plan import audited_settings
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.policy_from_settings import bounds_clients

if TYPE_CHECKING:
    from dpfedmeta.planning.run_plan import Plan

OF_MANY_RUNS: tuple[AuditName, ...] = ("distinguish", "many-runs")
MOST_RUNS = 10**8
# Fewer guesses than this reject nothing at 5% over all shares that are guessed (estimators.one_run).
FEWEST_GUESSES = 8
_SEED_BITS = 63


def fresh_seed() -> int:
    """Draw the seed of an audit from the operating system."""
    return secrets.randbits(_SEED_BITS)


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """Request of an audit: its subject, its methods and its size.

    Attributes:
        algo: As for training.
        dataset: As for training.
        config: As for training; of a run its config.yaml.
        given: Settings that were typed.
        audits: Audits that are made.
        runs: Number of runs of the audits of many runs.
        canaries: Number of canaries of the audits of one run.
        confidence: Confidence of lower bounds.
        units: Cells of these units are looked at.
        observers: And of these observers.
        as_planned: Whether the sizes stay those of the preset.
        whole: Whether each run keeps its books.
        seed: Seed of the audit itself: worlds, coins, directions, noise. A new one each time, so that a sample that is
            above a kept promise by chance is not repeated for ever.
    """

    algo: str | None = None
    dataset: str | None = None
    config: Path | None = None
    given: Mapping[str, str] = field(default_factory=dict)
    audits: tuple[AuditName, ...] = OF_MANY_RUNS
    runs: int = 1000
    canaries: int = 1000
    confidence: float = 0.95
    units: tuple[str, ...] = ("client", "record")
    observers: tuple[str, ...] = ("server", "public")
    as_planned: bool = False
    whole: bool = False
    seed: int = field(default_factory=fresh_seed)

    def __post_init__(self) -> None:
        for name, given, known in (
            ("audits", self.audits, AUDITS),
            ("units", self.units, ("client", "record")),
            ("observers", self.observers, ("server", "public")),
        ):
            if wrong := [each for each in given if each not in known]:
                raise InputError(f"{name} = {wrong[0]}: known are {', '.join(known)}")
            if not given:
                raise InputError(f"{name}: none is given, so nothing would be audited; known are {', '.join(known)}")
        if not isinstance(self.confidence, float) or not 0.5 <= self.confidence < 1:
            raise InputError(f"confidence = {self.confidence}: expected a number from 0.5 to below 1")
        fewest = math.floor(math.log(self.miss) / math.log(0.5)) + 1
        if type(self.runs) is not int or not fewest <= self.runs <= MOST_RUNS:
            raise InputError(
                f"runs = {self.runs}: give {fewest} to {MOST_RUNS:,}; fewer than {fewest} cannot prove anything at "
                f"{100 * self.confidence:.8g}% confidence"
            )
        check_canaries(self.canaries)
        check_audit_seed(self.seed)

    def second_seed(self, number: int) -> int:
        """Derive the seed of a run or bench of the second sample, which shares no coin with the first."""
        digest = hashlib.sha256(f"dpfedmeta audit, second sample {number} of {self.seed}".encode()).digest()
        return int.from_bytes(digest[:8]) >> 1

    @property
    def miss(self) -> float:
        """Probability with which a bound may fail: 1 - confidence."""
        return 1.0 - self.confidence

    def settings(self, more: Mapping[str, str] | None = None) -> Settings:
        """Return the settings that are audited, with the sizes of the audit."""
        return audited_settings(self.algo, self.dataset, self.config, self.given, as_planned=self.as_planned, more=more)

    def plan(self, more: Mapping[str, str] | None = None) -> Plan:
        """Likewise."""
        settings = self.settings(more)
        check_promises_something(settings)
        from dpfedmeta.planning.run_plan import make_plan  # brings PyTorch, and a wrong request needs none

        return make_plan(settings, task_of(settings)[0])


def check_promises_something(settings: Settings) -> None:
    """Refuse settings that promise nothing, as far as that is seen without a plan.

    Raises:
        InputError: Neither messages nor records are clipped.
    """
    if not (bounds_clients(settings) or settings.record.enabled):
        raise InputError(nothing_promised(settings.algo))


def nothing_promised(algo: str) -> str:
    """Why there is nothing to audit."""
    return (
        f"algo = {algo}: epsilon is infinite in every cell, so there is no promise to audit; choose a private "
        "algorithm, or give --noise-multiplier or --epsilon"
    )


def check_canaries(canaries: int) -> None:
    """Refuse fewer than half of which may be guessed.

    Raises:
        InputError: No bound would come out.
    """
    if type(canaries) is not int or not 2 * FEWEST_GUESSES <= canaries <= MOST_RUNS:
        raise InputError(
            f"canaries = {canaries!r}: give an int from {2 * FEWEST_GUESSES} to {MOST_RUNS:,}; fewer give no bound"
        )


def check_audit_seed(seed: int) -> int:
    """Return the seed of an audit.

    Raises:
        InputError: No audit draws such a seed.
    """
    if type(seed) is not int or not 0 <= seed < 2**_SEED_BITS:
        raise InputError(f"audit seed = {seed!r}: expected a whole number from 0 to below 2^{_SEED_BITS}")
    return seed
