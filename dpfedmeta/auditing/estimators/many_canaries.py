"""Audits of one run: many canaries in it, whose directions are looked for in what is released."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.auditing.audit_request import check_canaries
from dpfedmeta.auditing.canaries import RandomDirections, with_canaries
from dpfedmeta.auditing.estimators.many_runs import SECOND_MISS
from dpfedmeta.auditing.estimators.one_run import (
    best_share,
    epsilon_of,
    gaussian_epsilon_of,
    guesses_of,
    one_run_epsilon,
    one_shot,
    pooled,
)
from dpfedmeta.auditing.findings import Finding
from dpfedmeta.auditing.neighbouring_runs import Nobody, observe
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import dimension
from dpfedmeta.core.random.random_sources import FloatArray, KeyedSource
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.training.build_data import client_side

BY_GUESSES = "guesses who was in"
BY_GAUSSIAN = "guesses who was in, of a Gaussian curve"
BY_COSINES = "cosines, taken to be normal"
# Fewer coordinates for each canary, and they are told apart by each other and not by the noise.
_FEWEST_COORDINATES = 2


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
        size = dimension(self.plan.algorithm.learned(self.plan.network, weights))
        if self.canaries * _FEWEST_COORDINATES > size:
            raise InputError(
                f"canaries = {self.canaries}: messages have {size:,} coordinates, so canaries would hide each other; "
                f"give at most {size // _FEWEST_COORDINATES:,}, or a larger network (--model.width)"
            )
        source, directions = KeyedSource(self.seed), RandomDirections(seed=self.seed)
        side = client_side(self.plan, Nobody(clients=self.plan.privacy.clients), source, torch.device("cpu"))
        signs = {client: int(there) for client, there in enumerate(inside)}
        seen = observe(self.plan, with_canaries(side, signs, directions, others=False), source).releases
        return cosines(seen, directions, self.canaries), size


def cosines(seen: Sequence[ObservedRound], directions: RandomDirections, canaries: int) -> FloatArray:
    """[m]: of each canary's direction with the sum of all releases, each over its own noise."""
    size = dimension(seen[0].model)
    total = torch.zeros(size, dtype=torch.float64)
    for release in seen:
        if release.total is not None:
            # What a policy has attached to messages stands behind them.
            total += release.total[:size] / release.deviation
    total /= torch.linalg.vector_norm(total)
    return np.array([float(directions.of(number, size).double() @ total) for number in range(canaries)])
