"""Numbers only: what a plan or a ledger promises to whom. Needs neither PyTorch nor data."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfedmeta.accounting.calibration import Targets, calibrate
    from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
    from dpfedmeta.accounting.events.record_layer import RecordLayer
    from dpfedmeta.accounting.observers.four_guarantees import guarantees
    from dpfedmeta.accounting.plan_sizes import largest_cohort, most_rounds
    from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan

__all__ = [
    "Bound",
    "Change",
    "Guarantee",
    "PrivacyPlan",
    "RecordLayer",
    "Targets",
    "calibrate",
    "guarantees",
    "largest_cohort",
    "most_rounds",
]
_HOME = {
    "Bound": "events.guarantee",
    "Change": "privacy_plan.privacy_plan",
    "Guarantee": "events.guarantee",
    "PrivacyPlan": "privacy_plan.privacy_plan",
    "RecordLayer": "events.record_layer",
    "Targets": "calibration",
    "calibrate": "calibration",
    "guarantees": "observers.four_guarantees",
    "largest_cohort": "plan_sizes",
    "most_rounds": "plan_sizes",
}


def __getattr__(name: str) -> Any:
    # On first use: SciPy and dp-accounting take a second to import, and record_layer needs neither.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
