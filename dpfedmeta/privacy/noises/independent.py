"""Independent Gaussian noise in every round; none at all where the plan has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.params import Params
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.mechanisms import GaussianMechanism, MechanismState, NoMechanism, Released
from dpfedmeta.privacy.units import Bounded, Unit

if TYPE_CHECKING:
    from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism


@dataclass(frozen=True, kw_only=True)
class Independent:
    """The Gaussian mechanism of each round, on its own (Abadi et al. 2016, https://arxiv.org/abs/1607.00133).

    Attributes:
        plan: Its constants by round.

    Guarantee:
        As of `GaussianMechanism`, whose multiplier is the one in the round's event.
    """

    plan: PrivacyPlan

    def init(self, form: Params) -> MechanismState:
        """Nothing is remembered."""
        return {}

    def at(self, round_: int) -> GaussianMechanism | WholeNumberMechanism | NoMechanism:
        """Return the mechanism that releases the sum of one round.

        Raises:
            ValueError: The plan leaves no noise.
        """
        event = self.event(round_)
        if event.total_noise is None:
            return NoMechanism(denominator=event.cohort)
        if event.whole is not None and event.noise is not None:
            # Inside: what belongs to sums of whole numbers is loaded where there are such.
            from dpfedmeta.privacy.integer_mechanism import WholeNumberMechanism

            return WholeNumberMechanism(whole=event.whole, noise=event.noise, denominator=event.cohort)
        charged = event.noise.multiplier if isinstance(event.noise, GaussianNoise) else 0.0
        return GaussianMechanism(
            total_multiplier=event.total_noise, charged_multiplier=charged, denominator=event.cohort
        )

    def release(
        self, round_: int, query: Bounded[Unit, Params], state: MechanismState, generator: SecretGenerator
    ) -> tuple[Released[Unit, Params], MechanismState]:
        """Top the noise of the sum up to the total, and release it."""
        return self.at(round_).release(query, generator), state

    def event(self, round_: int) -> Event:
        """Return the privacy cost of the round's release, which the ledger is charged with."""
        return self.plan.at(round_)


MEMBER = Independent
