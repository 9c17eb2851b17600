"""Inverting a delta that is costly, in few evaluations, against the inverse that halves."""

import math

import pytest

from dpfedmeta.accounting.divergences.gdp import _delta, epsilon_below, gaussian_delta, gaussian_epsilon, gaussian_mu


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("above", [1.0, 1.01, 1.5, 40.0])
def test_it_is_the_smallest_epsilon_from_above_in_few_evaluations(mu, delta, above):
    asked = []

    def delta_at(epsilon):
        asked.append(epsilon)
        return float(gaussian_delta(epsilon, mu))

    exact = gaussian_epsilon(mu, delta)
    found = epsilon_below(delta_at, above * exact, delta, 1e-5)
    assert exact * (1 - 1e-9) <= found <= exact * (1 + 1e-5) + 1e-12
    assert float(gaussian_delta(found, mu)) <= delta * (1 + 1e-9)
    assert len(asked) <= 25


def test_it_is_never_above_what_is_known():
    """Where the costly delta does not confirm it, what is known stands."""
    assert epsilon_below(lambda epsilon: 1.0, 3.0, 1e-6, 1e-5) == 3.0
    assert epsilon_below(lambda epsilon: 0.0, 3.0, 1e-6, 1e-5) == 0.0
    assert epsilon_below(lambda epsilon: 0.0, math.inf, 1e-6, 1e-5) == math.inf
    assert epsilon_below(lambda epsilon: 0.0, 0.0, 1e-6, 1e-5) == 0.0


@pytest.mark.parametrize("mu", [1e-300, 1e-6, 0.3, 5.0, 1e4])
def test_of_two_numbers_delta_has_the_same_bits(mu):
    for epsilon in (0.0, 1e-9, 0.1, 1.0, 30.0, 1e3, 1e7):
        assert _delta(epsilon, mu) == float(gaussian_delta(epsilon, mu))


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 20.0])
def test_mu_and_epsilon_are_on_the_safe_side(epsilon):
    mu = gaussian_mu(epsilon, 1e-6)
    assert float(gaussian_delta(epsilon, mu)) <= 1e-6 < float(gaussian_delta(epsilon, mu * (1 + 1e-9)))
    found = gaussian_epsilon(mu, 1e-6)
    assert float(gaussian_delta(found, mu)) <= 1e-6 < float(gaussian_delta(found * (1 - 1e-9), mu))
