"""Settings and plans that hold among simulated clients, but could not among real ones."""

from collections.abc import Sequence

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, ROOM_BYTES
from dpfedmeta.federation.offers.signed_plan import agreement_of
from dpfedmeta.planning.privacy.aggregation import clients_make_the_noise
from dpfedmeta.planning.privacy.secure_sum_settings import check_company
from dpfedmeta.planning.run_plan import Plan


def check_federation(settings: Settings, roster: Sequence[bytes]) -> None:
    """Refuse settings that hold in a simulation but could not hold among real clients.

    Raises:
        InputError: The roster has an invalid or repeated identity, or another number of clients than the settings; or a
            setting is of simulated clients.
        RefusedPlan: A promise would count on what nobody can check.
    """
    if len({*roster}) != len(roster) or any(len(one) != IDENTITY_BYTES for one in roster):
        raise InputError(f"roster: the {len(roster)} identities must all differ, with {IDENTITY_BYTES} bytes each")
    population = settings.population
    simulated = {
        "population.dropout": population.dropout != 0,
        "population.latency_spread": population.latency_spread != 0,
        "server.timeout": settings.server.timeout is not None,
        "population.most_shots": population.most_shots is not None,
        "population.own_test": population.own_test != 0,
        "population.episodes = whole": population.episodes == "whole",
        "population.register": population.register is not None,
        "record.client_ledgers": settings.record.client_ledgers,
    }
    for name, given in simulated.items():
        if given:
            raise InputError(f"{name}: is only for simulated clients; leave it out in a federation of real ones")
    if population.clients != len(roster):
        raise InputError(
            f"population.clients = {population.clients:,}, but the roster names {len(roster):,} clients; give "
            f"--clients {len(roster)}"
        )
    if clients_make_the_noise(settings) and not sampling_of(population.sampler).fixed_size:
        raise RefusedPlan(
            f"population.sampler = {population.sampler} with aggregation.mode = secure: nobody knows how often real "
            "clients fail, and an aborted round would reveal something about its cohort; use --population.sampler fixed"
        )


def check_agreements(plan: Plan) -> None:
    """Check that every cohort that may be invited withstands a server that picks it and tells clients different things.

    Raises:
        RefusedPlan: A cohort does not.
    """
    whole = plan.privacy.at(0).whole
    if plan.privacy.secure is None or whole is None:
        return
    check_company(plan.privacy, plan.settings.aggregation.company)
    for invited in range(whole.least, whole.most + 1):
        try:
            agreement_of(plan, 0, invited)
        except InputError as error:
            raise RefusedPlan(
                f"aggregation.mode = secure among real clients: {error}; lower aggregation.dropout or "
                "aggregation.adversarial"
            ) from None


def check_length(what: str, length: int) -> None:
    """Check that a message fits the wire, before anything is charged: a client drops what is longer.

    Args:
        what: It holds, and what to change.
        length: In bytes, without what is around it.

    Raises:
        RefusedPlan: It does not.
    """
    if length > MOST_BYTES - ROOM_BYTES:
        raise RefusedPlan(f"{what}: a message of {length:,} bytes, and the wire takes {MOST_BYTES:,}")
