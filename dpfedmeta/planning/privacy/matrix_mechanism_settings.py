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
        if apart is None and population.sampler == "cyclic":
            raise RefusedPlan(
                "population.separation is missing: under population.sampler = cyclic it is how many groups of clients "
                "take turns; account.py --advise finds the number with the least error (often 16 to 32)"
            )
        if apart is None:
            apart = default_separation(population.clients, population.cohort, server.rounds)
        return Correlation(separation=apart, buffers=server.buffers)
    if population.sampler == "cyclic":
        raise RefusedPlan(
            f"population.sampler = cyclic with server.noise = {server.noise}: turns are of use to banded noise alone; "
            "use --server.noise banded, or --population.sampler poisson"
        )
    for name, value in (("population.separation", population.separation), ("server.buffers", server.buffers)):
        if value is not None:
            raise RefusedPlan(
                f"{name} = {value} with server.noise = {server.noise}: only correlated noise ({', '.join(KINDS)}) has "
                "a use for it; leave it out"
            )
    return None
