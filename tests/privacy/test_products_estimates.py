"""Estimates from products of releases against formulas written apart, pair by pair."""

import math
from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from dpfedmeta.privacy.clip_policies import window_products_policy
from dpfedmeta.privacy.clip_policies.window_policy import Walk
from dpfedmeta.privacy.clip_policies.window_products_policy import ProductsState, WindowProducts, estimate
from dpfedmeta.privacy.mechanisms import post_process

WALK = Walk(lowest=0.2, highest=5.0, target_elasticity=0.8, probe=1.5, gain=0.9)


def state_of(count, seed, signal):
    """Releases of other bounds and deviations each, with a common direction."""
    random = np.random.default_rng(seed)
    bounds, deviations = random.uniform(0.3, 3.0, count), random.uniform(0.2, 1.4, count)
    releases = [
        signal * bound**0.6 * np.linspace(0.2, 1.0, 9) + deviation * random.normal(size=9)
        for bound, deviation in zip(bounds, deviations, strict=True)
    ]
    products = tuple(tuple(float(releases[i] @ releases[j]) for j in range(i + 1)) for i in range(count))
    return ProductsState(
        centre=1.0, bound=1.5, bounds=tuple(bounds), deviations=tuple(deviations), releases=tuple(releases),
        products=products,
    )  # fmt: skip


def by_hand(state, expected):
    """(significance, elasticity): pairs of releases one by one, and each elasticity of the grid by itself."""
    size, variance = len(state.releases[0]), [deviation**2 for deviation in state.deviations]
    energies = [row[-1] - own * size for row, own in zip(state.products, variance, strict=True)]
    logs = [math.log(bound) for bound in state.bounds]
    middle = sum(logs) / len(logs)
    found, alone, whole, slopes = [], [], [], []
    for i, j in combinations_with_replacement(range(len(logs)), 2):
        twice = 2.0 if i == j else 1.0
        found.append(energies[i] if i == j else state.products[j][i])
        alone.append(variance[i] * variance[j] * size * twice)
        crossed = variance[i] * max(energies[j], 0.0) + variance[j] * max(energies[i], 0.0)
        whole.append(alone[-1] + crossed * twice)
        slopes.append(logs[i] + logs[j] - 2 * middle)
    significance = sum(each / math.sqrt(own) for each, own in zip(found, alone, strict=True)) / math.sqrt(len(found))
    beliefs = []
    for off in np.linspace(-1.35, 1.35, 55):
        form = [math.exp((expected + off) * slope) for slope in slopes]
        above = sum(f * each / own for f, each, own in zip(form, found, whole, strict=True))
        level = max(above / sum(f * f / own for f, own in zip(form, whole, strict=True)), 0.0)
        misfit = sum((each - level * f) ** 2 / own for f, each, own in zip(form, found, whole, strict=True))
        beliefs.append((expected + off, -0.5 * misfit - 0.5 * off**2))
    most = max(belief for _, belief in beliefs)
    weights = [(each, math.exp(belief - most)) for each, belief in beliefs]
    return significance, sum(each * own for each, own in weights) / sum(own for _, own in weights)


@pytest.mark.parametrize("signal", [0.0, 0.4, 3.0])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("expected", [0.85, 0.3])
def test_significance_and_elasticity_are_those_of_all_pairs(count, signal, expected):
    state = state_of(count, 54 + count, signal)
    assert estimate(state, expected) == pytest.approx(by_hand(state, expected), rel=1e-5)


@pytest.fixture
def walked(monkeypatch):
    """(centre, mode, whether a signal was seen) after a release of this significance and elasticity."""

    def found(significance, elasticity=0.5, **changes):
        asked = []
        monkeypatch.setattr(
            window_products_policy,
            "estimate",
            lambda state, expected: asked.append(expected) or (significance, elasticity),
        )
        state = replace(state_of(2, 1, 1.0), **{"centre": 1.1, "bound": 1.65, **changes})
        policy = WindowProducts(initial_bound=1.0, window=3, walk=WALK)
        release = post_process(lambda: {"w": np.ones(9)}, (), 0.5)
        after, bound = policy.next_bound(state, release)
        assert bound == after.bound
        # On the other side of its centre than the last one.
        assert bound == pytest.approx(after.centre / 1.5 if state.bound > state.centre else after.centre * 1.5)
        assert asked == [0.8]
        return after.centre, after.mode, after.seen

    return found


@pytest.mark.parametrize("seen", [False, True])
def test_a_centre_follows_what_is_visible_and_falls_where_nothing_is(walked, seen):
    moved = pytest.approx(1.1 * math.exp(0.9 * (0.5 - 0.8)))
    assert walked(2.001, seen=seen) == (moved, "following", True)
    fallen = pytest.approx(1.1 / (1.2 if seen else 1.6))
    for little in (2.0, 0.0, -5.0):
        assert walked(little, seen=seen) == (fallen, "searching", seen)


def test_at_the_end_a_signal_has_to_be_certain(walked):
    low = {"centre": 0.2, "bound": 0.3}
    assert walked(3.001, elasticity=2.0, **low) == (pytest.approx(0.2 * math.exp(0.9 * 1.2)), "following", True)
    for little in (3.0, 2.5, 0.0):
        assert walked(little, **low) == (0.2, "holding", False)
    # Just above the end, what is visible is enough.
    assert walked(2.5, elasticity=0.8, centre=0.2001, bound=0.1)[:2] == (pytest.approx(0.2001), "following")


def test_one_release_moves_nothing():
    policy = WindowProducts(initial_bound=1.0, window=3, walk=WALK)
    first = policy.initial()
    assert (first.centre, first.bound, first.mode, first.seen) == (1.0, 1.5, "searching", False)
    after, bound = policy.next_bound(first, post_process(lambda: {"w": np.full(9, 100.0)}, (), 0.5))
    assert (after.centre, bound, after.mode, after.seen) == (1.0, 1.0 / 1.5, "searching", False)
