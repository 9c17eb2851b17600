"""Inverting a delta that is costly, in few evaluations, against the inverse that halves."""

import math

import pytest

from dpfedmeta.accounting.divergences.gdp import epsilon_below, gaussian_delta, gaussian_epsilon


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
