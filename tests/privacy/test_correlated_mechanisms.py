"""The mechanisms of correlated noise: what they add is C^-1 Z in units of the bound, and their state is their own."""

import math
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz

from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS, Correlation
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import with_fitted_numbers
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose
from dpfedmeta.privacy.mechanisms import check_mechanism, mechanism_of
from dpfedmeta.privacy.units import Bounded, ClientUnit

ROUNDS, SIZE = 9, 4000
FORM = {"a": torch.zeros(SIZE - 5), "b": torch.zeros(5)}


def mechanism(name):
    plan = PrivacyPlan(
        clients=100,
        cohort=10.0,
        rounds=ROUNDS,
        noise_multiplier=2.0,
        noise=name,
        correlation=Correlation(separation=4, buffers={"banded": 3}.get(name)),
    )
    return mechanism_of(with_fitted_numbers(plan))


def query(value, bound):
    return Bounded[ClientUnit, dict](value=value, sensitivity=bound)


def released(own, sums, bounds, seed=1):
    state, values, deviations = own.init(FORM), [], []
    for round_, (value, bound) in enumerate(zip(sums, bounds, strict=True)):
        generator = KeyedSource(seed).generator(Purpose.SERVER_NOISE, round_)
        release, state = own.release(round_, query(value, bound), state, generator)
        values.append(torch.cat([part.reshape(-1) for part in release.value.values()]).double().numpy())
        deviations.append(release.noise_deviation)
    return np.stack(values), deviations, state


@pytest.mark.parametrize("name", KINDS)
def test_the_noise_is_that_of_the_inverse_matrix_in_units_of_each_rounds_bound(name):
    own = mechanism(name)
    bounds = np.geomspace(0.1, 3.0, ROUNDS)
    sums = [{key: torch.full_like(value, t) for key, value in FORM.items()} for t in range(ROUNDS)]
    values, deviations, _ = released(own, sums, bounds)
    fresh = np.stack([KeyedSource(1).generator(Purpose.SERVER_NOISE, t).normal(SIZE) for t in range(ROUNDS)])
    inverse = np.linalg.inv(toeplitz(own.noise.coefficients(ROUNDS), np.zeros(ROUNDS)))
    expected = (np.arange(ROUNDS)[:, None] + 2.0 * bounds[:, None] * (inverse @ fresh)) / 10.0
    assert np.allclose(values, expected, rtol=1e-5, atol=1e-6)
    assert deviations == pytest.approx((2.0 * bounds * np.linalg.norm(inverse, axis=1) / 10.0).tolist())


@pytest.mark.parametrize("name", KINDS)
def test_what_anybody_can_undo_leaves_independent_noise_of_the_planned_deviation(name):
    """Statistical, by the released values alone: C times the releases over their bounds has covariance z^2."""
    own = mechanism(name)
    bounds = np.geomspace(3.0, 0.1, ROUNDS)
    values, _, _ = released(own, [FORM] * ROUNDS, bounds)
    undone = toeplitz(own.noise.coefficients(ROUNDS), np.zeros(ROUNDS)) @ (values * 10.0 / bounds[:, None])
    covariance = undone @ undone.T / SIZE
    assert np.abs(covariance - 4.0 * np.eye(ROUNDS)).max() < 5.5 * 4.0 * math.sqrt(2 / SIZE)
    # Later rounds take noise back: the sum of all is less noisy than independent noise would be.
    assert np.var((values / bounds[:, None]).sum(axis=0)) < 0.5 * ROUNDS * 4.0 / 100.0


@pytest.mark.parametrize("name", KINDS)
def test_a_state_that_was_kept_goes_on_bit_for_bit_and_no_release_changes_it(name):
    own = mechanism(name)
    state = own.init(FORM)
    for round_ in range(6):
        generator = KeyedSource(2).generator(Purpose.SERVER_NOISE, round_)
        before, kept = (deepcopy(state) for _ in range(2))
        first, following = own.release(round_, query(FORM, 1.0), state, generator)
        generator = KeyedSource(2).generator(Purpose.SERVER_NOISE, round_)
        second, _ = mechanism(name).release(round_, query(FORM, 1.0), before, generator)
        assert all(torch.equal(first.value[key], second.value[key]) for key in FORM)
        assert all(np.array_equal(kept[key], state[key]) for key in state)
        state = following
    assert len(state["vectors"]) == {"toeplitz": ROUNDS - 1, "blt": 3, "banded": 3}[name]


def test_the_state_of_another_round_and_noisy_messages_are_refused():
    own = mechanism("blt")
    generator = KeyedSource(2).generator(Purpose.SERVER_NOISE, 1)
    with pytest.raises(ValueError, match="the noise is that of round 0"):
        own.release(1, query(FORM, 1.0), own.init(FORM), generator)
    with pytest.raises(ValueError, match="carries noise"):
        own.release(0, replace(query(FORM, 1.0), noise_variance=0.1), own.init(FORM), generator)


@pytest.mark.parametrize("name", KINDS)
def test_it_costs_what_the_plan_states(name):
    own = mechanism(name)
    check_mechanism(own, own.plan)
    assert own.event(3) == own.plan.at(3)
