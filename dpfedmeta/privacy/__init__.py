"""Units, clipping, mechanisms, clip policies, samplers, per-record gradients, accounting, calibration, ledger.

The border between secret and released values is in units.py and mechanisms.py.
"""

from dpfedmeta.privacy.accounting import Guarantee, guarantees
from dpfedmeta.privacy.calibration import Targets, calibrate
from dpfedmeta.privacy.plan import PrivacyPlan, RecordLayer

__all__ = ["Guarantee", "PrivacyPlan", "RecordLayer", "Targets", "calibrate", "guarantees"]
