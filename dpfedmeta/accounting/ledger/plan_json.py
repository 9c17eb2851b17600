"""A plan as JSON, as ledgers, registers and plan.json hold it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.relations.relations import MomentBlocks

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds


def plan_of(stated: Mapping[str, Any]) -> PrivacyPlan:
    """A plan from the JSON of its constants.

    Raises:
        LookupError: A constant is missing.
        TypeError: One is none of a plan.
        RefusedPlan: No guarantee can be computed for a constant.
    """
    if absent := [constant.name for constant in fields(PrivacyPlan) if constant.name not in stated]:
        raise LookupError(absent[0])  # its default would be a constant that nobody stated
    given = dict(stated)
    record, secure, correlation = (given.pop(name) for name in ("record", "secure", "correlation"))
    schedule = tuple(Change(**change) for change in given.pop("schedule"))
    ends = tuple(given.pop("ends"))
    earlier = tuple(Earlier.from_json(each) for each in given.pop("earlier"))
    return PrivacyPlan(
        **given,
        schedule=schedule,
        ends=ends,
        earlier=earlier,
        record=_record_of(record) if record else None,
        secure=_secure_of(secure) if secure else None,
        correlation=Correlation(**correlation) if correlation else None,
    )


def _secure_of(stated: Mapping[str, Any]) -> SecureRounds:
    # Inside: what belongs to sums of whole numbers is loaded where there are such.
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

    return SecureRounds(**stated)


def _record_of(stated: Mapping[str, Any]) -> RecordLayer:
    blocks = stated["blocks"]
    return RecordLayer(**{**stated, "blocks": None if blocks is None else MomentBlocks(**blocks)})


def constants(plan: PrivacyPlan) -> dict[str, Any]:
    """The inverse: every constant, as a ledger's first line and plan.json hold them."""
    return {**asdict(plan), "earlier": [each.as_json() for each in plan.earlier]}
