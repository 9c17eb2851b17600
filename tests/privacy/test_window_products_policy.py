"""The knee from inner products of releases: held where energies alone lose it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.privacy.clip_policies.window_policy import Walk, Window
from dpfedmeta.privacy.clip_policies.window_products_policy import WindowProducts, estimate
from tests.privacy.test_policies import release, simulate


def products(initial=1.0, window=16):
    return WindowProducts(initial_bound=initial, window=window, walk=Walk(lowest=initial / 300, highest=initial * 300))


def centre(bounds, rounds):
    return float(np.exp(np.log(bounds[-rounds:]).mean()))


@pytest.mark.parametrize("factor", [0.01, 1.0, 100.0])
@pytest.mark.parametrize(("size", "cohort"), [(1_000, 200), (1_000, 5_000), (30_000, 500), (300_000, 1_000)])
def test_it_finds_the_knee_from_far_above_and_far_below(factor, size, cohort):
    bounds = simulate(products(factor), size=size, cohort=cohort, z=0.7, rounds=60)
    assert 0.2 < centre(bounds, 12) < 3.0


# A signal of 0.13 and 0.19 of the noise of one round.
WEAK = {"size": 1_400, "cohort": 500, "z": 3.0, "rounds": 100}


@pytest.mark.parametrize("consensus", [0.03, 0.043])
def test_it_holds_the_knee_where_energies_alone_fall_to_the_limit(consensus):
    held, lost = [], []
    for seed in range(4):
        held += [centre(simulate(products(), **WEAK, consensus=consensus, seed=seed), 50)]
        lost += [centre(simulate(Window(initial_bound=1.0), **WEAK, consensus=consensus, seed=seed), 50)]
    assert min(held) > 0.1
    assert max(lost) < 0.02


def test_a_signal_that_turns_every_round_is_none():
    """What the docstring says of it: products of rounds that do not agree show nothing."""
    policy, state, generator = products(), products().initial(), torch.Generator().manual_seed(5)
    for round_ in range(60):
        signal = torch.randn(WEAK["size"], generator=generator)
        signal *= 0.043 * min(state.bound, 1.0) / signal.norm()
        state, _ = policy.next_bound(state, release(signal, state.bound, WEAK["z"], WEAK["cohort"], round_))
    assert state.mode in ("searching", "holding")
    assert state.centre < 0.2


def remembered(rounds, signal=0.0, size=500, z=1.0, window=8, start=0):
    policy = products(window=window)
    state, direction = policy.initial(), torch.zeros(size)
    direction[0] = signal
    for round_ in range(rounds):
        aggregate = release(direction * state.bound, state.bound, z, 10, start + round_)
        state, _ = policy.next_bound(state, aggregate)
    return state


def test_without_a_signal_its_significance_is_a_standard_normal_number():
    found = [estimate(remembered(8, start=1_000 + 8 * n), 0.85)[0] for n in range(200)]
    assert np.mean(found) == pytest.approx(0.0, abs=4 / math.sqrt(200))
    assert np.std(found) == pytest.approx(1.0, abs=0.2)


def test_the_planted_mistake_of_forgotten_noise_energy_sees_a_signal_where_none_is():
    state = remembered(8, start=5_000)
    assert estimate(state, 0.85)[0] < 4.0
    # As if the diagonal were not corrected.
    planted = replace(state, products=tuple((*row[:-1], row[-1] + 500 * deviation**2) for row, deviation in zip(
        state.products, state.deviations, strict=True)))  # fmt: skip
    assert estimate(planted, 0.85)[0] > 10.0


@pytest.mark.parametrize("elasticity", [0.0, 0.5, 1.0])
def test_the_elasticity_is_that_of_the_signal_and_the_belief_where_there_is_none(elasticity):
    bounds = tuple(1.25 ** ((-1) ** n) for n in range(8))
    levels = np.array(bounds) ** elasticity * 30.0
    gram = np.outer(levels, levels) + np.diag([500.0] * 8)
    state = replace(
        products().initial(),
        bounds=bounds,
        deviations=(1.0,) * 8,
        releases=(np.zeros(500),) * 8,
        products=tuple(tuple(gram[i, : i + 1]) for i in range(8)),
    )
    assert estimate(state, 0.85)[1] == pytest.approx(elasticity, abs=0.05)
    silent = replace(state, products=tuple((*(0.0,) * i, 500.0) for i in range(8)))
    assert estimate(silent, 0.85)[1] == pytest.approx(0.85, abs=0.05)


@pytest.mark.parametrize("z", [1e-200, 1e-12, 1.0])
def test_extreme_and_zero_aggregates_and_next_to_no_noise_leave_the_bound_finite(z):
    policy = products(window=3)
    state = policy.initial()
    for round_, scale in enumerate((0.0, 1e18, 0.0, 1e-18, 1e18, 1.0, 1.0)):
        state, bound = policy.next_bound(state, release(torch.full((10,), scale), state.bound, z, 1, round_))
        assert 0 < bound < math.inf
        assert all(math.isfinite(value) for row in state.products for value in row)


def test_the_window_keeps_what_it_should_and_the_products_are_those_of_what_it_keeps():
    state = remembered(11, signal=0.3, window=4)
    kept = np.stack(state.releases)
    assert kept.shape == (4, 500)
    assert [len(row) for row in state.products] == [1, 2, 3, 4]
    assert len(state.bounds) == len(state.deviations) == 4
    for i, row in enumerate(state.products):
        assert row == pytest.approx((kept @ kept.T)[i, : i + 1])


@pytest.mark.parametrize("window", [2, 3, 16])
def test_it_remembers_with_each_release_the_bound_and_the_noise_that_it_had(window):
    """Not the centre of the search, nor the bound that came of it."""
    policy, used = products(window=window), []
    state = policy.initial()
    for round_ in range(6):
        aggregate = release(torch.full((20,), 0.01), state.bound, 1.0, 10, round_)
        used.append((state.bound, aggregate.noise_deviation))
        state, _ = policy.next_bound(state, aggregate)
    assert list(zip(state.bounds, state.deviations, strict=True)) == used[-window:]
    assert len({bound for bound, _ in used}) == 6


def test_the_next_bound_is_a_function_of_releases_alone():
    one, two = (remembered(20, signal=0.1) for _ in range(2))
    assert (one.bound, one.centre, one.products) == (two.bound, two.centre, two.products)


@pytest.mark.parametrize(
    "policy", [Window(initial_bound=1.0, walk=products().walk), products()], ids=["window", "products"]
)
@pytest.mark.parametrize("signal", [0.0, 0.3])
def test_bounds_lie_above_and_below_their_centre_in_turn(policy, signal):
    """An elasticity is seen between two sides alone."""
    state = policy.initial()
    above = [state.bound > state.centre]
    for round_ in range(20):
        aggregate = release(torch.full((50,), signal * state.bound), state.bound, 0.5, 200, round_)
        state, bound = policy.next_bound(state, aggregate)
        assert bound == state.bound
        assert max(bound / state.centre, state.centre / bound) == pytest.approx(policy.walk.probe)
        above.append(bound > state.centre)
    assert above == [number % 2 == 0 for number in range(21)]


def test_a_window_of_one_is_refused():
    with pytest.raises(InputError, match=r"clip\.window = .*: inner products"):
        products(window=1)
