"""Analyses of small federations, without data."""

from dataclasses import replace

import numpy as np

from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.analytics.analysis import Asking
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.randomness import KeyedSource


def base(clients=40, noise=1.0, **changes):
    return PrivacyPlan(clients=clients, cohort=float(clients), rounds=1, noise_multiplier=noise, **changes)


def asking(analysis, clients=None, seed=1, size=40, noise=1.0):
    """Everybody is asked."""
    cohort = Cohort(round=0, clients=np.arange(size))
    plan = analysis.planned(base(size, noise))
    return Asking(plan=plan, cohort=cohort, source=KeyedSource(seed), clients=clients)


def with_noise(plan, noise):
    return replace(plan, noise_multiplier=noise)
