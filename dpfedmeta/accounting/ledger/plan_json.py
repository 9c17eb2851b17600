"""A plan as JSON, as ledgers, registers and plan.json hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.relations.relations import MomentBlocks


def plan_of(stated: Mapping[str, Any]) -> PrivacyPlan:
    """A plan from the JSON of its constants.

    Raises:
        LookupError: A constant is missing.
        TypeError: One is none of a plan.
        RefusedPlan: No guarantee can be computed for a constant.
    """
    secure = stated["secure"]
    if secure is not None:
        # Inside: what belongs to sums of whole numbers is loaded where there are such.
        from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

        secure = _made(SecureRounds, secure)
    parts = {
        "schedule": tuple(_made(Change, each) for each in stated["schedule"]),
        "ends": tuple(stated["ends"]),
        "earlier": tuple(Earlier.from_json(each) for each in stated["earlier"]),
        "record": None if stated["record"] is None else _record_of(stated["record"]),
        "secure": secure,
        "correlation": None if stated["correlation"] is None else _made(Correlation, stated["correlation"]),
    }
    plan: PrivacyPlan = _made(PrivacyPlan, {**stated, **parts})
    return plan


def _made(form: type[Any], stated: Mapping[str, Any]) -> Any:
    """A form of its constants; one that is left out is refused, for its default would be one that nobody stated."""
    if absent := [constant.name for constant in fields(form) if constant.init and constant.name not in stated]:
        raise LookupError(absent[0])
    return form(**stated)


def _record_of(stated: Mapping[str, Any]) -> Any:
    blocks = None if stated["blocks"] is None else _made(MomentBlocks, stated["blocks"])
    return _made(RecordLayer, {**stated, "blocks": blocks})


def constants(plan: PrivacyPlan) -> dict[str, Any]:
    """The inverse: every constant, as a ledger's first line and plan.json hold them."""
    return {**asdict(plan), "earlier": [each.as_json() for each in plan.earlier]}
