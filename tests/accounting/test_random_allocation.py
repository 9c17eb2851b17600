"""Clients that choose their own round: numbers against closed forms, quadrature, published bounds and simulation."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpfedmeta.accounting import PrivacyPlan, Targets, calibrate, guarantees
from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon, smallest_epsilon
from dpfedmeta.accounting.divergences.pld_composition import COARSE
from dpfedmeta.accounting.divergences.random_allocation import QUICK, Allocation, closed_bounds, known_round_epsilon
from dpfedmeta.accounting.events.events import Earlier, Event, Phase, surplus
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.observers.four_guarantees import four_cells
from dpfedmeta.accounting.other_accountants import second_opinion
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, Terms
from dpfedmeta.accounting.release_costs import composed_delta
from dpfedmeta.cli.sweeps.tuning_cost import compose
from dpfedmeta.core.errors import RefusedPlan


def of(noise, slots, done=None):
    return Allocation(noise=noise, slots=slots, done=slots if done is None else done)


def plan_of(**changed):
    known = {
        "clients": 1000,
        "cohort": 250.0,
        "rounds": 4,
        "noise_multiplier": 1.0,
        "sampler": "check-ins",
        "capacity": 400,
        "max_participations": 1,
    }
    return PrivacyPlan(**{**known, **changed})


def by_simulation(noise, slots, epsilon, added, draws, far, seed=0):
    """(delta, half of its 99.99% interval), from exact draws of the pair, and of a shift further out, half and half."""
    generator = np.random.default_rng(seed)
    outcomes = generator.normal(0.0, noise, (draws, slots))
    moved = generator.random(draws) < 0.5
    if added:
        # All slots low: the population with the client is the less likely one.
        outcomes -= np.where(moved, far, 0.0)[:, None]
        other = np.exp((-far * outcomes.sum(1) - slots * far**2 / 2) / noise**2)
        ratio = np.exp((outcomes - 0.5) / noise**2).mean(1)
        values = np.maximum(1.0 - math.exp(epsilon) * ratio, 0.0) / (0.5 + 0.5 * other)
    else:
        outcomes[:, 0] += np.where(moved, far, 1.0)
        ratio = np.exp((outcomes - 0.5) / noise**2).mean(1)
        other = np.exp((far * outcomes - far**2 / 2) / noise**2).mean(1)
        values = np.maximum(ratio - math.exp(epsilon), 0.0) / (0.5 * ratio + 0.5 * other)
    return values.mean(), 3.9 * values.std() / math.sqrt(draws)


def check_simulated(noise, slots, delta, draws):
    came = of(noise, slots)
    removed, added = came.epsilon_removed(delta), came.epsilon_added(delta)
    needed = math.log(max(slots * math.expm1(removed), 1.0)) * noise**2 + 0.5
    for epsilon, value, is_added, far in (
        (removed, came.removed(removed), False, max(1.0, needed)),
        (added, came.added(added), True, 4.5 * noise / math.sqrt(slots)),
    ):
        found, half = by_simulation(noise, slots, epsilon, is_added, draws, far)
        assert found - half <= value <= delta
        # And it is no idle bound: the truth is not far below.
        assert value <= 1.1 * (found + half)


@pytest.mark.parametrize("noise", [0.3, 1.0, 4.0])
def test_one_slot_is_the_gaussian_mechanism(noise):
    came, exact = of(noise, 1), gaussian_epsilon(1 / noise, 1e-6)
    assert came.epsilon_removed(1e-6) == pytest.approx(exact, rel=1e-3)
    assert came.epsilon_added(1e-6) == pytest.approx(exact, rel=1e-3)
    for epsilon in (0.0, 0.3, 2.0):
        for value in (came.removed(epsilon), came.added(epsilon)):
            assert value >= gaussian_delta(epsilon, 1 / noise) * (1 - 1e-9)


@pytest.mark.parametrize(("noise", "epsilon"), [(0.5, 2.0), (0.5, 6.0), (1.5, 0.2), (1.5, 1.0)])
def test_two_slots_agree_with_quadrature_and_lie_above_it(noise, epsilon):
    """The mean of two factors has a density that one integral gives, without any grid of ours."""
    a = math.exp(epsilon)

    def factor(y):
        return math.exp((y - 0.5) / noise**2)

    def removed(y):
        # E over the second outcome of (l_1/2 + l_2/2 - a)+, by Black and Scholes.
        strike = 2 * a - factor(y)
        if strike <= 0:
            return (factor(y) / 2 + 0.5 - a) * norm.pdf(y / noise) / noise
        edge = 0.5 + noise**2 * math.log(strike)
        upper = norm.sf((edge - 1) / noise) - strike * norm.sf(edge / noise)
        return 0.5 * upper * norm.pdf(y / noise) / noise

    def added(y):
        strike = 2 / a - factor(y)
        if strike <= 0:
            return 0.0
        edge = 0.5 + noise**2 * math.log(strike)
        lower = strike * norm.cdf(edge / noise) - norm.cdf((edge - 1) / noise)
        return 0.5 * a * lower * norm.pdf(y / noise) / noise

    wide = {"limit": 400, "epsabs": 0, "epsrel": 1e-10, "points": [0.0, 1.0]}
    for ours, density in ((of(noise, 2).removed, removed), (of(noise, 2).added, added)):
        exact = quad(density, -9 * noise, 1 + 9 * noise, **wide)[0]
        assert exact * (1 - 1e-8) <= ours(epsilon) <= 1.01 * exact


def test_fewer_points_are_looser_and_never_wrong():
    came = of(0.8, 12)
    for delta in (1e-3, 1e-7):
        values = [came.epsilon(delta, points) for points in (40, 120, QUICK, 900)]
        assert values == sorted(values, reverse=True)
        assert values[-2] <= 1.05 * values[-1]


def test_published_bounds_hold_and_are_those_of_the_paper():
    """t = 266, z = 1, delta = 1e-6: 0.711 and 0.733 in closed form."""
    removed, added = closed_bounds(1.0, 266, 1e-6)
    assert (removed, added) == (pytest.approx(0.711, abs=1e-3), pytest.approx(0.7334, abs=1e-3))
    came = of(1.0, 266)
    assert came.epsilon_removed(1e-6, QUICK) <= removed
    assert came.epsilon_added(1e-6, QUICK) <= added
    assert came.epsilon(1e-6, QUICK) == pytest.approx(0.4325, rel=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "slots"), [(0.6, 2), (1.0, 8), (0.755, 266)])
def test_published_bounds_hold_for_few_slots_too(noise, slots):
    removed, added = closed_bounds(noise, slots, 1e-5)
    assert of(noise, slots).epsilon_removed(1e-5) <= removed * 1.001
    assert of(noise, slots).epsilon_added(1e-5) <= added * 1.001


def test_exact_draws_of_the_pair_are_not_above_it():
    check_simulated(1.0, 8, 1e-4, 60_000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "slots", "delta", "draws"),
    [(1.0, 266, 1e-6, 400_000), (0.755, 266, 1e-6, 400_000), (0.5, 266, 1e-6, 300_000), (2.0, 50, 1e-5, 1_000_000)],
)
def test_exact_draws_of_many_slots_are_not_above_it(noise, slots, delta, draws):
    came = of(noise, slots)
    removed, added = came.epsilon_removed(delta), came.epsilon_added(delta)
    for epsilon, is_added, far in (
        (removed, False, math.log(slots * math.expm1(removed)) * noise**2 + 0.5),
        (added, True, 4.5 * noise / math.sqrt(slots)),
    ):
        parts = [by_simulation(noise, slots, epsilon, is_added, 20_000, far, s) for s in range(draws // 20_000)]
        found, half = np.mean([p[0] for p in parts]), np.linalg.norm([p[1] for p in parts]) / len(parts)
        assert found - half <= delta


def test_delta_is_that_of_the_allocation_and_not_of_poisson_rounds():
    phases = plan_of().phases
    for epsilon in (0.0, 0.5, 2.0):
        delta = composed_delta(phases, "add-remove", epsilon)
        # By rounds of which a client joins some, or none, it would be less than what happens.
        simulated, half = max(by_simulation(1.0, 4, epsilon, added, 200_000, 1.0) for added in (False, True))
        assert simulated - half <= delta <= simulated + half + 1e-4
    assert of(1.0, 4).epsilon(composed_delta(phases, "add-remove", 1.0)) == pytest.approx(1.0, rel=1e-3)
    # Beyond the noises that are followed the observer is taken to know the slot.
    assert of(1e-4, 4).delta(0.0) == pytest.approx(1.0)
    # A client that is replaced moves two messages, so it shows itself more.
    assert (
        composed_delta(phases, "replace-one", 1.0)
        == of(1.0, 4).delta_replaced(1.0)
        > composed_delta(phases, "add-remove", 1.0)
    )


def test_a_grid_that_rounds_down_would_be_seen():
    """A factor whose mean is not kept lies below quadrature: the check above can fail."""
    came = of(0.5, 2)
    wrong = came.removed(2.0) * 0.98
    assert wrong < quad_of_two(0.5, 2.0)


def quad_of_two(noise, epsilon):
    a = math.exp(epsilon)

    def density(y):
        strike = 2 * a - math.exp((y - 0.5) / noise**2)
        if strike <= 0:
            return (math.exp((y - 0.5) / noise**2) / 2 + 0.5 - a) * norm.pdf(y / noise) / noise
        edge = 0.5 + noise**2 * math.log(strike)
        upper = norm.sf((edge - 1) / noise) - strike * norm.sf(edge / noise)
        return 0.5 * upper * norm.pdf(y / noise) / noise

    return quad(density, -9 * noise, 1 + 9 * noise, limit=400, epsabs=0, epsrel=1e-10, points=[0.0, 1.0])[0]


def test_what_happened_so_far_costs_less_and_ends_at_the_whole():
    values = [of(0.7, 8, done).epsilon(1e-6, QUICK) for done in range(1, 9)]
    assert values == sorted(values)
    # One slot of eight is one Poisson round with q = 1/8, whose amplification is known in closed form.
    exact = next(e for e in np.linspace(0, 20, 4001) if sampled(e, 1 / 8, 0.7) <= 1e-6)
    assert values[0] == pytest.approx(exact, rel=0.02)


def sampled(epsilon, rate, noise):
    inner = math.log1p(math.expm1(epsilon) / rate)
    return rate * float(gaussian_delta(inner, 1 / noise))


def test_the_second_half_of_a_replacement_fails_e_to_the_first_as_often():
    """P <= e^a Q + d and Q <= e^b P' + d' give P <= e^(a+b) P' + d + e^a d', for whatever a is tried."""
    delta, came = 1e-5, Allocation(noise=0.6, slots=50, done=50)
    bounds = []
    for first in np.linspace(0.5, 6.0, 551):
        left = delta - came.removed(first, QUICK)
        if left > 0:
            bounds.append(first + smallest_epsilon(lambda e: came.added(e, QUICK), left * math.exp(-first)))
    # A few shares of delta are tried there, and many of these numbers here.
    assert min(bounds) * 0.9995 <= came.epsilon_by_absence(delta, QUICK) <= min(bounds) * 1.1


def test_copies_of_a_run_count_a_client_in_each():
    event = plan_of().at(0)
    phases = [Phase(event=event, rounds=4), Phase(event=event, rounds=2, copy=1)]
    assert Allocation.of(phases) == of(1 / math.sqrt(2), 4)
    cells = four_cells(phases, Terms.of(plan_of()))
    assert cells[3].bounds[0].epsilon == pytest.approx(gaussian_epsilon(2 * math.sqrt(2), 1e-5), rel=0.01)
    alone = four_cells(phases[:1], Terms.of(plan_of()))
    assert all(both.epsilon >= one.epsilon for both, one in zip(cells, alone, strict=True))


@pytest.mark.parametrize("rounds", [(1, 1), (3, 1), (4, 2)])
def test_two_partial_copies_cost_more_than_either_and_no_less_than_whole_ones(rounds):
    """A client may have come in both, though neither went through all slots: no share of them comes off."""
    event = plan_of().at(0)
    phases = [Phase(event=event, rounds=rounds[0]), Phase(event=event, rounds=rounds[1], copy=1)]
    assert Allocation.of(phases) == of(1 / math.sqrt(2), 4)
    terms, coarse = Terms.of(plan_of()), COARSE
    together = four_cells(phases, terms, coarse)
    for one in phases:
        alone = four_cells([one], terms, coarse)
        assert together[0].epsilon > 1.2 * alone[0].epsilon
        assert together[3].epsilon > 1.2 * alone[3].epsilon


def test_a_round_that_is_done_again_has_nobody_in_it_and_costs_nothing():
    event = plan_of().at(0)
    first, again = Phase(event=event, rounds=4), Phase(event=event, rounds=3, again=True)
    assert Allocation.of([first, again]) == of(1.0, 4)


def test_two_runs_are_no_run_with_attempts():
    """Counting the rounds of a second run as attempts would say that it costs nothing."""
    event = plan_of().at(0)
    with pytest.raises(RefusedPlan, match="several runs"):
        Allocation.of([Phase(event=event, rounds=4), Phase(event=event, rounds=4)])
    with pytest.raises(RefusedPlan, match="several runs"):
        compose([plan_of(), plan_of()])


def test_other_rounds_are_not_added_up():
    event = plan_of().at(0)
    with pytest.raises(RefusedPlan, match="cannot be added up"):
        Allocation.of([Phase(event=event, rounds=1), Phase(event=plan_of(noise_multiplier=2.0).at(0), rounds=1)])
    by_coins = Event(sampler="poisson", clients=9, cohort=3, rate=1 / 3, noise=GaussianNoise(multiplier=1.0))
    with pytest.raises(RefusedPlan, match="cannot be added up"):
        Allocation.of([Phase(event=by_coins, rounds=1)])


def test_the_four_cells_of_a_plan():
    plan = plan_of()
    public, server, record_server, record = guarantees(plan)
    beta = surplus(plan.phases)
    assert 0 < beta <= 0.01 * min(plan.client_delta, plan.record_delta)
    assert public.epsilon == pytest.approx(of(1.0, 4).epsilon(plan.client_delta - beta), rel=1e-9)
    assert public.adjacency == "add-remove"
    assert math.isinf(server.epsilon)
    assert math.isinf(record_server.epsilon)
    assert record.bounds[0].epsilon == pytest.approx(known_round_epsilon(2.0, 1.0, plan.record_delta - beta))
    assert second_opinion(plan.phases, plan.client_delta)[1] >= public.epsilon


def test_towards_the_server_nothing_is_amplified():
    layer = RecordLayer(support_noise=None, query_noise=2.0, support_steps=1, support_records=5, query_records=5)
    plan = plan_of(record=layer)
    _, server, record, public = guarantees(plan)
    assert record.epsilon == pytest.approx(gaussian_epsilon(0.5, 1e-5), rel=1e-6)
    assert server.epsilon == pytest.approx(gaussian_epsilon(5.0, 1e-6), rel=1e-6)
    # A client comes for sure: no binomial number of times, which would leave 32% out.
    assert public.bounds[0].epsilon == pytest.approx(gaussian_epsilon(plan.at(0).noise.mu(0.2), 1e-5), rel=0.01)


def test_noise_is_solved_within_the_target():
    found = calibrate(plan_of(noise_multiplier=0.0), Targets(client_epsilon=2.0))
    assert 1.99 < guarantees(found)[0].epsilon <= 2.0


def test_noise_is_solved_for_a_record_within_the_target_and_not_above_what_it_needs():
    found = calibrate(plan_of(noise_multiplier=0.0), Targets(record_epsilon=2.0, record_observer="public"))
    assert 1.99 < guarantees(found)[3].epsilon <= 2.0
    assert of(found.noise_multiplier, 4).epsilon_by_absence(found.record_delta, QUICK) > 2.1


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"capacity": 300}, "capacity"),
        ({"capacity": None}, "capacity"),
        ({"cohort": 200.0}, "cohort"),
        ({"max_participations": None}, "max_participations"),
        ({"max_participations": 2}, "max_participations"),
        ({"hostile": 0.1}, "hostile"),
        ({"noise": "tests.seams.own_noise:Rounded"}, "noise"),
        ({"sampler": "poisson"}, "capacity"),
        ({"earlier": (Earlier(run="a", head="0", phases=()),)}, "nothing spent before"),
        ({"schedule": (Change(from_round=1, noise_scale=2.0),)}, "no changes between rounds with check-ins"),
    ],
)
def test_what_is_not_proved_is_no_plan(changed, words):
    with pytest.raises(RefusedPlan, match=words):
        plan_of(**changed)


def test_a_plan_is_not_extended():
    with pytest.raises(RefusedPlan):
        plan_of().extended(8)
