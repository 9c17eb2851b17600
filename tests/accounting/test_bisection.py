"""Searches for the point where a bound meets its target, on curves whose point is known beforehand."""

import itertools
import math

import pytest

from dpfedmeta.accounting import bisection
from dpfedmeta.accounting.bisection import TOLERANCE, largest_whole, smallest_noise
from dpfedmeta.accounting.divergences.pld_composition import MOST_ROUNDS
from dpfedmeta.core.errors import RefusedPlan

# What is reached at a number, where `at` is the largest that is within the target.
CURVES = {
    "power": lambda number, at: (number / (at + 0.5)) ** 0.5,
    "steep": lambda number, at: (number / (at + 0.5)) ** 3,
    "line": lambda number, at: number / (at + 0.5),
    "step": lambda number, at: 0.3 if number <= at else 1.7,
    "step to the end": lambda number, at: 1.0 if number <= at else math.inf,
    "from nothing": lambda number, at: 0.0 if number <= at else 40.0,
}


def asked_for(curve, at, limit, least=1):
    """(what was found, every number that was looked at)."""
    asked = []

    def reached(number):
        asked.append(number)
        return CURVES[curve](number, at), "a cell: epsilon = 3 is above the target 2"

    return largest_whole(reached, limit, "a.knob", least), asked


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64, 100])
@pytest.mark.parametrize("curve", CURVES)
def test_the_largest_number_is_found_wherever_it_lies(curve, limit):
    """Up to the limit, which is looked at where it may be it, and nothing beyond it ever is."""
    for at in range(1, limit + 3):
        found, asked = asked_for(curve, at, limit)
        assert found == min(at, limit)
        assert max(asked) <= limit
        assert min(asked) == 1


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("at", [7, 8, 9, 31, 1000, 12_345])
def test_a_search_that_begins_above_one_finds_the_same(curve, at):
    found, asked = asked_for(curve, at, 10**6, least=7)
    assert found == at
    assert min(asked) == 7


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("at", [MOST_ROUNDS - 1, MOST_ROUNDS, MOST_ROUNDS + 1, 3 * MOST_ROUNDS, 10**9])
def test_far_away_it_takes_few_looks(curve, at):
    found, asked = asked_for(curve, at, 10**10)
    assert found == at
    assert len(asked) < 90
    assert len(asked) == len({*asked})


@pytest.mark.parametrize("behind", [1, 2, 1000])
def test_where_another_bound_takes_over_the_jump_is_looked_at_first(behind):
    """Below it almost nothing is reached, and above it far too much: no guess by a power would find it."""

    def reached(number):
        return (1e-6 * number if number <= MOST_ROUNDS else 1e9), ""

    assert largest_whole(reached, MOST_ROUNDS + behind, "a.knob") == min(10**6, MOST_ROUNDS)
    assert largest_whole(lambda n: (0.0 if n <= MOST_ROUNDS else 2.0, ""), MOST_ROUNDS + behind, "") == MOST_ROUNDS


@pytest.mark.parametrize("least", [1, 8])
def test_where_not_even_the_least_is_within_the_target_the_knob_is_named(least):
    with pytest.raises(RefusedPlan) as refused:
        asked_for("step", least - 1, 100, least)
    words = f"a cell: epsilon = 3 is above the target 2 even with a.knob = {least}; raise the noise, the target or "
    assert str(refused.value) == words + "delta"
    # A share of exactly 1 is within it.
    assert asked_for("step to the end", least, 100, least)[0] == least


FALLING = {
    "inverse": lambda noise: 3.0 / noise,
    "square": lambda noise: 5.0 / noise**2,
    "slow": lambda noise: 2.0 / noise**0.5,
    "with a floor": lambda noise: 0.01 + 1.0 / noise,
    "two powers": lambda noise: 4.0 / noise + 0.1 / noise**3,
}


@pytest.mark.parametrize("curve", FALLING)
@pytest.mark.parametrize(("epsilon", "start"), list(itertools.product((0.05, 1.0, 7.0), (1e-3, 1.0, 500.0))))
def test_the_smallest_noise_is_enough_and_hardly_more_wherever_the_search_begins(curve, epsilon, start):
    reached, asked = FALLING[curve], []
    found = smallest_noise(lambda noise: asked.append(noise) or reached(noise), epsilon, "(client, public)", start)
    assert epsilon * (1 - TOLERANCE) <= reached(found) <= epsilon
    assert len(asked) < 60


def test_a_noise_beside_a_jump_is_the_one_that_is_enough():
    for edge in (0.3, 1.2345, 80.0):
        found = smallest_noise(lambda noise, edge=edge: 9.0 if noise < edge else 0.5, 2.0, "", 1.0)
        assert edge <= found <= edge * (1 + 1e-8)


def test_where_hardly_any_noise_is_enough_the_search_ends():
    asked = []
    found = smallest_noise(lambda noise: asked.append(noise) or 0.0, 1.0, "(client, public)", 1.0)
    assert 0 < found < 1e-6
    assert len(asked) < 60


@pytest.mark.parametrize("start", [1.0, 3.0])
def test_where_no_noise_is_enough_the_cell_is_named_and_the_largest_that_was_tried(start):
    asked = []
    with pytest.raises(RefusedPlan) as refused:
        smallest_noise(lambda noise: asked.append(noise) or 5.0, 2.0, "(record, server)", start)
    assert str(refused.value).startswith("(record, server): epsilon = 2.0 is out of reach at this delta")
    assert f"even at a noise multiplier of {max(asked):.0e}; raise epsilon or delta" in str(refused.value)
    # One in reach of the last is found, and no larger one is tried.
    assert bisection._LARGEST_NOISE / 2 < max(asked) <= bisection._LARGEST_NOISE
    edge = max(asked)
    assert smallest_noise(lambda noise: 5.0 if noise < edge else 1.0, 2.0, "", start) == pytest.approx(edge, rel=1e-8)
