"""From settings to who adds messages up, and so to what the server sees."""

from __future__ import annotations

from typing import Any

from dpfedmeta import members
from dpfedmeta.errors import InputError
from dpfedmeta.settings import Settings

_SETTING, _FOLDER = "aggregation.mode", "dpfedmeta.simulation.aggregations"


def clients_make_the_noise(settings: Settings) -> bool:
    """Whether the server sees sums alone, with noise that clients made: then no message needs noise of its own.

    Raises:
        InputError: There is no such aggregation.
    """
    return hasattr(aggregation_of(settings), "rounds")


def aggregation_of(settings: Settings) -> Any:
    """The member that `aggregation.mode` names (simulation.aggregation.Aggregation).

    Raises:
        InputError: There is none of this name, or it breaks its protocol.
    """
    name = settings.aggregation.mode
    member = members.find(_SETTING, name, _FOLDER)
    members.check_protocol(_SETTING, name, member, "sees", "made")
    if member.sees not in ("messages", "sum"):
        raise InputError(f"{_SETTING} = {name}: sees = {member.sees!r}; a server sees messages or their sum")
    return member
