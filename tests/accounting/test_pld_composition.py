import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.accounting.divergences import pld_composition as composition
from dpfedmeta.accounting.divergences import pld_round as sampled_round
from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.divergences.pld_composition import GRIDS, composed, forget, sampled_delta, sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds


def phases(rate=0.01, noise=1.0, rounds=100, sampler="poisson", schedule=()):
    clients = 100_000
    return PrivacyPlan(
        clients=clients,
        cohort=round(rate * clients),
        rounds=rounds,
        noise_multiplier=noise,
        sampler=sampler,
        schedule=schedule,
    ).phases


@pytest.mark.parametrize(
    ("sampler", "neighbours", "distance"), [("poisson", "add-remove", 1.0), ("fixed", "replace-one", 2.0)]
)
def test_less_noise_than_a_plan_may_have_is_accounted_too(sampler, neighbours, distance):
    """No plan that is accepted was found to ask for it."""
    (one,) = phases(noise=1e-3, rounds=2, sampler=sampler)
    before = sampled_epsilon([one], neighbours, 1e-6)
    for noise in (7e-4, 5e-4, 2.2e-4, 1e-4, 1e-5):
        less = replace(one, event=replace(one.event, noise=GaussianNoise(multiplier=noise)))
        epsilon = sampled_epsilon([less], neighbours, 1e-6)
        assert before < epsilon <= gaussian_epsilon(distance * math.sqrt(2) / noise, 1e-6) * (1 + 1e-6)
        before = epsilon


def hockey_stick(p, q, a, x):
    return float(np.sum(np.maximum(p - a * q, 0.0)) * (x[1] - x[0]))


X = np.linspace(-30, 30, 600_001)


@pytest.mark.parametrize("epsilon", [-2.0, -0.05, 0.0, 0.03, 0.7, 3.0])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.0), (0.6, 0.8), (1.0, 2.0)])
def test_profiles_are_the_divergences_of_their_pairs(rate, noise, epsilon):
    mu, a = 1.0 / noise, math.exp(epsilon)
    base, moved = stats.norm.pdf(X), stats.norm.pdf(X, mu)
    mixed = (1 - rate) * base + rate * moved
    at = np.asarray([epsilon])
    gaussian = GaussianNoise(multiplier=noise)
    removed = sampled_round.removed_profile(at, rate, gaussian)[0]
    added = sampled_round.added_profile(at, rate, gaussian)[0]
    assert removed == pytest.approx(hockey_stick(mixed, base, a, X), abs=1e-8)
    assert added == pytest.approx(hockey_stick(base, mixed, a, X), abs=1e-8)
    # A replaced message moves the sum by twice its bound.
    fixed = sampled_round.fixed_size_profile(at, rate, GaussianNoise(multiplier=2 * noise))[0]
    pair = (mixed, base) if epsilon >= 0 else (base, mixed)
    assert fixed == pytest.approx(hockey_stick(*pair, a, X), abs=1e-8)


def test_a_round_by_coins_has_the_divergences_of_both_orders():
    rate, gaussian = 0.3, GaussianNoise(multiplier=0.9)
    both = sampled_round.by_coins(rate, gaussian, 1e-3)
    at = np.asarray([0.0, 0.05, 0.2, 0.34])
    orders = (both._pmf_remove, sampled_round.removed_profile), (both._pmf_add, sampled_round.added_profile)
    for order, profile in orders:
        assert order.get_delta_for_epsilon(at) == pytest.approx(profile(at, rate, gaussian), abs=1e-6)


@pytest.mark.parametrize("epsilon", [480.0, 520.0, 650.0])
def test_a_removed_clients_loss_may_be_larger_than_a_floats_exponent(epsilon):
    """Where the loss is exceeded: x mu - mu^2 / 2 = log((a - 1 + q) / q), and a - 1 is a."""
    rate, mu = 0.1, math.sqrt(2 * epsilon)
    beyond = (epsilon - math.log(rate)) / mu + mu / 2
    moved = (1 - rate) * stats.norm.sf(beyond) + rate * stats.norm.sf(beyond - mu)
    expected = moved - math.exp(epsilon + stats.norm.logsf(beyond))
    found = sampled_round.removed_profile(np.asarray([epsilon]), rate, GaussianNoise(multiplier=1 / mu))[0]
    assert found == pytest.approx(expected, rel=1e-6)


def test_hardly_any_noise_counts_how_far_a_replaced_message_moves_the_sum():
    mu = 4466.0  # such losses have no distribution here; half of all exceed mu^2 / 2
    (one,) = phases(rate=0.5, rounds=1, sampler="fixed")
    one = replace(one, event=replace(one.event, noise=GaussianNoise(multiplier=2.0 / mu)))
    assert sampled_epsilon([one], "replace-one", 1e-6) > mu**2 / 2


def test_a_round_without_noise_keeps_nothing_however_many_have_some():
    (noisy,) = phases(rounds=3)
    bare = replace(noisy, event=replace(noisy.event, noise=None))
    for rounds in ([bare], [noisy, bare], [bare, noisy]):
        assert sampled_delta(rounds, "add-remove", 1.0) == 1.0
        assert math.isinf(sampled_epsilon(rounds, "add-remove", 1e-6))


@pytest.mark.parametrize("delta", [1e-5, 1e-10])
def test_few_rounds_are_composed_by_their_distribution(delta):
    assert composed(phases(rate=1.0, noise=3.0, rounds=10), "add-remove", delta)[1] == "pld"


@pytest.mark.parametrize("a", [1.0, 1.05, 1.5, 4.0])
def test_no_fixed_size_geometry_in_the_plane_exceeds_the_profile(a):
    """Messages of norm <= 1 anywhere in the plane, whoever takes the replaced client's slot."""
    rate, noise = 0.2, 0.9
    generator = np.random.default_rng(3)
    bound = float(sampled_round.fixed_size_profile(np.asarray([math.log(a)]), rate, GaussianNoise(multiplier=noise))[0])
    line = np.linspace(-6.0, 6.0, 301)
    x, y = np.meshgrid(line, line)
    cell = (line[1] - line[0]) ** 2
    worst = 0.0
    corners = np.asarray([[-1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])  # slot-mate, replaced client, its replacement
    for trial in range(60):
        points = corners if trial == 0 else generator.normal(size=(3, 2))
        points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0)
        slot, before, after = (
            np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * noise**2)) / (2 * math.pi * noise**2) for px, py in points
        )
        p, q = (1 - rate) * slot + rate * before, (1 - rate) * slot + rate * after
        worst = max(worst, float(np.maximum(p - a * q, 0).sum() * cell), float(np.maximum(q - a * p, 0).sum() * cell))
    assert worst <= bound + 1e-4  # the grid's own error is 2e-5
    assert worst == pytest.approx(bound, rel=2e-3)  # the first geometry attains it


@pytest.mark.parametrize("a", [1.0, 1.05, 1.5, 4.0])
def test_no_poisson_geometry_in_the_plane_exceeds_replace_one(a):
    rate, noise = 0.2, 0.9
    base, plus, minus = (stats.norm.pdf(X, shift / noise) for shift in (0.0, 1.0, -1.0))
    bound = hockey_stick((1 - rate) * base + rate * plus, (1 - rate) * base + rate * minus, a, X)
    generator = np.random.default_rng(4)
    line = np.linspace(-6.0, 6.0, 301)
    x, y = np.meshgrid(line, line)
    cell = (line[1] - line[0]) ** 2
    for _ in range(60):
        points = generator.normal(size=(2, 2))
        points = points / np.maximum(np.linalg.norm(points, axis=1, keepdims=True), 1.0)
        empty, before, after = (
            np.exp(-((x - px) ** 2 + (y - py) ** 2) / (2 * noise**2)) / (2 * math.pi * noise**2)
            for px, py in np.vstack([np.zeros(2), points])
        )
        # A cap may make the two inclusion probabilities unequal, both at most q.
        first, second = generator.uniform(0, rate, 2)
        p, q = (1 - first) * empty + first * before, (1 - second) * empty + second * after
        assert float(np.maximum(p - a * q, 0).sum() * cell) <= bound + 1e-6


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
@pytest.mark.parametrize("rounds", [1, 9])
def test_everybody_every_round_is_the_plain_gaussian(sampler, rounds):
    neighbours, sensitivity = ("add-remove", 1.0) if sampler == "poisson" else ("replace-one", 2.0)
    expected = gaussian_epsilon(sensitivity * math.sqrt(rounds) / 3.0, 1e-6)
    got = sampled_epsilon(phases(rate=1.0, noise=3.0, rounds=rounds, sampler=sampler), neighbours, 1e-6)
    assert expected <= got <= expected * 1.0005


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_the_tight_bound_is_below_rdp_and_converged(sampler, monkeypatch):
    neighbours = "add-remove" if sampler == "poisson" else "replace-one"
    plan = phases(sampler=sampler)
    tight = sampled_epsilon(plan, neighbours, 1e-6)
    assert tight < rdp_epsilon(plan, 1e-6)
    finest = sampled_epsilon(plan, neighbours, 1e-6, (3e-5,))
    assert finest <= tight * (1 + 1e-9) <= finest * 1.002


def test_fixed_size_of_the_design_is_tighter_than_rdp():
    plan = PrivacyPlan(clients=400_000, cohort=1500, rounds=266, noise_multiplier=1.0, sampler="fixed").phases
    assert rdp_epsilon(plan, 1e-5) == pytest.approx(7.67, rel=0.01)
    assert sampled_epsilon(plan, "replace-one", 1e-5) == pytest.approx(4.944, rel=0.01)


def test_monte_carlo_of_the_sampled_gaussian():
    # The privacy loss of T rounds, simulated under the population with the client.
    generator = np.random.default_rng(1)
    rate, noise, rounds, delta, samples = 0.05, 1.0, 40, 1e-2, 400_000
    loss = np.zeros(samples)
    for _ in range(rounds):
        outcome = generator.standard_normal(samples) + (generator.random(samples) < rate) / noise
        loss += np.log1p(rate * np.expm1(outcome / noise - 0.5 / noise**2))
    epsilon = sampled_epsilon(phases(rate=rate, noise=noise, rounds=rounds), "add-remove", delta)
    simulated = np.maximum(1 - np.exp(epsilon - loss), 0.0)
    assert simulated.mean() == pytest.approx(delta, abs=4 * simulated.std() / math.sqrt(samples))


def test_phases_compose_like_one_and_a_change_costs_what_it_should():
    whole = sampled_epsilon(phases(rounds=100), "add-remove", 1e-6)
    split = phases(rounds=100, schedule=(Change(from_round=40, noise_scale=1.0),))
    assert [s.rounds for s in split] == [40, 60]
    assert sampled_epsilon(split, "add-remove", 1e-6) == pytest.approx(whole, rel=1e-6)
    less, more = (phases(schedule=(Change(from_round=40, noise_scale=scale),)) for scale in (1.5, 0.8))
    assert sampled_epsilon(less, "add-remove", 1e-6) < whole < sampled_epsilon(more, "add-remove", 1e-6)
    larger = phases(schedule=(Change(from_round=40, cohort_scale=3.0),))
    assert larger[1].event.rate == pytest.approx(0.03)
    assert sampled_epsilon(larger, "add-remove", 1e-6) > whole


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
@pytest.mark.parametrize("noises", [(3.0, 0.4), (1.0, 20.0, 0.7), (50.0, 0.3), (1.0, 1e-4)])
def test_the_order_of_rounds_changes_nothing(sampler, noises):
    """The last losses are too large to be followed."""
    (usual,) = phases(rounds=5, sampler=sampler)
    parts = [replace(usual, event=replace(usual.event, noise=GaussianNoise(multiplier=noise))) for noise in noises]
    neighbours = "add-remove" if sampler == "poisson" else "replace-one"
    forwards = sampled_epsilon(tuple(parts), neighbours, 1e-6)
    forget()
    backwards = sampled_epsilon(tuple(reversed(parts)), neighbours, 1e-6)
    assert forwards == pytest.approx(backwards, rel=1e-3)


def test_adding_a_client_has_no_meaning_under_fixed_size_sampling():
    with pytest.raises(ValueError, match="replace-one"):
        sampled_epsilon(phases(sampler="fixed"), "add-remove", 1e-6)


@pytest.mark.parametrize(
    ("rate", "noise", "rounds"), [(1e-5, 0.3, 10), (1e-5, 50.0, 100_000), (0.9, 0.2, 2), (0.5, 100.0, 1)]
)
@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_extremes_stay_finite_and_positive(rate, noise, rounds, sampler):
    neighbours = "add-remove" if sampler == "poisson" else "replace-one"
    epsilon = sampled_epsilon(phases(rate, noise, rounds, sampler), neighbours, 1e-6, GRIDS[:3])
    assert 0 <= epsilon < 1e4


@pytest.mark.parametrize(
    ("plan", "neighbours", "found"),
    [
        ({"rounds": 50}, "add-remove", 0),  # a bound on the range decides
        ({"rounds": 50}, "replace-one", 0),
        ({"rounds": 20, "sampler": "fixed"}, "replace-one", 0),
        ({"rounds": 200_000, "rate": 0.001, "noise": 4.0}, "add-remove", 1),  # more rounds than points
        ({"rounds": 2_000, "rate": 0.5, "noise": 0.5}, "add-remove", 1),  # a range wider than the coarsest grid
    ],
)
def test_the_range_of_a_composition_is_found_only_where_it_decides(monkeypatch, plan, neighbours, found):
    calls = []

    def counted(*arguments):
        calls.append(arguments)
        return sampled_round.composed_width(*arguments)

    monkeypatch.setattr(composition, "composed_width", counted)
    forget()
    quick = sampled_epsilon(phases(**plan), neighbours, 1e-6)
    assert len(calls) == found
    monkeypatch.setattr(composition, "widest_composition", sampled_round.composed_width)
    forget()
    assert sampled_epsilon(phases(**plan), neighbours, 1e-6) == quick


@pytest.mark.parametrize("rounds", [3, 3000])
def test_what_discrete_noise_takes_off_delta_is_missing_in_what_rounds_cost(rounds, monkeypatch):
    """By the distribution, and by the closed bound where there are too many rounds for one."""
    secure = SecureRounds(bits=20, dimension=64, dropout=0.0)
    plan = PrivacyPlan(
        clients=1000,
        cohort=200,
        rounds=rounds,
        noise_multiplier=20.0,
        sampler="fixed",
        server_sees="sum",
        secure=secure,
    )  # fmt: skip
    asked = []

    def noted(at, delta, guess, discrete):
        asked.append((delta, [at(delta * share) for share in (1.0, 0.1, 0.01)]))
        return guess

    monkeypatch.setattr(composition, "_with_discrete", noted)
    monkeypatch.setattr(composition, "MOST_ROUNDS", 1000)
    sampled_epsilon(plan.phases, "replace-one", 1e-5, (GRIDS[0],))
    ((delta, found),) = asked
    assert delta == 1e-5
    assert found == sorted(found)
    assert found[2] > 1.05 * found[0]
