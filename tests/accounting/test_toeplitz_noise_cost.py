"""What correlated noise costs: against matrices and patterns by brute force, and against other accountants."""

import math
from dataclasses import replace
from itertools import combinations, pairwise

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.stats import norm

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Earlier, Event, Phase
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS, BandedNoise, BltNoise, Correlation, ToeplitzNoise
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import phases_of, spent
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.other_accountants import second_opinion
from dpfedmeta.accounting.plan_sizes import most_rounds
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import with_fitted_numbers
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.release_costs import composed_delta, released
from dpfedmeta.cli.sweeps.tuning_cost import compose
from dpfedmeta.core.errors import InputError, RefusedPlan

LAYER = RecordLayer(support_records=5, query_records=5, support_noise=1.0, support_steps=1, query_noise=1.0)
BLT = (0.9, 0.4, 0.2, 0.3)


def noise_of(kind, **more):
    numbers = {ToeplitzNoise: (), BltNoise: BLT, BandedNoise: (1.0, 0.6, 0.3)}[kind]
    return kind(**{"multiplier": 2.0, "rounds": 8, "participations": 3, "separation": 3, "numbers": numbers, **more})


def plan_with(name="blt", separation=5, **more):
    given = {"clients": 100, "cohort": 10.0, "rounds": 20, "noise_multiplier": 4.0, "noise": name}
    return PrivacyPlan(**{**given, "correlation": Correlation(separation=separation), **more})


def epsilons(plan):
    return {cell.name: cell.epsilon for cell in guarantees(plan)}


@pytest.mark.parametrize("kind", KINDS.values())
@pytest.mark.parametrize("rounds", [1, 4, 8])
def test_no_pattern_moves_the_rounds_so_far_further_than_is_charged(kind, rounds):
    noise = noise_of(kind)
    big = toeplitz(noise.coefficients(rounds), np.zeros(rounds))
    worst = max(
        np.linalg.norm(big[:, chosen].sum(axis=1))
        for count in (1, 2, 3)
        for chosen in map(list, combinations(range(rounds), count))
        if all(b - a >= 3 for a, b in pairwise(chosen))
    )
    assert noise.sensitivity(rounds) == pytest.approx(worst, rel=1e-12)
    assert 1.0 / noise.together(rounds).multiplier == pytest.approx(worst / 2.0, rel=1e-12)


@pytest.mark.parametrize("kind", KINDS.values())
def test_no_crash_moves_the_releases_further_than_is_charged(kind):
    """Every tree of releases: a run crashes after round `end` and goes on from before round `back`, once or twice."""
    noise, rounds = noise_of(kind, rounds=6, separation=2), 6
    c, largest = noise.coefficients(rounds), {}
    crashes = [[(end, back)] for end in range(6) for back in range(end + 1)]
    crashes += [[(3, 1), (4, 2)], [(2, 2), (2, 2)], [(5, 0), (5, 3)]]
    for crash in crashes:
        releases, path = [], []
        for number, end in enumerate([*(end for end, _ in crash), rounds - 1]):
            for round_ in range(len(path), end + 1):
                path.append(len(releases))
                releases.append((round_, list(path)))
            path = path[: crash[number][1]] if number < len(crash) else path
        further = len(releases) - rounds
        # A client joins releases: over all attempts at most R, in an order in which each round lies b after the latest.
        chains = [()]
        for _ in range(noise.participations):
            chains += [
                (*chain, node)
                for chain in chains
                for node in range(chain[-1] + 1 if chain else 0, len(releases))
                if noise.spacing.allows(releases[node][0], len(chain), releases[chain[-1]][0] if chain else None)
            ]
        for chain in set(chains):
            squared = sum(
                sum(c[round_ - releases[n][0]] for n in course if n in chain) ** 2 for round_, course in releases
            )
            largest[further] = max(largest.get(further, 0.0), squared)
    for further, squared in largest.items():
        assert math.sqrt(squared) <= 2.0 / noise.together(rounds, further).multiplier * (1 + 1e-12)
        # Leaving the attempts out would not be enough.
        assert math.sqrt(squared) > noise.sensitivity() or further == 0


@pytest.mark.parametrize("kind", KINDS.values())
def test_delta_is_that_of_the_optimal_test_on_the_whole_sequence(kind):
    """Independent: the exact hockey-stick divergence of two T-dimensional Gaussians, by their log-likelihood ratio."""
    noise = noise_of(kind)
    c = noise.coefficients(8)
    mean = toeplitz(c, np.zeros(8))[:, [0, 3, 6]].sum(axis=1)
    # What is seen: r = x + C^-1 Z, of covariance C^-1 C^-T z^2; the ratio is normal with this variance.
    inverse = np.linalg.inv(toeplitz(c, np.zeros(8)))
    x = np.zeros(8)
    x[[0, 3, 6]] = 1.0
    variance = float(x @ np.linalg.solve(4.0 * inverse @ inverse.T, x))
    assert variance == pytest.approx(mean @ mean / 4.0)
    mu = math.sqrt(variance)
    losses = np.linspace(-12.0, 12.0, 20_001) * mu + mu**2 / 2
    density = norm.pdf(losses, mu**2 / 2, mu)
    for epsilon in (0.2, 1.0, 3.0):
        numeric = np.trapezoid(np.clip(1.0 - np.exp(epsilon - losses), 0.0, None) * density, losses)
        ours = composed_delta([Phase(event=event_of(noise), rounds=8)], "add-remove", epsilon)
        assert numeric == pytest.approx(float(gaussian_delta(epsilon, noise.mu(1.0))), rel=1e-3)
        assert numeric * (1 - 1e-3) <= ours <= numeric * 1.01


def event_of(noise):
    return Event(sampler="poisson", clients=100, cohort=10.0, rate=1.0, noise=noise)


@pytest.mark.parametrize("name", KINDS)
def test_the_cells_of_a_plan(name):
    plan = plan_with(name)
    noise = plan.at(0).noise
    cells = epsilons(plan)
    mu = noise.sensitivity() / 4.0
    assert cells["(client, public)"] == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=1e-9)
    assert cells["(record, public)"] == pytest.approx(gaussian_epsilon(2 * mu, 1e-5), rel=1e-9)
    assert cells["(client, server)"] == cells["(record, server)"] == math.inf
    # The sampling that there is counts for nothing.
    assert epsilons(replace(plan, clients=10**6))["(client, public)"] == cells["(client, public)"]
    other = second_opinion(plan.phases, 1e-6)
    assert other[1] == pytest.approx(cells["(client, public)"], rel=0.01)
    assert rdp_epsilon(released(plan.phases), 1e-6) >= cells["(client, public)"]
    assert guarantees(plan)[0].binding.method == "gdp"
    assert "sens/z" in guarantees(plan)[0].binding.formula


def test_an_unknown_part_of_a_ledger_is_refused():
    content = Charge(round=0, event=plan_with().at(0)).as_json()
    content["event"]["noise"] = {**content["event"]["noise"], "separation": 0}
    with pytest.raises(InputError, match="separation"):
        Charge.from_json(content)


def test_epsilon_grows_with_rounds_and_with_attempts_and_with_copies():
    plan = plan_with()
    event = plan.at(0)
    course = [Charge(round=t, event=event) for t in range(10)]
    again = [*course, Charge(round=9, event=event, attempt=1, inputs="x")]
    assert [phase.again for phase in phases_of(again)] == [False, True]
    after = [spent(plan, course[:5])[0].epsilon, spent(plan, course)[0].epsilon, spent(plan, again)[0].epsilon]
    assert after == sorted(after)
    assert after[1] < after[2] < spent(plan, [Charge(round=t, event=event) for t in range(20)])[0].epsilon * 2
    noise = event.noise
    copied = [Phase(event=event, rounds=10), Phase(event=event, rounds=3, copy=1)]
    expected = math.hypot(noise.sensitivity(10), math.sqrt(3) * noise.largest_row) / 4.0
    assert released(copied)[0].event.noise.mu(1.0) == pytest.approx(expected)
    assert epsilons(replace(plan, rounds=20))["(client, public)"] == pytest.approx(
        guarantees(plan, rounds=20)[0].epsilon
    )


def test_what_was_spent_before_composes_with_it():
    gaussian = Phase(event=replace(event_of(GaussianNoise(multiplier=3.0)), rate=1.0), rounds=2)
    plan = plan_with()
    both = replace(plan, earlier=(Earlier(run="0" * 32, head="", phases=(gaussian,)),))
    mu = math.hypot(plan.at(0).noise.mu(1.0), math.sqrt(2) / 3.0)
    cells = {cell.name: cell for cell in guarantees(both)}
    assert cells["(client, public)"].epsilon == pytest.approx(gaussian_epsilon(mu, 1e-6), rel=5e-3)
    assert cells["(record, public)"].epsilon == pytest.approx(gaussian_epsilon(2 * mu, 1e-5), rel=5e-3)
    assert "sens/z" not in cells["(client, public)"].binding.formula


def test_several_runs_cost_as_their_squares_add_up():
    plan = plan_with()
    mu = plan.at(0).noise.mu(1.0)
    assert compose([plan, plan]).client_public == pytest.approx(gaussian_epsilon(math.sqrt(2) * mu, 1e-6), rel=1e-3)


@pytest.mark.parametrize("name", KINDS)
def test_noise_is_solved_from_a_target(name):
    plan = with_fitted_numbers(calibrate(plan_with(name, noise_multiplier=0.0), Targets(client_epsilon=2.0)))
    assert 1.98 < epsilons(plan)["(client, public)"] <= 2.0
    of_record = calibrate(plan_with(name, noise_multiplier=0.0), Targets(record_epsilon=2.0, record_observer="public"))
    assert 1.98 < epsilons(of_record)["(record, public)"] <= 2.0


def test_rounds_are_solved_with_a_fit_for_each():
    found = most_rounds(plan_with("toeplitz", clients=1000), Targets(client_epsilon=3.0), limit=200)
    assert epsilons(found)["(client, public)"] <= 3.0
    assert epsilons(replace(found, rounds=found.rounds + 1))["(client, public)"] > 3.0 or found.rounds == 200


def test_a_plan_and_its_charges_come_back_from_a_ledger():
    plan = with_fitted_numbers(plan_with("blt"))
    assert plan_of(constants(plan)) == plan
    charge = Charge(round=0, event=plan.at(0))
    assert Charge.from_json(charge.as_json()) == charge
    plain = PrivacyPlan(clients=10, cohort=1.0, rounds=1, noise_multiplier=1.0)
    assert constants(plain)["correlation"] is None


def test_more_rounds_than_the_noise_was_fitted_for_are_refused():
    noise = noise_of(BltNoise)
    with pytest.raises(RefusedPlan, match="fitted for 8 rounds, but 9"):
        noise.sensitivity(9)
    with pytest.raises(RefusedPlan, match="fitted for 8"):
        released([Phase(event=event_of(noise), rounds=9)])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"noise": "independent"}, "only correlated noise"),
        ({"sampler": "fixed"}, "population.sampler = fixed"),
        ({"noise_site": "clients", "sampler": "fixed"}, "noise_site = clients"),
        ({"schedule": (Change(from_round=2, noise_scale=0.5),)}, "server.schedule"),
        ({"record": LAYER}, "record.enabled"),
        ({"cohort": 21.0}, "free on average"),
        ({"max_participations": 1}, "free on average"),
        ({"noise": "toeplitz", "correlation": Correlation(separation=5, buffers=2)}, "server.buffers = 2"),
        ({"correlation": Correlation(separation=5, buffers=9)}, "1 to 5"),
        ({"correlation": Correlation(separation=5, numbers=(0.5, 1.5))}, "sum to at most 1"),
        ({"noise": "banded", "correlation": Correlation(separation=5, numbers=(1.0, 0.2, 0.4))}, "do not increase"),
        ({"correlation": None}, "separation"),
    ],
)  # fmt: skip
def test_what_no_proof_covers_is_refused(given, words):
    with pytest.raises(RefusedPlan, match=words):
        guarantees(plan_with(**given))


def test_a_single_round_of_it_is_counted_as_all_of_them():
    noise = noise_of(BltNoise)
    assert noise.mu(2.0) == 2 * noise.sensitivity() / 2.0
    assert noise.profile(np.array([1.0]), 1.0) == GaussianNoise(multiplier=2.0 / noise.sensitivity()).profile(
        np.array([1.0]), 1.0
    )
    assert noise.largest_loss(1.0) > 0
    assert noise.dp_event(1.0) is noise.replaced(0.5, 1e-3) is None
    assert "3 apart" in noise.words
