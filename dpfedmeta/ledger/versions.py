"""The versions of a ledger that can be read, and what the earlier ones leave unsaid."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpfedmeta.accounting.plan import Change, PrivacyPlan, RecordLayer
from dpfedmeta.errors import InputError

VERSION = 5


@dataclass(frozen=True, kw_only=True)
class Unsaid:
    """What ledgers of an earlier version leave unsaid, because there was nothing to choose yet.

    Attributes:
        plan: Constants of the plan that held all the same.
        settings: Settings that held all the same, by their dotted names.
    """

    plan: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


# Every version that can be read: a new constant or setting comes with a new VERSION, and its value in earlier ones.
UNSAID: Mapping[int, Unsaid] = {
    # All noise that messages carry was counted on, as if nobody were hostile.
    3: Unsaid(plan={"hostile": 0.0}, settings={"privacy.client.hostile": 0.0}),
    # Messages were added up in floating point, so no round of it can be done again here.
    4: Unsaid(),
    VERSION: Unsaid(),
}


def plan_of(stated: Mapping[str, Any], version: int) -> PrivacyPlan:
    """A plan from the JSON of its constants, in a ledger of this version or beside it.

    Raises:
        InputError: The version is not known here.
        TypeError: A constant is missing, or is none of a plan.
        RefusedPlan: No guarantee can be computed for a constant.
    """
    if version not in UNSAID:
        known = f"ledger version {version} is not known here, only version {', '.join(map(str, UNSAID))}"
        raise InputError(f"{known}; verify it with the dpfedmeta that wrote it")
    fields = {**UNSAID[version].plan, **stated}
    record = fields.pop("record")
    schedule = tuple(Change(**change) for change in fields.pop("schedule"))
    return PrivacyPlan(**fields, schedule=schedule, record=RecordLayer(**record) if record else None)
