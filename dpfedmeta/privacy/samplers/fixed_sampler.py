"""A fixed number of clients, without replacement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.privacy.samplers import NEVER, Cohort


@dataclass(frozen=True, kw_only=True)
class FixedSizeSampler:
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

    @classmethod
    def of(cls, constants: Event, max_participations: int | None) -> FixedSizeSampler:
        """For rounds that cost this; there is no cap."""
        return cls(clients=constants.clients, cohort=int(constants.cohort))

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
