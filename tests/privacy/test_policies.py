import math

import numpy as np
import pytest
import torch

from dpfedmeta.errors import InputError
from dpfedmeta.privacy.mechanisms import GaussianMechanism
from dpfedmeta.privacy.policies import Constant, Window, observe
from dpfedmeta.privacy.units import Bounded, Client
from dpfedmeta.randomness import KeyedSource, Purpose

SOURCE = KeyedSource(3)


def release(value, bound, z, cohort, round_):
    query = Bounded[Client, dict](value={"g": value * cohort}, sensitivity=bound)
    mechanism = GaussianMechanism(total_multiplier=z, charged_multiplier=z, denominator=cohort)
    return mechanism.release(query, SOURCE.generator(Purpose.SERVER_NOISE, round_))


def simulate(policy, *, size, cohort, z, rounds, seed=0, consensus=0.3):
    """Clients with log-normal gradient norms around 1 that share one direction in part; returns the bounds."""
    generator = np.random.default_rng(seed)
    state, bounds = policy.initial(), []
    direction = torch.zeros(size)
    direction[0] = 1.0
    for round_ in range(rounds):
        norms = np.exp(generator.normal(0.0, 0.4, cohort))
        clipped = np.minimum(norms, state.bound).mean()
        signal = direction * clipped * consensus
        state, bound = policy.next_bound(state, release(signal, state.bound, z, cohort, round_))
        bounds.append(bound)
    return np.array(bounds)


def test_a_constant_policy_stays():
    policy = Constant(initial_bound=0.3)
    state, bound = policy.next_bound(policy.initial(), release(torch.ones(3), 0.3, 1.0, 10, 0))
    assert bound == state.bound == 0.3


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("size", "cohort"), [(1_000, 200), (30_000, 500), (300_000, 2_000)])
def test_the_window_policy_finds_the_knee_from_far_above_and_far_below(factor, size, cohort):
    rounds = 40 if size > 100_000 else 60
    bounds = simulate(Window(initial_bound=factor), size=size, cohort=cohort, z=0.7, rounds=rounds)
    centre = np.exp(np.log(bounds[-12:]).mean())
    assert 0.2 < centre < 3.0


def test_the_window_policy_neither_collapses_nor_explodes_over_a_long_run():
    bounds = simulate(Window(initial_bound=0.5), size=28_485, cohort=200, z=1.0, rounds=250)
    assert bounds[50:].min() > 0.1
    assert bounds[50:].max() < 10.0


def test_where_noise_hides_the_signal_the_bound_falls_but_stays_within_its_range():
    policy = Window(initial_bound=1.0, search_range=100.0)
    bounds = simulate(policy, size=100_000, cohort=50, z=5.0, rounds=60, consensus=0.0)
    assert bounds[-1] < 0.1
    assert bounds.min() >= 0.01 / policy.probe * (1 - 1e-9)
    assert np.isfinite(bounds).all()


def test_the_known_noise_energy_is_subtracted_without_bias():
    signal = torch.zeros(10_000)
    signal[0] = 0.02
    energies = [observe(1.0, release(signal, 1.0, 0.5, 200, r)) for r in range(300)]
    mean = np.mean([o.energy for o in energies])
    spread = np.std([o.energy for o in energies])
    assert mean == pytest.approx(0.02**2, abs=4 * spread / math.sqrt(300))
    assert spread == pytest.approx(np.mean([o.spread for o in energies]), rel=0.15)


def test_the_next_bound_is_a_function_of_releases_alone():
    # Replay: the same releases give the same bounds, whatever the clients' data were.
    policy = Window(initial_bound=0.5)
    releases = [release(torch.randn(50, generator=torch.Generator().manual_seed(r)), 0.5, 1.0, 9, r) for r in range(9)]
    runs = []
    for _ in range(2):
        state, bounds = policy.initial(), []
        for aggregate in releases:
            state, bound = policy.next_bound(state, aggregate)
            bounds.append(bound)
        runs.append(bounds)
    assert runs[0] == runs[1]


def test_extreme_and_zero_aggregates_leave_the_bound_finite():
    policy = Window(initial_bound=1.0)
    state = policy.initial()
    for round_, scale in enumerate((0.0, 1e18, 0.0, 1e-18, 1e18)):
        state, bound = policy.next_bound(state, release(torch.full((10,), scale), state.bound, 1.0, 1, round_))
        assert 0 < bound < math.inf


def test_a_window_of_one_is_refused():
    with pytest.raises(InputError, match=r"clip\.window"):
        Window(initial_bound=1.0, window=1)
