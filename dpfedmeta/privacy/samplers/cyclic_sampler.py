"""Groups of clients that take turns, and independent coins among those whose turn it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.events.record_layer import check
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort, Sampler

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.events import Event
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class CyclicSampler(Sampler):
    """In round t the clients of group t mod b toss coins, each heads with probability q = b L / N.

    Choquette-Choo et al. 2023 (https://arxiv.org/abs/2306.08153), section 4. A client's group is its number mod b: it
    is public, fixed before training, and says nothing of data.

    Attributes:
        clients: N.
        rate: q.
        spacing: b, and R.

    Guarantee:
        Given the past, a client joins with probability at most q when its turn comes, whatever others do, and never
        in between. Who joined an attempt at a round stays away from further attempts at it, as its ledger would have
        it. Coins are secret; whose turn it is is not.
    """

    clients: int
    rate: float
    spacing: Spacing
    neighbours: ClassVar[Neighbours] = "add-remove"
    independent: ClassVar[bool] = True
    keeps_apart: ClassVar[bool] = True
    # Two groups, and everybody when its turn comes.
    audited: ClassVar[Mapping[str, str]] = {"population.separation": "2", "population.cohort": "4"}

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> Sampler:
        """For rounds that cost this; the noise says how many groups there are, and counts with the cap.

        Raises:
            ValueError: It has no such noise.
        """
        from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise

        if not isinstance(constants.noise, CorrelatedNoise):
            raise ValueError("cyclic sampling takes its groups from correlated noise, and there is none")
        return cls(clients=constants.clients, rate=constants.rate, spacing=constants.noise.spacing)

    @classmethod
    def rate_of(cls, plan: PrivacyPlan, cohort: float) -> float:
        """bL/N, of a client in its turn."""
        separation = 1 if plan.correlation is None else plan.correlation.separation
        return min(1.0, separation * plan.cohort / plan.clients)

    @classmethod
    def members(cls, event: Event) -> int:
        """Clients of the largest group."""
        from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise

        apart = event.noise.separation if isinstance(event.noise, CorrelatedNoise) else 1
        return math.ceil(event.clients / apart)

    @classmethod
    def in_turn(cls, client: int, round_: int, spacing: Spacing) -> bool:
        """In round t the clients of group t mod b, which is a client's number mod b."""
        return (client - round_) % spacing.separation == 0

    @classmethod
    def check(cls, plan: PrivacyPlan) -> None:
        """Refuse noise that does not keep the rounds of two turns apart."""
        super().check(plan)
        correlation = plan.correlation
        check("sampler", plan.sampler, correlation is not None, "another one: only banded noise has a use for turns")
        assert correlation is not None
        if plan.noise != "banded":
            raise RefusedPlan(
                f"server.noise = {plan.noise} with population.sampler = cyclic: only banded noise keeps participations "
                "apart; use --server.noise independent, or leave that out"
            )
        bands = len(correlation.numbers) or (correlation.buffers or 0) + 1
        if bands > correlation.separation:
            raise RefusedPlan(
                f"population.sampler = cyclic with {bands} bands (server.buffers + 1) and population.separation = "
                f"{correlation.separation}: the noise of two participations of a client overlaps; lower "
                f"server.buffers to {correlation.separation - 1} or less"
            )

    @classmethod
    def check_separation(cls, plan: PrivacyPlan, spacing: Spacing) -> None:
        """Refuse a cohort that is larger than a group."""
        if plan.cohort * spacing.separation > plan.clients:
            raise RefusedPlan(
                f"population.sampler = cyclic with population.separation = {spacing.separation}: a group has "
                f"{plan.clients / spacing.separation:.4g} of {plan.clients:,} clients, and population.cohort is "
                f"{plan.cohort:g}; lower the separation or the cohort"
            )

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Refuse noise without a use for turns, and turns whose number nobody gave."""
        if settings.server.noise != "banded":
            raise RefusedPlan(
                f"population.sampler = cyclic with server.noise = {settings.server.noise}: taking turns only helps "
                "banded noise; use --server.noise banded, or --population.sampler poisson"
            )
        if settings.population.separation is None:
            raise RefusedPlan(
                "population.separation is missing: with population.sampler = cyclic it is the number of client groups "
                "that take turns; dpfedmeta account --advise finds the number with the least error (often 16 to 32)"
            )

    @classmethod
    def check_new_run(cls, *, cohort: float, separation: int | None, rounds: int) -> None:
        """Refuse more groups than rounds: some would have no turn, and the others' clients come too often."""
        if separation is not None and separation > rounds:
            raise RefusedPlan(
                f"separation = {separation} with sampler = cyclic: more groups than rounds, of which there are {rounds}"
                f"; give {rounds} or less"
            )

    @classmethod
    def cohort_words(cls, plan: PrivacyPlan) -> str:
        """Description of a cohort, in the plan and the report."""
        return f"expected cohort {plan.cohort:g} of the clients whose turn it is (q = {plan.at(0).rate:.3g})"

    def draw(
        self,
        round_: int,
        participations: Mapping[int, int],
        generator: SecretGenerator,
        latest: Mapping[int, int] = NEVER,
        *,
        again: bool = False,
    ) -> Cohort:
        """Draw the cohort of a round. Memory and time grow with L, not with N."""
        groups = self.spacing.separation
        group = round_ % groups
        members = len(range(group, self.clients, groups))
        drawn = group + groups * generator.sample(members, generator.binomial(members, self.rate))
        free = [c for c in drawn.tolist() if self.spacing.allows(round_, participations.get(c, 0), latest.get(c))]
        return Cohort(round=round_, clients=np.sort(np.asarray(free, dtype=np.int64)))


MEMBER = CyclicSampler
