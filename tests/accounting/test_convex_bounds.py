"""Joined parts of a mean: no mass and no mean is lost, however unlike the two parts are."""

from itertools import product

import numpy as np
import pytest

from dpfedmeta.accounting.divergences.convex_bounds import Spread, joined


def spread(seed, lost, mean_lost):
    """A part of mean 1, some of which is followed no more."""
    generator = np.random.default_rng(seed)
    points, mass = np.sort(generator.uniform(0.1, 4.0, 60)), generator.uniform(size=60)
    mass *= (1 - lost) / mass.sum()
    points *= (1 - mean_lost) / (points @ mass)
    return Spread(points=points, mass=mass, lost=lost, mean_lost=mean_lost)


PARTS = [spread(1, 0.0, 0.0), spread(2, 1e-3, 5e-3), spread(3, 2e-6, 0.02), spread(4, 0.05, 0.06)]


@pytest.mark.parametrize(("left", "right"), list(product(range(4), repeat=2)))
@pytest.mark.parametrize("share", [0.5, 0.9, 0.2])
@pytest.mark.parametrize("highest", [20.0, 1.2])
def test_mass_and_mean_stay_and_err_upwards_by_no_more_than_both_losses_at_once(left, right, share, highest):
    one, other = (
        PARTS[left],
        PARTS[right] if left != right else spread(left + 1, PARTS[left].lost, PARTS[left].mean_lost),
    )
    found = joined(one, other, share, np.geomspace(0.01, highest, 400))
    both = one.lost * other.lost
    assert 1 <= found.mass.sum() + found.lost + 1e-12 <= 1 + both + 1e-11
    mean = found.mass @ found.points + found.mean_lost
    # What is lost in both is counted with each of them.
    twice = share * one.mean_lost * other.lost + (1 - share) * other.mean_lost * one.lost
    assert 1 - 1e-12 <= mean <= 1 + twice + 1e-12


@pytest.mark.parametrize("share", [0.5])
def test_two_parts_that_are_alike_are_joined_as_two(share):
    one, grid = PARTS[1], np.geomspace(0.01, 20.0, 400)
    twice, two = joined(one, one, share, grid), joined(one, spread(2, one.lost, one.mean_lost), share, grid)
    assert np.allclose(twice.mass, two.mass, rtol=0, atol=1e-15)
    assert (twice.lost, twice.mean_lost) == pytest.approx((two.lost, two.mean_lost))


def test_a_convex_function_is_bounded_from_above():
    one, other = PARTS[1], PARTS[2]
    found = joined(one, other, 0.3, np.geomspace(0.01, 20.0, 400))
    means = np.add.outer(0.3 * one.points, 0.7 * other.points)
    masses = np.multiply.outer(one.mass, other.mass)
    for kink in (0.5, 1.0, 1.5, 2.5):
        exact = float((masses * np.maximum(means - kink, 0.0)).sum())
        assert float(found.mass @ np.maximum(found.points - kink, 0.0)) >= exact * (1 - 1e-12)
