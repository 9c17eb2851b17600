"""Units, clipping, mechanisms, clip policies, samplers, per-record gradients, accounting, calibration, ledger.

The border between secret and released values is in units.py and mechanisms.py.
"""

from dpfedmeta.privacy.accounting import guarantees
from dpfedmeta.privacy.calibration import Targets, calibrate, largest_cohort, most_rounds
from dpfedmeta.privacy.guarantee import Bound, Guarantee
from dpfedmeta.privacy.plan import Change, PrivacyPlan, RecordLayer

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
