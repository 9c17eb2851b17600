"""Check-ins, a client whose messages are replaced: the exact pair, and that no other messages are worse."""

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.divergences.random_allocation import FINE, QUICK, Allocation
from dpfedmeta.accounting.divergences.replaced_allocation import delta_of_opposites


def of(noise, slots, done=None):
    return Allocation(noise=noise, slots=slots, done=slots if done is None else done)


def factors(y, noise):
    """(l, l') of messages e and -e."""
    return np.exp((y - 0.5) / noise**2), np.exp((-y - 0.5) / noise**2)


@pytest.mark.parametrize("noise", [0.06, 0.5, 3000.0])
def test_one_slot_is_the_gaussian_mechanism(noise):
    came = of(noise, 1)
    for delta in (1e-3, 1e-6, 1e-10):
        exact = gaussian_epsilon(2 / noise, delta)
        assert exact * (1 - 1e-9) <= came.epsilon_replaced(delta, QUICK) <= exact * (1 + 1e-3)
    for epsilon in (0.0, 0.3, 2.0):
        exact = float(gaussian_delta(epsilon, 2 / noise))
        assert exact * (1 - 1e-9) <= came.delta_replaced(epsilon, QUICK) <= exact * (1 + 1e-3) + 1e-15


@pytest.mark.parametrize("rare", [1e-1, 1e-2, 1e-4])
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.0])
def test_what_lies_beyond_the_grid_counts_as_a_failure_wherever_it_ends(noise, rare):
    given = {"noise": noise, "done": 1, "share": 1.0, "points": 400, "rare": rare}
    for epsilon in (0.0, 0.3, 2.0):
        exact = float(gaussian_delta(epsilon, 2 / noise))
        assert exact <= delta_of_opposites(epsilon, **given) <= 1.01 * exact + rare


def of_two_slots(noise, epsilon):
    """Without any grid of ours: given the first outcome, the second integral is known in closed form."""
    a = math.exp(epsilon)

    def density(y):
        one, other = factors(y, noise)
        first = one - a * other
        # l - a l' exceeds -first from here on.
        edge = noise**2 * (epsilon / 2 + math.asinh(-first * math.exp(0.5 / noise**2) / (2 * math.sqrt(a))))
        second = norm.sf((edge - 1) / noise) - a * norm.sf((edge + 1) / noise) + first * norm.sf(edge / noise)
        return 0.5 * second * norm.pdf(y / noise) / noise

    wide = {"limit": 400, "epsabs": 0, "epsrel": 1e-9, "points": [0.0, 1.0]}
    return quad(density, -8 * noise, 1 + 8 * noise, **wide)[0]


@pytest.mark.parametrize(("noise", "epsilon"), [(0.5, 3.0), (0.5, 14.0), (1.5, 0.0), (1.5, 2.5), (6.0, 0.4)])
def test_two_slots_agree_with_quadrature_and_lie_above_it(noise, epsilon):
    exact = of_two_slots(noise, epsilon)
    assert exact * (1 - 1e-8) <= of(noise, 2).delta_replaced(epsilon) <= 1.01 * exact
    found = of(noise, 2).epsilon_replaced(exact)
    assert epsilon * (1 - 1e-6) <= found <= epsilon * 1.002 + 1e-3


def by_draws(noise, slots, epsilon, draws, seed=0, share=1.0):
    """(delta, half of its 99.99% interval) by exact draws, some with one slot far out, some with all of them higher."""
    generator = np.random.default_rng(seed)
    ways = [(1 + far * noise, high * min(1, 3 / math.sqrt(slots))) for far in (0, 2, 4) for high in (0, noise)]
    outcomes = generator.normal(0.0, noise, (draws, slots))
    chosen = generator.integers(0, len(ways), draws)
    far, high = np.array(ways)[chosen].T
    outcomes += high[:, None]
    outcomes[:, 0] += far
    drawn = np.mean(
        [
            np.exp((f * (outcomes - h) - f * f / 2) / noise**2).mean(1)
            * np.exp((h * outcomes.sum(1) - slots * h * h / 2) / noise**2)
            for f, h in ways
        ],
        axis=0,
    )
    one, other = factors(outcomes, noise)
    a = math.exp(epsilon)
    values = np.maximum(share * (one.mean(1) - a * other.mean(1)) + (1 - share) * (1 - a), 0.0) / drawn
    return values.mean(), 3.9 * values.std() / math.sqrt(draws)


def check_drawn(noise, slots, delta, draws, points=FINE):
    epsilon = of(noise, slots).epsilon_replaced(delta, points)
    parts = [by_draws(noise, slots, epsilon, min(draws, 20_000), s) for s in range(max(1, draws // 20_000))]
    found, half = np.mean([p[0] for p in parts]), np.linalg.norm([p[1] for p in parts]) / len(parts)
    assert half < 0.15 * delta
    assert found - half <= delta
    # And it is no idle bound: the truth is not far below.
    assert delta <= 1.1 * (found + half)


def test_exact_draws_of_the_pair_reach_it_and_are_not_above_it():
    check_drawn(1.0, 8, 1e-5, 20_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "slots", "delta"),
    [(0.5, 20, 1e-6), (2.0, 50, 1e-5), (0.5, 266, 1e-5), (0.755, 266, 1e-8), (1.0, 266, 1e-6), (2.0, 266, 1e-8)],
)
def test_exact_draws_of_many_slots_reach_it(noise, slots, delta):
    check_drawn(noise, slots, delta, 100_000)


def test_rounds_so_far_agree_with_exact_draws():
    found, half = by_draws(0.8, 3, 1.5, 100_000, share=3 / 7)
    value = of(0.8, 7, 3).delta_replaced(1.5)
    assert found - half <= value <= 1.03 * (found + half)


# Messages of two numbers, of length 1 at most.
DIRECTIONS = [(1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.6, -0.8), (0.5, 0.0), (0.0, 0.0), (-0.3, 0.4)]


@pytest.mark.parametrize("noise", [0.6, 1.5])
def test_no_messages_of_one_round_are_worse_than_opposite_ones(noise):
    """E (b l - b' l' - c)+, on a fine grid of two dimensions; c of either sign."""
    line = np.linspace(-7 * noise - 1, 7 * noise + 1, 281)
    x, y = np.meshgrid(line, line, indexing="ij")
    mass = norm.pdf(x / noise) * norm.pdf(y / noise) * (line[1] - line[0]) ** 2 / noise**2
    likely = {m: np.exp((m[0] * x + m[1] * y - (m[0] ** 2 + m[1] ** 2) / 2) / noise**2) for m in DIRECTIONS}

    def value(one, other, b, c):
        return float((mass * np.maximum(likely[one] - b * likely[other] - c, 0.0)).sum())

    for b, c in itertools.product((0.2, 1.0, 4.0), (-3.0, -0.5, 0.0, 0.4, 6.0)):
        worst = value((1.0, 0.0), (-1.0, 0.0), b, c)
        for one, other in itertools.product(DIRECTIONS, repeat=2):
            assert value(one, other, b, c) <= worst * (1 + 1e-6) + 1e-9


def test_messages_that_follow_the_first_release_do_not_help():
    """Whoever chooses both messages of the second round after the first one gains nothing by it."""
    noise, a = 0.8, math.exp(1.0)
    line = np.linspace(-8 * noise - 1, 8 * noise + 1, 401)
    mass = norm.pdf(line / noise) * (line[1] - line[0]) / noise
    likely = {m: np.exp((m * line - m * m / 2) / noise**2) for m in (-1.0, -0.5, 0.0, 0.5, 1.0)}

    def adaptively(first, opposite):
        """Expectation over the first outcome of the best that can be made of it."""
        seconds = [(1.0, -1.0)] if opposite else list(itertools.product(likely, repeat=2))
        before = (likely[first[0]] - a * likely[first[1]])[:, None]
        inner = [np.maximum(before + likely[m] - a * likely[n], 0.0) @ mass for m, n in seconds]
        return float(mass @ np.max(inner, axis=0)) / 2

    worst = adaptively((1.0, -1.0), opposite=True)
    assert worst == pytest.approx(of_two_slots(noise, 1.0), rel=1e-3)
    for first in itertools.product(likely, repeat=2):
        assert adaptively(first, opposite=False) <= worst * (1 + 1e-9)


@pytest.mark.parametrize(
    ("noise", "slots"), [(1.0, 5), *(pytest.param(*both, marks=pytest.mark.slow) for both in ((0.6, 40), (3.0, 16)))]
)
def test_it_is_between_the_bounds_that_are_known(noise, slots):
    came, delta = of(noise, slots), 1e-6
    found = came.epsilon_replaced(delta, QUICK)
    # A message of zeros is a message too.
    assert found >= 0.999 * came.epsilon(delta, QUICK)
    assert found <= came.epsilon_by_absence(delta, QUICK)
    assert found < gaussian_epsilon(2 / noise, delta)
    assert came.delta_replaced(found, QUICK) >= 0.98 * delta
    # Whoever sees one slot of several knows less, more slots hide better, and so does more noise.
    assert of(noise, slots, slots - 1).epsilon_replaced(delta, QUICK) < found
    assert of(noise, slots + 1).epsilon_replaced(delta, QUICK) < found
    assert of(1.02 * noise, slots).epsilon_replaced(delta, QUICK) < found
    assert came.epsilon_replaced(2 * delta, QUICK) < found


def test_what_happened_so_far_never_costs_less_from_round_to_round():
    """`account --verify` refuses rows whose epsilon falls; halves of other sizes are joined where a bit changes."""
    values = [of(1.0, 40, done).epsilon_replaced(1e-6, QUICK) for done in (7, 8, 15, 16, 17)]
    assert values == sorted(values)
    # The first of forty slots is one Poisson round, for a replaced client: its pair has a closed form.
    found = of(1.0, 40, 1).epsilon_replaced(1e-6, QUICK)
    larger = math.exp(found)
    none = found / 2 + math.asinh((larger - 1) * 39 * math.exp(0.5) / (2 * math.exp(found / 2)))
    exact = (norm.sf(none - 1) - larger * norm.sf(none + 1)) / 40 + (1 - larger) * norm.sf(none) * 39 / 40
    assert exact == pytest.approx(1e-6, rel=0.01)


@pytest.mark.parametrize("slots", [4, 30])
def test_much_noise_leaves_the_mean_of_all_slots(slots):
    """Where nothing but the mean can be felt, that is a Gaussian release of 2 / (z sqrt(t))."""
    found = of(60.0, slots).epsilon_replaced(1e-6)
    assert found == pytest.approx(gaussian_epsilon(2 / (60.0 * math.sqrt(slots)), 1e-6), rel=0.01)


def test_fewer_points_and_nearer_ends_are_looser_and_never_wrong():
    constants = {"noise": 0.8, "done": 12, "share": 1.0}
    exact = delta_of_opposites(4.0, points=700, rare=1e-21, **constants)
    values = [delta_of_opposites(4.0, points=points, rare=1e-15, **constants) for points in (60, 150, 400)]
    assert values == sorted(values, reverse=True)
    assert exact * 0.999 <= values[-1] <= 1.05 * exact
    rough = [delta_of_opposites(4.0, points=400, rare=rare, **constants) for rare in (1e-2, 1e-4, 1e-9)]
    assert min(rough) >= exact * 0.999
    assert rough[0] > 2 * exact


def test_beyond_what_is_followed_the_slot_is_taken_to_be_known():
    for noise in (0.02, 2e4):
        came = of(noise, 10)
        assert came.epsilon_replaced(1e-6) == came.epsilon_by_absence(1e-6)
        assert came.delta_replaced(1.0) == pytest.approx(float(gaussian_delta(1.0, 2 / noise)))
    assert of(1.0, 10).delta_replaced(700.0) == 0.0
    assert of(0.05, 3).epsilon_replaced(1e-6, QUICK) <= gaussian_epsilon(40.0, 1e-6)


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 4.0])
def test_two_partial_copies_cost_at_least_what_their_own_slots_tell(epsilon):
    """Two copies of a run, one round of four done in each: a client came in both, in either one, or in none."""
    noise, a, share = 0.8, math.exp(epsilon), 0.25
    line = np.linspace(-8 * noise - 1, 8 * noise + 1, 801)
    mass = norm.pdf(line / noise) * (line[1] - line[0]) / noise
    both = np.multiply.outer(mass, mass)
    one, other = factors(line, noise)
    alone, opposite = (1 - share) + share * one, (1 - share) + share * other
    # Slots of the copies are independent of each other, or the same in both.
    apart = [np.multiply.outer(m, m) for m in (alone, opposite)]
    same = [(1 - share) + share * np.multiply.outer(m, m) for m in (one, other)]
    counted = of(noise / math.sqrt(2), 4)
    for with_it, replaced in (apart, same):
        exact = float((both * np.maximum(with_it - a * replaced, 0.0)).sum())
        assert exact <= counted.delta_replaced(epsilon) * (1 + 1e-9)
        for left, right in ((with_it, 1.0), (np.ones_like(with_it), with_it)):
            exact = float((both * np.maximum(left - a * right, 0.0)).sum())
            assert exact <= counted.delta(epsilon) * (1 + 1e-9)
