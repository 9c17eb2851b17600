"""A fixed number of clients, without replacement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from dpfedmeta.accounting.events.record_layer import check
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort, Sampler

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    from dpfedmeta.accounting.events.events import Event
    from dpfedmeta.accounting.events.noise_cost import Noise
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampler(Sampler):
    """Exactly L of the N clients, without replacement.

    Attributes:
        clients: N.
        cohort: L.

    Guarantee:
        A uniform subset of fixed size in each round, independent of all others. The accountant treats it as fixed-size
        sampling under replace-one, never as Poisson. There is no participation cap here: it would make one client's
        history depend on another's.
    """

    clients: int
    cohort: int
    neighbours: ClassVar[Neighbours] = "replace-one"
    fixed_size: ClassVar[bool] = True

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> Sampler:
        """For rounds that cost this; there is no cap."""
        return cls(clients=constants.clients, cohort=int(constants.cohort))

    @classmethod
    def one_round(cls, rate: float, noise: Noise, neighbours: Neighbours, grid: float) -> PrivacyLossDistribution:
        """The pair of two cohorts of which one has another client's message in a place.

        Raises:
            ValueError: Adding or removing a client, which has no meaning here.
        """
        from dpfedmeta.accounting.divergences.pld_round import by_coupling

        if neighbours == "add-remove":
            raise ValueError("fixed-size sampling has no add-remove guarantee: account for it under replace-one")
        return by_coupling(rate, noise, grid)

    @classmethod
    def dp_event(cls, event: Event) -> DpEvent | None:
        """For replace-one accountants that do not double the sensitivity (dp-accounting's RDP): of std/(2C)."""
        from dp_accounting import SampledWithoutReplacementDpEvent

        noise = None if event.noise is None else event.noise.dp_event(2.0)
        return None if noise is None else SampledWithoutReplacementDpEvent(event.clients, round(event.cohort), noise)

    @classmethod
    def rate_of(cls, plan: PrivacyPlan, cohort: float) -> float:
        """L/(N - c): colluding clients who were not drawn leave their places to the others."""
        return min(1.0, cohort / max(plan.clients - plan.colluding, 1))

    @classmethod
    def check(cls, plan: PrivacyPlan) -> None:
        """Refuse a cap, and cohorts that are no whole number."""
        super().check(plan)
        # A capped client's place stays empty, so with a cap the others' histories depend on who was drawn before.
        cap = plan.max_participations
        check("max_participations", cap, cap is None, "null with the fixed sampler")
        for _, change in plan.changes():
            cohort = plan.cohort * change.cohort_scale
            check("cohort", cohort, float(cohort).is_integer(), "a whole number under the fixed-size sampler")

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Refuse a cap, and ledgers of clients, which decline by what they took part in."""
        capped = settings.population.max_participations is not None
        if capped or settings.record.client_ledgers:
            name = "population.max_participations" if capped else "record.client_ledgers"
            raise RefusedPlan(
                f"population.sampler = fixed with {name}: later draws would depend on earlier ones, and no bound is "
                f"proven for that; use --population.sampler poisson, or leave out {name}"
            )

    @classmethod
    def drawn_words(cls, event: Event) -> str:
        """Description of who is in a round, behind a bound."""
        return f"{event.cohort:g} of {event.clients}"

    @classmethod
    def cohort_words(cls, plan: PrivacyPlan) -> str:
        """Description of a cohort, in the plan and the report."""
        return f"cohorts of exactly {plan.cohort:g} (q = {plan.at(0).rate:.3g})"

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
        return Cohort(round=round_, clients=np.sort(generator.sample(self.clients, self.cohort)))


MEMBER = FixedSizeSampler
