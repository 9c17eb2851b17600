"""Findings of many runs: what they state is of the sample, the cell and the confidence that they were made with."""

import math

import numpy as np
import pytest

from dpfedmeta.accounting.events.guarantee import Bound, Guarantee
from dpfedmeta.auditing.estimators.many_runs import (
    BY_COUNTS,
    BY_CURVE,
    SECOND_MISS,
    Ratios,
    confirmation_of,
    findings_of,
)
from dpfedmeta.auditing.trade_off_function import best_threshold, epsilon_of_counts


class Curve:
    """Of a mechanism that is told apart with probability (1 + 0.4 / noise) / 2."""

    def total_variation(self, noise):
        return min(0.4 / noise, 1.0)

    def epsilon(self, noise):
        return 1.0 / noise


def cell(delta):
    bound = Bound(method="pld", epsilon=0.1, event="", formula="")
    return Guarantee(unit="client", observer="public", delta=delta, adjacency="add-remove", bounds=(bound,))


def of_failures(share, runs=1000):
    """A program that tells all with this probability in one world, and nothing else: it is (0, share)-private."""
    one = np.zeros(runs)
    one[: int(share * runs)] = 10.0
    return Ratios(one=one, other=np.zeros(runs))


@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_what_delta_allows_is_no_finding(delta):
    found, again = of_failures(delta), of_failures(delta, 4000)
    (_, free) = findings_of(found, cell(delta), None, 0.05)
    assert free.audited == epsilon_of_counts(found.one, found.other, delta, 0.05) == 0.0
    second = confirmation_of(free, found, again, cell(delta), None)
    assert second.audited == 0.0
    # The same program against a promise of another delta is refuted by both.
    strict = cell(delta / 100)
    (_, seen) = findings_of(found, strict, None, 0.05)
    assert seen.audited > 1.0
    assert confirmation_of(seen, found, again, strict, None).audited > 1.0


@pytest.mark.parametrize("miss", [0.05, 0.2])
def test_findings_state_their_sample_and_their_confidence(miss):
    found = Ratios(one=np.array([1.0] * 90 + [-1.0] * 10), other=np.array([-1.0] * 80 + [1.0] * 40))
    again = Ratios(one=np.array([1.0] * 900), other=np.array([-1.0] * 880 + [1.0] * 20))
    curve, free = findings_of(found, cell(1e-5), Curve(), miss)
    assert (curve.audit, curve.method, free.audit, free.method) == ("distinguish", BY_CURVE, "many-runs", BY_COUNTS)
    for each in (curve, free):
        assert (each.runs, each.right, each.second, each.delta) == (220, 170, False, 1e-5)
        assert each.confidence == pytest.approx(1 - miss)
        assert math.isfinite(each.audited)
    # Less confidence sees more.
    assert next(findings_of(found, cell(1e-5), Curve(), miss / 10)).audited < curve.audited
    for first in (curve, free):
        second = confirmation_of(first, found, again, cell(1e-5), Curve())
        assert (second.audit, second.method, second.second) == (first.audit, first.method, True)
        assert (second.runs, second.right, second.confidence) == (1800, 1780, pytest.approx(1 - SECOND_MISS))
    # By the one test that the first sample chose.
    chosen = best_threshold(found.one, found.other, 1e-5, SECOND_MISS)
    assert second.audited == chosen.epsilon(again.one, again.other, 1e-5, SECOND_MISS)


def test_without_a_curve_there_is_no_finding_by_it():
    curve, _ = findings_of(of_failures(0.1), cell(1e-5), None, 0.05)
    assert (curve.audited, curve.runs) == (None, 2000)


def test_the_second_sample_is_judged_at_the_threshold_of_the_first():
    """How far beyond it the second sample lies does not count, so no other threshold can be looked for there."""
    found = Ratios(one=np.array([1.0] * 90 + [-1.0] * 10), other=np.array([-1.0] * 90 + [1.0] * 10))
    (_, free) = findings_of(found, cell(1e-5), None, 0.05)
    one = np.array([50.0] * 900 + [-50.0] * 100)
    near, far = (Ratios(one=one, other=np.array([-50.0] * 900 + [beyond] * 100)) for beyond in (2.0, 50.0))
    seen = [confirmation_of(free, found, again, cell(1e-5), None).audited for again in (near, far)]
    assert seen[0] == seen[1] > 0
