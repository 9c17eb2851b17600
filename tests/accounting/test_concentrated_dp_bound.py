import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import logsumexp

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import Coordinates, blended, released_coordinates
from dpfedmeta.accounting.divergences.participation_counts import worst_participations
from dpfedmeta.accounting.divergences.pld_composition import COARSE
from dpfedmeta.accounting.observers import concentrated_dp_bound as published_sums
from dpfedmeta.accounting.observers.concentrated_dp_bound import (
    Concentrated,
    concentrated,
    participations_bound,
    sampled_bound,
)
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.release_costs.sum_cost import SumCost

PLAN = PrivacyPlan(
    clients=400_000,
    cohort=1500,
    rounds=266,
    noise_multiplier=1.0,
    server_sees="sum",
    secure=SecureRounds(bits=16, dimension=32_768),
)


def masses(variance, reach):
    values = np.arange(-reach, reach + 1)
    weights = np.exp(-(values**2) / (2 * variance))
    return weights / weights.sum()


def divergence(left, right, order):
    """Renyi, exactly; both are positive wherever it matters."""
    met = (left > 1e-300) & (right > 1e-300)
    return float(logsumexp(order * np.log(left[met]) + (1 - order) * np.log(right[met]))) / (order - 1)


@pytest.fixture(scope="module")
def coarse():
    """Three shares whose sum is visibly no discrete Gaussian: (its law, its bound when it is moved by 1)."""
    share = 0.3
    law = masses(share, 40)
    for _ in range(2):
        law = np.convolve(law, masses(share, 40))
    own = Coordinates(count=1.0, variance=3 * share, blended=blended(share, 3, 0.0))
    return law, concentrated(own, 1.0, 1)


def test_the_known_way():
    """L = 1500, T = 266, z = 1, d = 32,768, 16 bits, delta 1e-6: 1.2204; ours beside it 0.4752."""
    whole = PLAN.phases[0].event.whole
    own = replace(released_coordinates(PLAN.phases)[0], variance=whole.of_a_client**2)
    assert sampled_bound(PLAN.phases, [own], 1e-6).epsilon == pytest.approx(1.2204, abs=5e-5)
    public = guarantees(PLAN)[0]
    # With the noise of one colluding client and rare cohorts taken off.
    assert {bound.method: round(bound.epsilon, 4) for bound in public.bounds} == {"pld": 0.4752, "zcdp": 1.2223}
    assert (public.epsilon, public.method) == (public.bounds[0].epsilon, "pld")


def test_every_cell_of_a_sum_has_the_published_bound():
    record = guarantees(replace(PLAN, max_participations=2))
    for cell in record:
        (published,) = (bound for bound in cell.bounds if bound.method == "zcdp")
        assert cell.epsilon < published.epsilon < math.inf
        assert cell.as_json()["bounds"]["zcdp"] == published.epsilon
    # Two participations, each of which moves the sum by two Delta.
    rho = 2 * (2 * 1.0) ** 2 / 2
    orders = 1 + np.geomspace(1e-2, 1e3, 4000)
    best = (orders * rho + np.log1p(-1 / orders) - np.log(1e-6 * orders) / (orders - 1)).min()
    assert record[1].bounds[1].epsilon == pytest.approx(best, rel=2e-3)
    assert {bound.method for bound in guarantees(replace(PLAN, secure=None))[0].bounds} == {"pld"}


def test_it_is_the_smaller_one_where_losses_are_large():
    """Beyond e^600 a change of measure says nothing, and what remains is stated."""
    small = replace(PLAN, clients=100, cohort=40, rounds=5000, sampler="fixed",
                    secure=SecureRounds(bits=8, dimension=64))  # fmt: skip
    for cell in guarantees(small):
        assert cell.method == "zcdp"
        assert 4000 < cell.epsilon < 5000


def test_the_bound_covers_the_exact_divergence(coarse):
    law, bound = coarse
    for order in (1.05, 1.5, 2.0, 5.0, 20.0):
        exact = divergence(law, np.roll(law, 1), order)
        assert exact <= float(bound.at(np.array([order]))[0])
    # One discrete Gaussian of that variance would be promised too much.
    assert divergence(law, np.roll(law, 1), 20.0) > 20.0 * bound.rho


@pytest.mark.parametrize(("count", "rounds"), [(64.0, 1), (192.0, 3), (5.0, 10)])
@pytest.mark.parametrize("distance", [1.0, 2.0, 30.0])
def test_sums_of_both_neighbours_may_differ_from_a_discrete_gaussian(count, rounds, distance):
    """exp(+-blended) in each coordinate, of either law: twice that between them, however near they are."""
    own = Coordinates(count=count, variance=2.5, blended=1e-3)
    found = concentrated(own, distance, rounds)
    assert found.tau == pytest.approx(2 * count / rounds * 1e-3)
    assert found.rho == pytest.approx(distance**2 / 5.0)
    # (order - 1) times for each law, and once for the mean.
    orders = np.array([1.01, 1.5, 2.0, 64.0])
    due = orders * found.rho + ((orders - 1) * found.tau + 0.5 * found.tau) / (orders - 1)
    assert found.at(orders) == pytest.approx(due)


@pytest.mark.parametrize("rate", [0.01, 0.2])
def test_sampling_covers_the_exact_divergence(coarse, rate):
    """A client that is in a sum with this probability, in both directions, order by order."""
    law, bound = coarse
    mixed = rate * np.roll(law, 1) + (1 - rate) * law
    found = published_sums._sampled(bound, rate)
    orders = published_sums._SAMPLED
    for order in (2, 3, 8, 30):
        own = found[int(np.flatnonzero(orders == order)[0])]
        exact = max(divergence(mixed, law, order), divergence(law, mixed, order))
        assert exact <= own <= bound.at(np.array([float(order)]))[0]
    # The factor of other terms is for mechanisms of which nothing is known; it is not there by chance.
    assert found[0] < 20 * divergence(mixed, law, 2)


def test_shares_that_do_not_blend_are_promised_nothing():
    phases = PLAN.phases
    apart = [replace(released_coordinates(phases)[0], blended=math.inf)]
    assert sampled_bound(phases, apart, 1e-6).epsilon == math.inf
    assert participations_bound(phases, apart, 2.0, 1, 1e-6).epsilon == math.inf
    own = released_coordinates(phases)
    assert sampled_bound(phases, own, 0.0).epsilon == math.inf
    # Twice as far is four times the moment.
    assert concentrated(own[0], 2.0, 266).rho == pytest.approx(4 * concentrated(own[0], 1.0, 266).rho)
    assert Concentrated(rho=1.0, tau=0.5).at(np.array([2.0]))[0] == pytest.approx(2.75)


@pytest.mark.parametrize(("rounds", "change"), [(20, 1.0), (266, 2.0), (2000, 2.0)])
def test_more_participations_than_are_counted_take_their_part_of_delta(rounds, change):
    """Without a cap it is the bound of the worst number, at what that leaves; no more of delta is there."""
    phases = replace(PLAN, rounds=rounds).phases
    own = released_coordinates(phases)
    worst, left = worst_participations(phases, None, 1e-6)
    assert 0.9e-6 < left < 1e-6 * (1 - 1e-4)
    without = participations_bound(phases, own, change, None, 1e-6)
    assert without.epsilon == participations_bound(phases, own, change, worst, left).epsilon
    assert without.epsilon > participations_bound(phases, own, change, worst, 1e-6).epsilon


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_whatever_is_rare_is_off_the_delta_of_each_bound(sampler):
    (sums,) = replace(PLAN, sampler=sampler, cohort=1000, rounds=3).phases
    rare = (replace(sums, event=replace(sums.event, surplus_probability=share * 1e-6 / 3)) for share in (0.0, 0.9))
    without, with_it = (SumCost().public([phases], 1e-6, COARSE) for phases in rare)
    assert len(without) == 2
    assert all(more.epsilon > 1.01 * less.epsilon for less, more in zip(without, with_it, strict=True))
