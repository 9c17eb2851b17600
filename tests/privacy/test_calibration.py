import math
from dataclasses import replace

import pytest

from dpfedmeta.errors import RefusedPlan
from dpfedmeta.privacy.accounting import guarantees
from dpfedmeta.privacy.calibration import Targets, calibrate
from dpfedmeta.privacy.plan import PrivacyPlan, RecordLayer

BASE = PrivacyPlan(clients=400_000, cohort=1500, rounds=266, noise_multiplier=0.0)
LAYER = RecordLayer(support_noise=1.0, query_noise=1.0, support_steps=5, support_records=25, query_records=25)
AGRLR = replace(BASE, record=LAYER, max_participations=1)


def epsilon(plan, unit, observer):
    return next(g.epsilon for g in guarantees(plan) if (g.unit, g.observer) == (unit, observer))


@pytest.mark.parametrize("target", [0.3, 1.5, 8.0])
@pytest.mark.parametrize(("cohort", "rounds"), [(1500, 266), (50, 20)])
def test_client_noise_meets_its_target_and_wastes_less_than_one_percent(target, cohort, rounds):
    plan = calibrate(replace(BASE, cohort=cohort, rounds=rounds), Targets(client_epsilon=target))
    assert 0.99 * target <= epsilon(plan, "client", "public") <= target


def test_the_designs_noise_is_found():
    plan = calibrate(BASE, Targets(client_epsilon=1.5))
    assert plan.noise_multiplier == pytest.approx(0.755, rel=0.01)


def test_record_noise_is_balanced_and_meets_its_target():
    plan = calibrate(AGRLR, Targets(record_epsilon=2.5))
    assert plan.record.query_noise == pytest.approx(1.634, rel=0.01)
    assert plan.record.support_noise == pytest.approx(math.sqrt(5) * plan.record.query_noise)
    assert 0.99 * 2.5 <= epsilon(plan, "record", "server") <= 2.5


def test_record_noise_without_a_cap_pays_for_the_worst_participation():
    capped = calibrate(AGRLR, Targets(record_epsilon=2.5))
    free = calibrate(replace(AGRLR, max_participations=None), Targets(record_epsilon=2.5))
    assert free.record.query_noise > capped.record.query_noise
    assert 0.99 * 2.5 <= epsilon(free, "record", "server") <= 2.5


def test_record_noise_towards_the_public_is_not_above_its_target():
    stacked = replace(AGRLR, noise_mode="stacked")
    plan = calibrate(stacked, Targets(record_epsilon=2.0, record_observer="public"))
    assert 0.99 * 2.0 <= epsilon(plan, "record", "public") <= 2.0


def test_both_targets_together_are_both_met():
    plan = calibrate(AGRLR, Targets(client_epsilon=1.5, record_epsilon=2.5))
    assert epsilon(plan, "client", "public") <= 1.5
    assert epsilon(plan, "record", "server") <= 2.5


def test_an_unreachable_target_says_which_cell_and_what_helps():
    plan = replace(BASE, client_delta=1e-300)
    with pytest.raises(RefusedPlan, match=r"\(client, public\).*raise epsilon or delta"):
        calibrate(plan, Targets(client_epsilon=1e-9))
