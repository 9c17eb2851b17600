"""The mechanism of a round is that of its event, and there is none where an event states noise of another kind."""

from dataclasses import replace

import pytest

from dpfedmeta.accounting.events.noise_cost import GaussianNoise, ThresholdedNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.privacy.mechanisms import GaussianMechanism, NoMechanism
from dpfedmeta.privacy.noises.independent import Independent

PLAN = PrivacyPlan(clients=20, cohort=5.0, rounds=2, noise_multiplier=2.0)


def made(monkeypatch, **changes):
    event = replace(PLAN.at(0), **changes)
    monkeypatch.setattr(Independent, "event", lambda self, round_: event)
    return Independent(plan=PLAN).at(0)


def test_total_and_charged_noise_are_those_of_the_event(monkeypatch):
    found = made(monkeypatch, noise=GaussianNoise(multiplier=1.25), total_noise=1.75, cohort=7.0)
    assert found == GaussianMechanism(total_multiplier=1.75, charged_multiplier=1.25, denominator=7.0)


def test_no_noise_at_all_is_no_mechanism(monkeypatch):
    assert made(monkeypatch, noise=None, total_noise=None) == NoMechanism(denominator=5.0)


@pytest.mark.parametrize("noise", [None, ThresholdedNoise(multiplier=1.25, missed=1e-6)])
def test_what_is_not_charged_as_gaussian_noise_is_not_released_as_such(monkeypatch, noise):
    with pytest.raises(ValueError, match="noise multipliers must be finite"):
        made(monkeypatch, noise=noise, total_noise=1.75)
