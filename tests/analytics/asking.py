"""Analyses of small federations, without data."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np

from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.analytics.analysis import Handing, PendingRelease
from dpfedmeta.analytics.secure_counts import counts_of, released_counts, sent_counts
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.samplers import Cohort


def base(clients=40, noise=1.0, **changes):
    return PrivacyPlan(clients=clients, cohort=float(clients), rounds=1, noise_multiplier=noise, **changes)


def asking(analysis, seed=1, size=40, noise=1.0):
    """Everybody is asked."""
    cohort = Cohort(round=0, clients=np.arange(size))
    plan = analysis.planned(base(size, noise))
    return PendingRelease(plan=plan, cohort=cohort, source=KeyedSource(seed))


def counted(own, answer):
    """Released counts of clients that each answer with a vector."""
    bits = own.plan.at(0).whole.bits

    def handing(client):
        return Handing(plan=own.plan, told=b"", held=None, client=client, invited=own.cohort.asked, source=own.source)

    vectors = [sent_counts(handing(client), answer(client)) for client in own.cohort.clients.tolist()]
    total = np.sum(vectors, axis=0) % (1 << bits)
    sums = SimpleNamespace(entered=len(vectors), part=lambda index: total)
    released = released_counts(own, sums, own.source.generator(Purpose.SERVER_NOISE, 0))
    return SimpleNamespace(values=counts_of(released), deviation=released.noise_deviation)


def with_noise(plan, noise):
    return replace(plan, noise_multiplier=noise)
