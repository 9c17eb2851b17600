"""Numbers only: what a plan or a ledger promises to whom. Needs neither PyTorch nor data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpfedmeta.accounting.calibration import Targets, calibrate, largest_cohort, most_rounds
    from dpfedmeta.accounting.cells import guarantees
    from dpfedmeta.accounting.guarantee import Bound, Guarantee
    from dpfedmeta.accounting.plan import Change, PrivacyPlan
    from dpfedmeta.accounting.record_layer import RecordLayer

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
    "Bound": "guarantee",
    "Change": "plan",
    "Guarantee": "guarantee",
    "PrivacyPlan": "plan",
    "RecordLayer": "record_layer",
    "Targets": "calibration",
    "calibrate": "calibration",
    "guarantees": "cells",
    "largest_cohort": "calibration",
    "most_rounds": "calibration",
}


def __getattr__(name: str) -> Any:
    # On first use: SciPy and dp-accounting take a second to import, and record_layer needs neither.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
