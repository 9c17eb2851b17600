"""Settings and plans that hold among simulated clients, but could not among real ones."""

from collections.abc import Sequence

from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.federation.channel import IDENTITY_BYTES
from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, ROOM_BYTES
from dpfedmeta.federation.offers.offered_settings import check_taken
from dpfedmeta.federation.offers.signed_plan import agreement_of
from dpfedmeta.federation.offers.work_limits import check_work
from dpfedmeta.planning.privacy.secure_sum_settings import check_company
from dpfedmeta.planning.run_plan import Plan


def check_federation(settings: Settings, roster: Sequence[bytes]) -> None:
    """Refuse settings that hold in a simulation but could not hold among real clients.

    Raises:
        InputError: The roster has an invalid or repeated identity, or another number of clients than the settings; or a
            setting is of simulated clients, or asks a client for more than it does (offers.kept_settings).
        RefusedPlan: A promise would count on what nobody can check.
    """
    if len({*roster}) != len(roster) or any(len(one) != IDENTITY_BYTES for one in roster):
        raise InputError(f"roster: the {len(roster)} identities must all differ, with {IDENTITY_BYTES} bytes each")
    check_taken(settings)
    check_work(settings, task_of(settings)[0])
    population = settings.population
    if population.clients != len(roster):
        raise InputError(
            f"population.clients = {population.clients:,}, but the roster names {len(roster):,} clients; give "
            f"--clients {len(roster)}"
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
