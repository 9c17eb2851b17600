"""Constants of correlated noise (server.noise): separation of a client's rounds, and buffers of the noise's state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import RefusedPlan

if TYPE_CHECKING:
    from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation


def correlation_of(settings: Settings) -> Correlation | None:
    """The settings' own; clients keep as far apart as the population allows where nothing is said. None: other noise.

    Raises:
        RefusedPlan: Something of it is given to another noise.
    """
    from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS, Correlation
    from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import default_separation

    population, server = settings.population, settings.server
    if server.noise in KINDS:
        apart = population.separation
        if apart is None:
            apart = default_separation(population.clients, population.cohort, server.rounds)
        return Correlation(separation=apart, buffers=server.buffers)
    for name, value in (("population.separation", population.separation), ("server.buffers", server.buffers)):
        if value is not None:
            raise RefusedPlan(
                f"{name} = {value} with server.noise = {server.noise}: only correlated noise ({', '.join(KINDS)}) "
                "uses it; leave it out"
            )
    return None
