import math

import pytest

from benchmarks.paper_claims import as_json, compare, published_settings
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon

SETTINGS = {published.title: published for published in published_settings()}


def lines(title):
    return {line.counted: line.epsilon for line in compare(next(p for t, p in SETTINGS.items() if title in t))}


def test_every_claim_is_compared_line_by_line_with_reasons():
    for published in SETTINGS.values():
        found = compare(published)
        assert found[0].epsilon == published.claimed.epsilon
        assert len(found) >= 5
        assert all(line.reason for line in found)
        assert math.isinf(found[-1].epsilon)
        # Its own accounting stays within its claim; the tight composition of the same is below it.
        assert found[2].epsilon < found[1].epsilon <= found[0].epsilon


def test_dp_agr_with_the_designs_cohort():
    found = lines("larger cohort")
    assert found["RDP, Poisson sampling, q = 0.00375, 266 rounds"] == pytest.approx(1.128, rel=0.01)
    assert found["PLD of the same"] == pytest.approx(0.475, rel=0.01)
    assert found["no sampling, one participation"] == pytest.approx(gaussian_epsilon(1.0, 1e-6))


def test_dp_agrlr_without_amplification_is_the_designs_number():
    found = lines("DP-AGRLR")
    assert found["no sampling, 1 participation"] == pytest.approx(11.48, rel=0.01)
    assert found["all 5 inner steps"] > found["PLD of the same"]


def test_json_has_null_for_infinity():
    published = next(iter(SETTINGS.values()))
    assert as_json(published, compare(published))["lines"][-1]["epsilon"] is None
