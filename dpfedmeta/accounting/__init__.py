"""Numbers only: what a plan or a ledger promises to whom. Needs neither PyTorch nor data."""

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
