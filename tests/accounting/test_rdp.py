import itertools
import math
from dataclasses import replace

import pytest
from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

from dpfedmeta.accounting.divergences import rdp as moments
from dpfedmeta.accounting.divergences.rdp import ORDERS, PARTS, moments_of, rdp_epsilon
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

BASE = PrivacyPlan(clients=400_000, cohort=1500, rounds=266, noise_multiplier=1.0)
# From epsilon in the thousands to less than 0.01, where the best order is above a thousand.
NOISES, ROUNDS = (0.3, 20.0, 300.0), (1, 40)


def by_all_orders(phases, delta):
    return compute_epsilon(ORDERS, moments_of(phases, ORDERS), delta)


@pytest.mark.parametrize("delta", [1e-3, 1e-10])
def test_orders_that_are_left_out_would_not_have_been_the_least(delta):
    best = set()
    for noise, rounds in itertools.product(NOISES, ROUNDS):
        phases = replace(BASE, noise_multiplier=noise, rounds=rounds).phases
        epsilon, order = by_all_orders(phases, delta)
        assert rdp_epsilon(phases, delta) == epsilon
        best.add(next(number for number, part in enumerate(PARTS) if order <= part[-1]))
    assert len(best) > 1


def test_an_end_too_early_would_be_seen(monkeypatch):
    monkeypatch.setattr(moments, "PARTS", PARTS[:1])
    phases = replace(BASE, noise_multiplier=300.0, rounds=1).phases
    assert rdp_epsilon(phases, 1e-6) > by_all_orders(phases, 1e-6)[0]


def test_long_sums_are_left_out_where_a_short_one_is_the_least(monkeypatch):
    asked = []

    def noted(phases, orders):
        asked.append(orders)
        return moments_of(phases, orders)

    monkeypatch.setattr(moments, "moments_of", noted)
    assert math.isfinite(rdp_epsilon(BASE.phases, 1e-6))
    assert asked == [PARTS[0]]
    fixed = replace(BASE, sampler="fixed").phases
    assert math.isfinite(rdp_epsilon(fixed, 1e-6, patient=False))
    assert asked == [PARTS[0]] * 2
    assert math.isfinite(rdp_epsilon(fixed, 1e-6))
    assert asked[2:] == list(PARTS)
