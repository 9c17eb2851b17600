"""The strongest audit: many runs of two neighbouring worlds, told apart by the best attack there is.

Beside it the audit of one run with many canaries in it, whose directions are looked for in what is released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.auditing.attacks.likelihood_ratio import Attack
from dpfedmeta.auditing.audit_request import check_canaries
from dpfedmeta.auditing.canaries import RandomDirections, with_canaries
from dpfedmeta.auditing.estimators.one_run import (
    best_share,
    epsilon_of,
    gaussian_epsilon_of,
    guesses_of,
    one_run_epsilon,
    one_shot,
    pooled,
)
from dpfedmeta.auditing.findings import AuditName, Finding
from dpfedmeta.auditing.neighbouring_runs import Nobody, observe
from dpfedmeta.auditing.observed_loop import AuditedTraining, ObservedRound
from dpfedmeta.auditing.trade_off_function import TradeOff, best_threshold, epsilon_of_counts, epsilon_of_curve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import dimension
from dpfedmeta.core.random.random_sources import FloatArray, KeyedSource, SecretSource
from dpfedmeta.learning.meta.algorithm import message_form
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.training.build_data import client_side

Watch = Callable[[float], None]
BY_CURVE = "the promise's own curve"
# A second sample: how many times the first, and one less its confidence.
SECOND_SAMPLE, SECOND_MISS = 4, 0.001
NO_CURVE = "the trade-off curve of this promise with less noise is not known; use --audits many-runs"
BY_COUNTS = "counts beyond thresholds"
BY_GUESSES = "guesses who was in"
BY_GAUSSIAN = "guesses who was in, of a Gaussian curve"
BY_COSINES = "cosines, taken to be normal"
# Fewer coordinates for each canary, and they are told apart by each other and not by the noise.
_FEWEST_COORDINATES = 2


@dataclass(frozen=True, kw_only=True)
class Ratios:
    """Log-likelihood ratios of independent runs.

    Attributes:
        one: Of the runs of the one world.
        other: Of those of the other.
    """

    one: FloatArray
    other: FloatArray

    @property
    def runs(self) -> int:
        """All of them."""
        return len(self.one) + len(self.other)

    @property
    def right(self) -> int:
        """Runs whose ratio speaks for their own world."""
        return int(np.sum(self.one > 0) + np.sum(self.other <= 0))


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Runs of two worlds, as an audit makes them.

    Attributes:
        plan: The plan that is audited.
        runs: Number of runs.
        seed: Seed of the audit: which world each run is of, and the noise seed of each.
        whole: Whether each run keeps its books, in a folder that is removed; else its rounds alone are done.
        training: Another loop, for tests with a planted mistake.
        source: Secret randomness of a run from its seed.
    """

    plan: Plan
    runs: int
    seed: int
    whole: bool = False
    training: type[AuditedTraining] = AuditedTraining
    source: Callable[[int], SecretSource] = KeyedSource

    def ratios(self, attack: Attack, watch: Watch = lambda done: None) -> Ratios:
        """Make all runs, and return their log-likelihood ratios."""
        found: dict[bool, list[float]] = {True: [], False: []}
        for number, (one, source) in enumerate(self._tosses()):
            found[one].append(self._ratio(attack, one, source))
            watch((number + 1) / self.runs)
        return Ratios(one=np.array(found[True]), other=np.array(found[False]))

    def _tosses(self) -> Iterator[tuple[bool, SecretSource]]:
        generator = np.random.default_rng(self.seed)
        for _ in range(self.runs):
            one, words = bool(generator.integers(2)), generator.integers(2**63, size=2).tolist()
            yield one, self.source(words[0] << 64 | words[1])

    def _ratio(self, attack: Attack, one: bool, source: SecretSource) -> float:
        clients = attack.worlds.clients(one, source)
        if not self.whole:
            return attack.ratio(observe(self.plan, clients, source, training=self.training))
        with TemporaryDirectory(prefix="dpfedmeta-audit-") as folder:
            return attack.ratio(observe(self.plan, clients, source, Path(folder), training=self.training))


def findings_of(ratios: Ratios, cell: Guarantee, curve: TradeOff | None, miss: float) -> Iterator[Finding]:
    """The bound by the curve of the promise, where there is one, and the bound that assumes none."""
    if curve is None:
        yield Finding.of(cell, "distinguish", None, NO_CURVE, runs=ratios.runs)
    else:
        yield _finding(ratios, cell, epsilon_of_curve(ratios.right, ratios.runs, curve, miss), miss, BY_CURVE)
    free = epsilon_of_counts(ratios.one, ratios.other, cell.delta, miss)
    yield _finding(ratios, cell, free, miss, BY_COUNTS, "many-runs")


def confirmation_of(first: Finding, found: Ratios, again: Ratios, cell: Guarantee, curve: TradeOff | None) -> Finding:
    """The same bound from a second sample, by the one test that the first sample chose.

    Args:
        first: What the first sample showed.
        found: Its ratios.
        again: Ratios of runs that share nothing with them.
        cell: What was promised.
        curve: Of the promise.

    Guarantee:
        A program that keeps its promise gets more than its epsilon here with probability SECOND_MISS at most.
    """
    if first.audit == "distinguish":
        assert curve is not None
        audited = epsilon_of_curve(again.right, again.runs, curve, SECOND_MISS)
    else:
        threshold = best_threshold(found.one, found.other, cell.delta, SECOND_MISS)
        audited = threshold.epsilon(again.one, again.other, cell.delta, SECOND_MISS)
    return _finding(again, cell, audited, SECOND_MISS, first.method, first.audit, second=True)


def expected_epsilon(curve: TradeOff, runs: int, miss: float) -> float:
    """Return roughly the bound that so many runs would show of a mechanism exactly as private as promised."""
    return epsilon_of_curve(round(runs * (1.0 + curve.total_variation(1.0)) / 2.0), runs, curve, miss)


def _finding(
    ratios: Ratios,
    cell: Guarantee,
    audited: float,
    miss: float,
    method: str,
    audit: AuditName = "distinguish",
    *,
    second: bool = False,
) -> Finding:
    return Finding.of(
        cell,
        audit,
        audited if math.isfinite(audited) else None,
        method,
        confidence=1.0 - miss,
        runs=ratios.runs,
        right=ratios.right,
        second=second,
    )


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """A single run with many canaries.

    Attributes:
        plan: The plan that is audited.
        canaries: m: the first clients of the population.
        seed: Seed of the audit: directions, coins and noise.
    """

    plan: Plan
    canaries: int
    seed: int

    def one_run(self, cell: Guarantee, miss: float) -> Iterator[Finding]:
        """A bound that assumes nothing, and one that assumes a Gaussian curve.

        Raises:
            InputError: Too few canaries for any bound.
        """
        check_canaries(self.canaries)
        inside, outside = self._tossed
        for gaussian in (False, True):
            audited = one_run_epsilon(inside, outside, cell.delta, miss, gaussian=gaussian)
            method = BY_GAUSSIAN if gaussian else BY_GUESSES
            yield Finding.of(cell, "one-run", audited, method, confidence=1.0 - miss, canaries=self.canaries)

    def confirmation(self, first: Finding, cell: Guarantee, others: Sequence[Crowd]) -> Finding:
        """The same bound from further runs, with the number of guesses that this one chose.

        Guarantee:
            A program that keeps its promise gets more than its epsilon here with probability SECOND_MISS at most.
        """
        gaussian = first.method == BY_GAUSSIAN
        share = best_share(*self._tossed, cell.delta, SECOND_MISS, gaussian=gaussian)
        guesses = pooled([next(guesses_of(*other._tossed, (share,))) for other in others])
        audited = (gaussian_epsilon_of if gaussian else epsilon_of)(guesses, cell.delta, SECOND_MISS)
        return Finding.of(
            cell, "one-run", audited, first.method,
            confidence=1.0 - SECOND_MISS, runs=len(others), canaries=self.canaries, second=True,
        )  # fmt: skip

    @cached_property
    def _tossed(self) -> tuple[FloatArray, FloatArray]:
        """(Scores of canaries that were in the run, of those that were not), by the toss of a coin for each."""
        inside = np.random.default_rng(self.seed).integers(2, size=self.canaries).astype(bool)
        scores, _ = self._scores(inside)
        return scores[inside], scores[~inside]

    def one_shot(self, cell: Guarantee) -> Iterator[Finding]:
        """An estimate."""
        cosines, size = self._scores(np.ones(self.canaries, bool))
        found = one_shot(cosines, size, cell.delta)
        yield Finding.of(cell, "one-shot", found.epsilon, BY_COSINES, canaries=self.canaries)

    def _scores(self, inside: FloatArray) -> tuple[FloatArray, int]:
        """(Cosine of each canary with what was released, d); the canaries marked in `inside` took part."""
        weights = self.plan.algorithm.initial(self.plan.network, self.plan.settings.run.seed)
        size = dimension(message_form(self.plan.algorithm, self.plan.algorithm.learned(self.plan.network, weights)))
        if self.canaries * _FEWEST_COORDINATES > size:
            raise InputError(
                f"canaries = {self.canaries}: messages have {size:,} coordinates, so canaries would hide each other; "
                f"give at most {size // _FEWEST_COORDINATES:,}, or a larger network (--model.width)"
            )
        source, directions = KeyedSource(self.seed), RandomDirections(seed=self.seed)
        side = client_side(self.plan, Nobody(clients=self.plan.privacy.clients), source, torch.device("cpu"))
        signs = {client: int(there) for client, there in enumerate(inside)}
        seen = observe(self.plan, with_canaries(side, signs, directions, others=False), source).releases
        return cosines(seen, directions, self.canaries, size), size


def cosines(seen: Sequence[ObservedRound], directions: RandomDirections, canaries: int, size: int) -> FloatArray:
    """[m]: of each canary's direction with the sum of all releases, each over its own noise."""
    total = torch.zeros(size, dtype=torch.float64)
    for release in seen:
        if release.total is not None:
            # What a policy has attached to messages stands behind them.
            total += release.total[:size] / release.deviation
    total /= torch.linalg.vector_norm(total)
    return np.array([float(directions.of(number, size).double() @ total) for number in range(canaries)])
