"""Independent coins: with a participation cap, or among the clients that are free where noise is correlated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedmeta.accounting.events.participation_pattern import Spacing, joining_rates
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort, Sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from dpfedmeta.accounting.events.events import Event
    from dpfedmeta.accounting.events.noise_cost import Noise
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class PoissonSampler(Sampler):
    """Every client takes part independently with probability q = cohort / clients.

    Under correlated noise clients rest between rounds: those that are free toss the coins, and no coin is counted on.

    Attributes:
        clients: N.
        cohort: L = qN, the public expectation.
        max_participations: R; a client that took part R times is left out. None: no cap.
        largest: M; surplus clients are dropped at random before anybody is invited. None: no limit.

    Guarantee:
        Given the past, each client is included independently with probability at most q. Dropping above M
        has probability beta (see accounting), which every public cell takes off its delta.
    """

    clients: int
    cohort: float
    max_participations: int | None = None
    largest: int | None = None
    neighbours: ClassVar[Neighbours] = "add-remove"
    independent: ClassVar[bool] = True
    keeps_apart: ClassVar[bool] = True
    leaves_gaps: ClassVar[bool] = True

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> Sampler:
        """For rounds that cost this."""
        from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise

        noise = constants.noise
        if isinstance(noise, CorrelatedNoise):
            rates = joining_rates(constants.clients, constants.cohort, noise.rounds, noise.spacing)
            return SpacedSampler(clients=constants.clients, rates=rates, spacing=noise.spacing)
        return cls(
            clients=constants.clients,
            cohort=constants.cohort,
            max_participations=max_participations,
            largest=constants.largest_cohort,
        )

    @classmethod
    def one_round(cls, rate: float, noise: Noise, neighbours: Neighbours, grid: float) -> PrivacyLossDistribution:
        """The pair of one coin; of a replaced client, by coupling cohorts unless the noise knows a closer pair."""
        from dpfedmeta.accounting.divergences.pld_round import by_coins, by_coupling

        if neighbours == "add-remove":
            return by_coins(rate, noise, grid)
        return noise.replaced(rate, grid) or by_coupling(rate, noise, grid)

    @classmethod
    def dp_event(cls, event: Event) -> DpEvent | None:
        """dp-accounting's Poisson-sampled event."""
        from dp_accounting import PoissonSampledDpEvent

        noise = None if event.noise is None else event.noise.dp_event(1.0)
        return None if noise is None else PoissonSampledDpEvent(event.rate, noise)

    @classmethod
    def rate_of(cls, plan: PrivacyPlan, cohort: float) -> float:
        """L/N; 1 under correlated noise, which counts on no coin."""
        return 1.0 if plan.correlation is not None else super().rate_of(plan, cohort)

    @classmethod
    def check_separation(cls, plan: PrivacyPlan, spacing: Spacing) -> None:
        """Refuse a separation that leaves fewer clients free than a cohort has."""
        _ = joining_rates(plan.clients, plan.cohort, plan.rounds, spacing)

    @property
    def rate(self) -> float:
        """Q."""
        return self.cohort / self.clients

    @classmethod
    def cohort_words(cls, plan: PrivacyPlan) -> str:
        """Description of a cohort, in the plan and the report."""
        if plan.correlation is not None:
            return f"expected cohort {plan.cohort:g} of the clients that may take part again"
        return f"expected cohort {plan.cohort:g} (Poisson, q = {plan.at(0).rate:.3g})"

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Memory and time grow with L, not with N.

        A Binomial(N, q) count of distinct uniform clients is the same distribution as N independent coins.
        """
        size = generator.binomial(self.clients, self.rate)
        drawn = generator.sample(self.clients, size)
        drawn = _below_cap(drawn, self.max_participations, participations)
        if self.largest is not None:
            drawn = drawn[: self.largest]  # the sample is in random order
        return Cohort(round=round_, clients=np.sort(drawn))


def _below_cap(drawn: IntArray, cap: int | None, participations: Mapping[int, int]) -> IntArray:
    if cap is None:
        return drawn
    return np.asarray([c for c in drawn.tolist() if participations.get(c, 0) < cap], dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class SpacedSampler(Sampler):
    """Every client that is free to join does so independently, with the probability that the plan fixes for the round.

    Attributes:
        clients: N.
        rates: By round: the expected cohort over the expected number of clients that are free to join.
        spacing: What each client keeps to.

    Guarantee:
        No client joins more rounds than the spacing allows, or closer together, over all attempts at all rounds.
        Whether it does depends on its own coins and its own past alone: other clients take part as they would without
        it.
    """

    clients: int
    rates: tuple[float, ...]
    spacing: Spacing

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Clients that are drawn but have to rest stay away, as if they were not drawn."""
        drawn = generator.sample(self.clients, generator.binomial(self.clients, self.rates[round_]))
        free = [c for c in drawn.tolist() if self.spacing.allows(round_, participations.get(c, 0), latest.get(c))]
        return Cohort(round=round_, clients=np.sort(np.asarray(free, dtype=np.int64)))


MEMBER = PoissonSampler
