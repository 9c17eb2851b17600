"""The seam of the accountant: what a noise has to say of itself, and what is computed from that alone."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences import pld_round as sampled_round
from dpfedmeta.accounting.divergences.gdp import gaussian_delta
from dpfedmeta.accounting.divergences.pld_composition import sampled_delta, sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.noise_cost import GaussianNoise, noise_of, restored, stated
from dpfedmeta.accounting.observers.four_guarantees import four_cells
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.core.errors import InputError
from tests.accounting.coins import Coin

GAUSSIAN = GaussianNoise(multiplier=1.3)
COIN = Coin(quiet=0.9, loud=1.7)
X = np.linspace(-30, 30, 600_001)
EPSILONS = np.array([-3.0, -0.4, 0.0, 0.2, 1.5, 4.0])


def hockey_stick(p, q, a):
    return float(np.sum(np.maximum(p - a * q, 0.0)) * (X[1] - X[0]))


def sides(noise):
    """Deviations over the sensitivity, equally likely and seen."""
    return [noise.multiplier] if isinstance(noise, GaussianNoise) else [noise.quiet, noise.loud]


def by_integration(noise, epsilons, pair):
    """Mean over the sides of the coin of H_a(p, q), where `pair` gives the two densities for a deviation."""
    return [np.mean([hockey_stick(*pair(z), math.exp(e)) for z in sides(noise)]) for e in epsilons]  # type: ignore[call-arg]


def phases(noise, rate=0.02, rounds=60, sampler="poisson"):
    plan = PrivacyPlan(clients=1000, cohort=1000 * rate, rounds=rounds, noise_multiplier=1.0, sampler=sampler)
    (phase,) = plan.phases
    return (replace(phase, event=replace(phase.event, noise=noise)),), Terms.of(plan)


def test_the_gaussian_says_of_itself_what_the_closed_forms_say():
    for distance in (0.3, 1.0, 2.0):
        mu = distance / 1.3
        assert GAUSSIAN.mu(distance) == mu
        assert np.array_equal(GAUSSIAN.profile(EPSILONS, distance), gaussian_delta(EPSILONS, mu))
        assert GAUSSIAN.dp_event(distance).noise_multiplier == pytest.approx(1 / mu)
        assert 0 <= GAUSSIAN.profile(np.array([GAUSSIAN.largest_loss(distance)]), distance)[0] < 1e-20
    assert "1.3" in GAUSSIAN.words


@pytest.mark.parametrize("noise", [GAUSSIAN, COIN])
@pytest.mark.parametrize("distance", [1.0, 2.0])
def test_a_profile_is_the_divergence_and_symmetric_below_one(noise, distance):
    """At a < 1 it is a times that at 1/a, plus 1 - a."""
    found = noise.profile(EPSILONS, distance)
    pair = lambda z: (stats.norm.pdf(X), stats.norm.pdf(X, distance / z))  # noqa: E731
    assert found == pytest.approx(by_integration(noise, EPSILONS, pair), abs=1e-7)
    a = np.exp(EPSILONS)
    assert found == pytest.approx(a * noise.profile(-EPSILONS, distance) + 1 - a, abs=1e-12)


@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_sampled_curves_of_a_noise_of_the_users_own_agree_with_integration(rate):
    def mixed(z, sensitivity=1.0):
        base = stats.norm.pdf(X)
        return (1 - rate) * base + rate * stats.norm.pdf(X, sensitivity / z), base

    removed = sampled_round.removed_profile(EPSILONS, rate, COIN)
    added = sampled_round.added_profile(EPSILONS, rate, COIN)
    assert removed == pytest.approx(by_integration(COIN, EPSILONS, mixed), abs=1e-7)
    assert added == pytest.approx(by_integration(COIN, EPSILONS, lambda z: mixed(z)[::-1]), abs=1e-7)
    # One order at a >= 1; the other one, seen from 1/a, makes the pair symmetric.
    fixed = sampled_round.fixed_size_profile(EPSILONS, rate, COIN)
    upper = by_integration(COIN, np.abs(EPSILONS), lambda z: mixed(z, 2.0))
    a = np.exp(EPSILONS)
    assert fixed == pytest.approx(np.where(a >= 1, upper, a * np.array(upper) + 1 - a), abs=1e-7)


@pytest.mark.parametrize("sampler", ["poisson", "fixed"])
def test_a_coin_between_two_noises_costs_something_between_them(sampler):
    quiet, coin, loud = (
        four_cells(*phases(noise, sampler=sampler))
        for noise in (GaussianNoise(multiplier=0.9), COIN, GaussianNoise(multiplier=1.7))
    )
    assert 1.02 * loud[0].epsilon < coin[0].epsilon < quiet[0].epsilon / 1.02
    # The general bound of a replacement is loose, but it is one, and finite.
    assert loud[3].epsilon < coin[3].epsilon < 15
    assert "public coin" in coin[0].bounds[0].event
    # Accountants that have no event for it promise nothing.
    assert rdp_epsilon(phases(COIN, sampler=sampler)[0], 1e-6) == math.inf


def test_composed_rounds_of_a_noise_of_the_users_own_agree_with_a_simulation():
    generator = np.random.default_rng(2)
    rate, rounds, samples, epsilon = 0.3, 5, 300_000, 1.0
    loss = np.zeros(samples)
    for _ in range(rounds):
        z = np.where(generator.random(samples) < 0.5, COIN.quiet, COIN.loud)
        seen = generator.standard_normal(samples) + (generator.random(samples) < rate) / z
        loss += np.log1p(rate * np.expm1(seen / z - 0.5 / z**2))
    simulated = np.maximum(1 - np.exp(epsilon - loss), 0.0)
    delta = sampled_delta(phases(COIN, rate, rounds)[0], "add-remove", epsilon)
    assert simulated.mean() == pytest.approx(delta, abs=4 * simulated.std() / math.sqrt(samples) + 1e-4)


class Reticent(GaussianNoise):
    """The same noise, without the exact pair of a Poisson-sampled replacement."""

    def replaced(self, rate, grid):
        return None


@pytest.mark.parametrize("multiplier", [0.6, 1.0, 3.0])
@pytest.mark.parametrize(("rate", "rounds"), [(0.01, 100), (0.2, 10), (1.0, 1)])
def test_the_general_bound_of_a_replacement_is_never_below_the_exact_one(multiplier, rate, rounds):
    exact, general = (
        sampled_epsilon(phases(kind(multiplier=multiplier), rate, rounds)[0], "replace-one", 1e-6)
        for kind in (GaussianNoise, Reticent)
    )
    assert exact <= general * (1 + 1e-9) < math.inf
    # Where everybody takes part it is the same pair.
    assert rate < 1 or general == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize("noise", [None, GAUSSIAN, COIN])
def test_a_noise_comes_back_from_the_ledger_as_it_was(noise):
    assert restored(json.loads(json.dumps(stated(noise)))) == noise


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "laplace", "scale": 1.0}, "'laplace' is not known here"),
        ({"multiplier": 1.0}, "None is not known here"),
        ({"kind": 7}, "'?7'? is not known here"),
        ({"kind": "tests.accounting.no_such:Coin", "quiet": 1.0, "loud": 2.0}, "importable"),
        ({"kind": "tests.accounting.coins:Dice", "quiet": 1.0, "loud": 2.0}, "importable"),
        ({"kind": "tests.accounting.coins:TAIL"}, "is not known here"),
        ({"kind": "tests.accounting.coins:Tossed"}, "is not a dataclass"),
        ({"kind": "gaussian"}, "expected multiplier"),
        ({"kind": "gaussian", "multiplier": 1.0, "bonus": 2.0}, "expected multiplier, found bonus, multiplier"),
        ({"kind": "tests.accounting.coins:Coin", "quiet": 1.0}, "expected loud, quiet, found quiet"),
    ],
)
def test_a_noise_that_nobody_here_knows_is_refused(content, words):
    with pytest.raises(InputError, match=words):
        restored(content)


def test_the_noise_of_a_mechanism_of_the_users_own_is_solved_like_any_other():
    assert noise_of("independent", 1.5) == GaussianNoise(multiplier=1.5)
    plan = PrivacyPlan(
        clients=1000, cohort=20.0, rounds=60, noise_multiplier=0.0, noise="tests.accounting.coins:Tossed"
    )
    solved = calibrate(plan, Targets(client_epsilon=2.0))
    assert solved.at(0).noise == Coin(quiet=solved.noise_multiplier, loud=2 * solved.noise_multiplier)
    assert 1.99 < four_cells(solved.phases, Terms.of(solved))[0].epsilon <= 2.0
    plain = calibrate(replace(plan, noise="independent"), Targets(client_epsilon=2.0))
    assert plain.noise_multiplier / 2 < solved.noise_multiplier < plain.noise_multiplier


@pytest.mark.parametrize("name", ["tests.accounting.coins:Coin", "tests.accounting.coins:Nobody", "no.such:Thing"])
def test_a_mechanism_that_does_not_say_what_it_costs_is_refused(name):
    with pytest.raises(InputError, match=r"noise\(multiplier\)|is not known here"):
        noise_of(name, 1.0)


@pytest.mark.parametrize("multiplier", [0, -1.0, math.inf, math.nan, "1.2", None, [1.0]])
def test_a_noise_that_is_none_is_not_read_from_a_ledger(multiplier):
    with pytest.raises(InputError, match=r"gaussian: multiplier = .*: expected a finite number above 0"):
        restored({"kind": "gaussian", "multiplier": multiplier})
