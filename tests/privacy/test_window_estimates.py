"""Estimates of the window policies against formulas written apart: every term, with numbers that tell terms apart."""

import math
from typing import Any

import numpy as np
import pytest

from dpfedmeta.config.clip_settings import ClipSettings
from dpfedmeta.privacy.clip_policies import window_policy
from dpfedmeta.privacy.clip_policies.window_policy import Observation, Walk, Window, observe
from dpfedmeta.privacy.mechanisms import post_process

RANDOM = np.random.default_rng(54)


def observations(count, weak=0):
    """Of which the first `weak` show less signal than noise, or a negative energy."""
    found = []
    for number in range(count):
        bound, energy = float(RANDOM.uniform(0.3, 3.0)), float(RANDOM.uniform(2.0, 9.0))
        if number < weak:
            energy = (-0.7, 0.4, 0.0)[number % 3]
        found.append(Observation(bound=bound, energy=energy, spread=float(RANDOM.uniform(0.5, 1.9))))
    return tuple(found)


def elasticity(seen, otherwise):
    """Least squares of ln|signal| on ln C; (its variance + 1)^-1 of the way from `otherwise`, cut to [-0.5, 2]."""
    x = np.log([each.bound for each in seen])
    floored = np.array([max(each.energy, each.spread) for each in seen])
    slope, _ = np.polyfit(x, 0.5 * np.log(floored), 1)
    # The relative error of an energy, at most 1; half of it is that of the logarithm of its root.
    errors = 0.5 * np.minimum([each.spread for each in seen] / floored, 1.0)
    centred = x - x.mean()
    uncertainty = float(np.sum((errors * centred) ** 2) / np.sum(centred**2) ** 2)
    return otherwise + (min(max(slope, -0.5), 2.0) - otherwise) / (1.0 + uncertainty)


@pytest.mark.parametrize("weak", [0, 1, 2, 3])
@pytest.mark.parametrize("count", [2, 3, 5])
@pytest.mark.parametrize("otherwise", [0.85, 0.2])
def test_the_elasticity_is_a_slope_that_is_believed_as_far_as_it_is_certain(count, weak, otherwise):
    seen = observations(count, weak)
    assert window_policy._elasticity(seen, otherwise=otherwise) == pytest.approx(elasticity(seen, otherwise), rel=1e-9)


@pytest.mark.parametrize(("rise", "cut"), [(9.0, 2.0), (1.0, 0.5), (-9.0, -0.5)])
def test_a_slope_is_cut_before_it_is_believed(rise, cut):
    seen = tuple(
        Observation(bound=bound, energy=bound ** (2 * (rise if cut != 0.5 else 0.5)), spread=1e-9 * bound)
        for bound in (0.7, 1.1, 1.9)
    )
    assert window_policy._elasticity(seen, otherwise=0.85) == pytest.approx(cut, abs=1e-6)


def test_equal_bounds_say_nothing_of_a_slope():
    seen = tuple(Observation(bound=0.7, energy=energy, spread=0.1) for energy in (1.0, 2.0, 5.0))
    assert window_policy._elasticity(seen, otherwise=0.31) == 0.31


@pytest.mark.parametrize("count", [2, 3, 7])
def test_significance_counts_each_release_alike(count):
    seen = observations(count, weak=1)
    due = sum(each.energy / each.spread for each in seen) / math.sqrt(count)
    assert window_policy._significance(seen) == pytest.approx(due)
    silent = (*seen, Observation(bound=1.0, energy=0.0, spread=0.0))
    assert window_policy._significance(silent) == math.inf


@pytest.mark.parametrize("deviation", [0.25, 3.0])
def test_an_observation_is_the_energy_without_that_of_the_noise_and_its_spread(deviation):
    value: Any = {"w": np.arange(7, dtype=np.float32), "b": np.full(4, 0.5, dtype=np.float32)}
    seen = observe(0.6, post_process(lambda: value, (), deviation))
    squared, size = sum(float(np.square(part).sum()) for part in value.values()), 11
    energy = squared - deviation**2 * size
    assert (energy < 0) == (deviation == 3.0)
    spread = math.sqrt(2 * size * deviation**4 + 4 * deviation**2 * max(energy, 0.0))
    assert (seen.bound, seen.energy, seen.spread) == (0.6, pytest.approx(energy), pytest.approx(spread))


WALK = Walk(lowest=0.2, highest=5.0, target_elasticity=0.8, probe=1.5, gain=0.9)


def test_a_walk_goes_by_its_gain_between_its_limits():
    assert WALK.moved(1.1, 0.5) == pytest.approx(1.1 * math.exp(0.9 * (0.5 - 0.8)))
    assert [WALK.moved(1.1, each) for each in (-9.0, 0.8, 9.0)] == [0.2, 1.1, 5.0]
    assert [WALK.within(each) for each in (0.1, 0.2, 3.0, 5.0, 6.0)] == [0.2, 0.2, 3.0, 5.0, 5.0]
    # Around the new centre, on the other side than the last one had of its own: whichever lies where.
    for centre, following in ((1.0, 4.0), (4.0, 1.0)):
        assert WALK.other_side(centre, centre * 1.5, following) == following / 1.5
        assert WALK.other_side(centre, centre / 1.5, following) == following * 1.5
    given = Walk.planned(ClipSettings(initial=0.5, lowest=0.1, highest=2.0))
    assert (given.lowest, given.highest) == (0.1, 2.0)
    usual = Walk.planned(ClipSettings(initial=0.6))
    assert (usual.lowest, usual.highest) == (pytest.approx(0.002), pytest.approx(180.0))


def released(length, deviation=0.01):
    return post_process(lambda: {"w": np.full(4, length / 2, dtype=np.float64)}, (), deviation)


def test_a_centre_falls_by_its_factor_without_a_signal_and_holds_at_the_end():
    policy = Window(initial_bound=1.0, window=3, walk=WALK)
    state = policy.initial()
    assert (state.centre, state.bound, state.mode) == (1.0, 1.5, "searching")
    state, bound = policy.next_bound(state, released(0.0, 2.0))
    assert (state.centre, bound) == (1.0, 1.0 / 1.5)  # one observation moves nothing
    modes, centres = [], []
    for _ in range(6):
        state, bound = policy.next_bound(state, released(0.0, 2.0))
        assert state.bound == bound
        modes.append(state.mode)
        centres.append(state.centre)
    assert centres == pytest.approx([1 / 1.6, 1 / 1.6**2, 1 / 1.6**3, 0.2, 0.2, 0.2])
    assert modes == ["searching"] * 4 + ["holding"] * 2
    # At the end a signal has to be certain: six deviations and not two.
    for energy, mode in ((3.0, "holding"), (20.0, "following")):
        kept = tuple(Observation(bound=own, energy=energy, spread=math.sqrt(2.0)) for own in (0.3, 0.2))
        monkeyed = Window(initial_bound=1.0, window=2, walk=WALK)
        at_end = type(state)(centre=0.2, bound=0.2, observations=kept)
        found, _ = monkeyed.next_bound(at_end, released(math.sqrt(energy + 4 * 0.5), math.sqrt(0.5)))
        assert found.mode == mode, energy


def test_a_signal_between_two_deviations_and_six_is_followed_before_the_end():
    policy = Window(initial_bound=1.0, window=2, walk=WALK)
    for energy, mode in ((1.0, "searching"), (3.0, "following")):
        kept = (Observation(bound=1.5, energy=energy, spread=math.sqrt(2.0)),)
        state = type(policy.initial())(centre=1.0, bound=1.0, observations=kept)
        # Deviation sqrt(0.5) in four coordinates: spread sqrt(2 * 4 * 0.25 + 2 * energy).
        found, _ = policy.next_bound(state, released(math.sqrt(energy + 4 * 0.5), math.sqrt(0.5)))
        assert found.mode == mode, energy
