"""Aggregation that the settings choose: which party adds the messages up, and so what the server sees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.planning.privacy.masking_graph import masking_graph

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

_SETTING, _FOLDER = "aggregation.mode", "dpfedmeta.simulation.aggregations"


def clients_make_the_noise(settings: Settings) -> bool:
    """Return whether clients make the noise and the server sees only sums; messages then need no noise of their own.

    Raises:
        InputError: There is no such aggregation.
    """
    return hasattr(aggregation_of(settings), "rounds")


def aggregation_of(settings: Settings) -> Any:
    """The member that `aggregation.mode` names (backend.Aggregation).

    Raises:
        InputError: There is none of this name, or it breaks its protocol.
    """
    name = settings.aggregation.mode
    member = members.find(_SETTING, name, _FOLDER)
    members.check_protocol(_SETTING, name, member, "sees", "made")
    if member.sees not in ("messages", "sum"):
        raise InputError(f"{_SETTING} = {name}: sees = {member.sees!r}, expected 'messages' or 'sum'")
    return member


def constants_of_the_sum(plan: PrivacyPlan) -> dict[str, int | float | None]:
    """Public constants of a round whose sum is all that the server sees, for a cohort of the expected size.

    None where it sees messages. Nothing of it depends on who took part.
    """
    whole, graph = plan.at(0).whole, masking_graph(plan)
    return {
        "bits": whole.bits if whole else None,
        "sensitivity_factor": whole.growth if whole else None,
        "fewest_survivors": whole.fewest(round(plan.cohort)) if whole else None,
        "degree": graph.degree if graph else None,
        "threshold": graph.threshold if graph else None,
    }
