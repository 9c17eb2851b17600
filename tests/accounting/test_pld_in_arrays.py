"""What is computed in arrays has the bits of dp-accounting, which goes through the losses one by one."""

import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld.common import compute_self_convolve_bounds
from dp_accounting.pld.pld_pmf import DensePLDPmf, create_pmf_pessimistic_connect_dots_fixed_gap
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, from_gaussian_mechanism

from dpfedmeta.accounting.divergences.pld_in_arrays import (
    epsilon_of,
    kept,
    replaced_gaussian,
    rounded_up,
    self_composed,
)


def same(ours, other):
    assert ours._symmetric == other._symmetric
    for one, two in ((ours._pmf_remove, other._pmf_remove), (ours._pmf_add, other._pmf_add)):
        assert type(one) is type(two)
        one, two = one.to_dense_pmf(), two.to_dense_pmf()
        assert np.array_equal(one._probs, two._probs)
        names = ("_lower_loss", "_infinity_mass", "_discretization", "_pessimistic_estimate")
        assert [getattr(one, name) for name in names] == [getattr(two, name) for name in names]


def gaussian(rate, noise, grid, relation=NeighboringRelation.ADD_OR_REMOVE_ONE):
    return from_gaussian_mechanism(
        standard_deviation=noise,
        sampling_prob=rate,
        value_discretization_interval=grid,
        neighboring_relation=relation,
    )


# A few losses, about as many as are kept one by one, and many; sampled hardly, and not at all.
PAIRS = [(1e-3, 8.0, 3e-3), (0.02, 0.5, 3e-3), (0.5, 1.3, 3e-3), (0.5, 8.0, 3e-3), (1.0, 1.3, 1e-2)]


@pytest.mark.parametrize(("rate", "noise", "grid"), PAIRS)
def test_a_replaced_unit(rate, noise, grid):
    same(replaced_gaussian(rate, noise, grid), gaussian(rate, noise, grid, NeighboringRelation.REPLACE_ONE))


@pytest.mark.parametrize("rounds", [1, 2, 40])
@pytest.mark.parametrize(("rate", "noise", "grid"), PAIRS)
def test_rounds_in_a_row_and_their_epsilons(rate, noise, grid, rounds):
    one = gaussian(rate, noise, grid)
    ours, other = self_composed(one, rounds), one.self_compose(rounds)
    same(ours, other)
    for delta in (0.3, 1e-3, 1e-8, 1e-13, 1e-15):
        assert epsilon_of(ours, delta) == other.get_epsilon_for_delta(delta)


@pytest.mark.parametrize("rounds", [1, 30, 1001, 10**6])
def test_no_more_is_cut_off(rounds):
    generator = np.random.default_rng(1)
    for size in (1, 2, 300, 5000):
        for probabilities in (np.ones(size) / size, generator.dirichlet(np.full(size, 0.01)), np.zeros(size)):
            with np.errstate(all="ignore"):
                assert kept(probabilities, rounds) == compute_self_convolve_bounds(probabilities, rounds, 1e-15)


@pytest.mark.parametrize("size", [1, 2, 999, 1000, 1001, 3000])
def test_divergences_on_a_grid(size):
    deltas = np.sort(np.random.default_rng(size).random(size))[::-1]
    # Rounding may let them rise a little.
    deltas[size // 2 :] = np.minimum(deltas[size // 2 :] + 1e-13, 1.0)
    low, high = -size // 3, -size // 3 + size - 1
    ours = rounded_up(1e-2, low, high, deltas)
    same(
        PrivacyLossDistribution(ours),
        PrivacyLossDistribution(create_pmf_pessimistic_connect_dots_fixed_gap(1e-2, low, high, deltas)),
    )
    if size > 1:
        with pytest.raises(ValueError, match="non-increasing"):
            rounded_up(1e-2, low, high, deltas[::-1])


@pytest.mark.parametrize("delta", [0.0, 1e-9, 0.1, 0.4, 0.9])
@pytest.mark.parametrize(("lowest", "grid"), [(-30, 0.01), (20_000, 0.1), (-100, 0.2), (5000, 0.1), (-8000, 0.1)])
def test_epsilon_of_any_distribution(lowest, grid, delta):
    """Losses below 0 alone, about 0, and so large that e to minus them is 0; across several blocks."""
    probabilities = 0.7 * np.random.default_rng(3).dirichlet(np.ones(9000 if grid < 0.1 else 3000))
    for failure in (0.0, 0.3):
        together = DensePLDPmf(grid, lowest, probabilities, failure, True)
        found = epsilon_of(PrivacyLossDistribution(together), delta)
        try:
            assert found == together.get_epsilon_for_delta(delta)
        except OverflowError:
            # All of it together is not delta, and e to minus the smallest losses is no float.
            assert found == 0.0
        assert math.isinf(found) == (failure > delta)
