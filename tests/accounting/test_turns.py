"""Secret coins in turns (cyclic sampling with bands): against whole sequences of releases, simulated."""

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy.linalg import toeplitz
from scipy.special import logsumexp

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.toeplitz_noise_cost import BandedNoise, Correlation
from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.plan_json import constants, plan_of
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.other_accountants import second_opinion
from dpfedmeta.accounting.plan_sizes import largest_cohort
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import with_fitted_numbers
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import composed_delta, released
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.early_checks import check_first
from dpfedmeta.planning.privacy.solve import make_privacy

BANDS = (1.0, 0.6, 0.3)


def plan_with(**more):
    given = {"clients": 2000, "cohort": 50.0, "rounds": 20, "noise_multiplier": 1.4, "noise": "banded"}
    turns = {"sampler": "cyclic", "correlation": Correlation(separation=4, numbers=BANDS)}
    return PrivacyPlan(**{**given, **turns, **more})


def client_public(plan):
    return guarantees(plan)[0].epsilon


def deltas(epsilons, means, weights, variance, draws, rng):
    """Hockey-stick divergences of a mixture of Gaussians from the one at 0, in both orders, by simulation."""
    chosen = rng.choice(len(means), size=draws, p=weights)
    noise = rng.standard_normal((draws, means.shape[1])) * math.sqrt(variance)

    def loss(seen):
        each = (seen @ means.T - (means**2).sum(axis=1) / 2) / variance
        return logsumexp(each + np.log(weights), axis=1)

    there, absent = loss(means[chosen] + noise), -loss(noise)
    return [
        max(float(np.clip(-np.expm1(e - there), 0, None).mean()), float(np.clip(-np.expm1(e - absent), 0, None).mean()))
        for e in epsilons
    ]


def test_each_turn_is_one_sampled_release():
    plan = plan_with()
    (phase,) = released(plan.phases)
    assert plan.at(0).rate == pytest.approx(4 * 50 / 2000)
    assert (phase.rounds, phase.event.rate) == (5, plan.at(0).rate)
    assert phase.event.noise.multiplier == pytest.approx(1.4 / np.linalg.norm(BANDS))
    elsewhere = PLDAccountant(value_discretization_interval=1e-4)
    elsewhere.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.4 / float(np.linalg.norm(BANDS)))), 5)
    assert client_public(plan) == pytest.approx(elsewhere.get_epsilon(1e-6), rel=0.01)
    assert second_opinion(plan.phases, 1e-6)[1] == pytest.approx(client_public(plan), rel=0.01)
    assert (
        client_public(plan) < rdp_epsilon(released(plan.phases), 1e-6) < client_public(replace(plan, sampler="poisson"))
    )
    cells = {cell.name: cell.epsilon for cell in guarantees(plan)}
    assert cells["(client, server)"] == cells["(record, server)"] == math.inf
    assert "group's turn" in guarantees(plan)[0].binding.event
    assert "5-fold (turns of a client" in guarantees(plan)[0].binding.formula


def test_whole_sequences_of_releases_differ_by_no_more_and_hardly_less():
    """Of a client that joins each of its turns by a coin: a mixture over all patterns, in 8 dimensions."""
    rounds, apart, rate, z = 8, 4, 0.3, 1.5
    big = toeplitz(np.r_[BANDS, np.zeros(5)], np.zeros(rounds))
    patterns = list(product((0, 1), repeat=2))
    means = np.array([a * big[:, 0] + b * big[:, 4] for a, b in patterns])
    weights = np.array([math.prod(rate if coin else 1 - rate for coin in each) for each in patterns])
    found = deltas((0.1, 0.5, 1.0), means, weights, z**2, 200_000, np.random.default_rng(1))
    noise = BandedNoise(multiplier=z, rounds=rounds, participations=2, separation=apart, numbers=BANDS)
    event = replace(plan_with().at(0), noise=noise, rate=rate)
    for epsilon, simulated in zip((0.1, 0.5, 1.0), found, strict=True):
        charged = composed_delta([Phase(event=event, rounds=rounds)], "add-remove", epsilon)
        assert simulated * 0.97 <= charged <= simulated * 1.06


@pytest.mark.parametrize(("rounds", "begins"), [(19, False), (20, True), (21, True)])
def test_no_run_begins_with_more_groups_than_rounds(rounds, begins):
    """Some groups would have no turn, and cohorts are larger than planned; a run that began so is still read."""
    given = {"population.sampler": "cyclic", "server.noise": "banded", "population.separation": "20"}
    given |= {"population.clients": "1000", "population.cohort": "30", "server.rounds": str(rounds)}
    settings = resolve("dp-agr", "strokes", None, given)
    if begins:
        check_first(settings)
    else:
        with pytest.raises(RefusedPlan, match="more groups than rounds, of which there are 19; give 19 or less"):
            check_first(settings)
    assert make_privacy(settings, load_task("strokes")[0]).sampler == "cyclic"


def test_no_crash_tells_more_than_is_charged():
    """The last round again, with the same coin; and the first one again, with another coin for who was not in it."""
    rate, z = 0.3, 1.5
    noise = BandedNoise(multiplier=z, rounds=2, participations=1, separation=2, numbers=(1.0, 0.6))
    event = replace(plan_with().at(0), noise=noise, rate=rate)
    phases = [Phase(event=event, rounds=2), Phase(event=event, rounds=1, again=True)]
    assert [(p.rounds, p.event.rate) for p in released(phases)] == [(1, rate), (1, 1.0)]
    one_coin = np.array([[0.0, 0.0, 0.0], [1.0, 0.6, 0.6]]), np.array([1 - rate, rate])
    two_coins = (
        np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.6]]),
        np.array([(1 - rate) ** 2, rate, (1 - rate) * rate]),
    )
    for means, weights in (one_coin, two_coins):
        found = deltas((0.1, 0.5, 1.5), means, weights, z**2, 200_000, np.random.default_rng(2))
        for epsilon, simulated in zip((0.1, 0.5, 1.5), found, strict=True):
            assert simulated * 0.97 <= composed_delta(phases, "add-remove", epsilon)


def test_attempts_and_copies_are_charged_as_if_the_client_was_in_them():
    event = plan_with().at(0)
    course = Phase(event=event, rounds=20)
    for further in (Phase(event=event, rounds=2, again=True), Phase(event=event, rounds=2, copy=1)):
        sampled, sure = released([course, further])
        assert (sampled.rounds, sure.rounds, sure.event.rate) == (5, 1, 1.0)
        assert sure.event.noise == GaussianNoise(multiplier=1.4 / math.sqrt(2))
    (before_the_first_turn_ends,) = released([Phase(event=event, rounds=2)])
    assert before_the_first_turn_ends.event.noise.multiplier == pytest.approx(1.4 / math.hypot(1.0, 0.6))


def test_where_nobody_is_left_out_it_is_the_one_release():
    everybody = plan_with(cohort=500.0)
    assert everybody.at(0).rate == 1.0
    assert client_public(everybody) == pytest.approx(client_public(replace(everybody, sampler="poisson")))


def test_tiny_and_large_noise_stay_numbers():
    assert client_public(plan_with(noise_multiplier=1e-3)) > 1e5
    assert 0 <= client_public(plan_with(noise_multiplier=1e4)) < 1e-3
    assert 0 <= client_public(plan_with(clients=10**8)) < client_public(plan_with())


def test_noise_and_cohorts_are_solved_and_a_ledger_keeps_them():
    fitted = plan_with(noise_multiplier=0.0, correlation=Correlation(separation=4))
    plan = with_fitted_numbers(calibrate(fitted, Targets(client_epsilon=1.0)))
    assert 0.99 < client_public(plan) <= 1.0
    assert len(plan.at(0).noise.numbers) == 4
    assert plan_of(constants(plan)) == plan
    assert Charge.from_json(Charge(round=0, event=plan.at(0)).as_json()).event == plan.at(0)
    larger = largest_cohort(plan, Targets(client_epsilon=2.0))
    assert larger.cohort > plan.cohort
    assert client_public(larger) <= 2.0 < client_public(replace(larger, cohort=larger.cohort + 1))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"noise": "blt", "correlation": Correlation(separation=4)}, "only banded noise"),
        ({"noise": "toeplitz", "correlation": Correlation(separation=4)}, "only banded noise"),
        ({"correlation": Correlation(separation=2, numbers=BANDS)}, "3 bands"),
        ({"correlation": Correlation(separation=4, buffers=4)}, "5 bands"),
        ({"cohort": 501.0}, "a group has 500 of 2,000"),
        ({"noise": "independent", "correlation": None}, "only banded noise"),
    ],
)  # fmt: skip
def test_what_keeps_no_turns_is_refused(given, words):
    with pytest.raises(RefusedPlan, match=words):
        guarantees(plan_with(**given))


def test_a_ledger_of_coins_that_participations_do_not_have_apart_is_refused():
    event = plan_with().at(0)
    meeting = replace(event, noise=replace(event.noise, separation=2, participations=10))
    with pytest.raises(RefusedPlan, match="3 bands and clients 2 rounds apart"):
        released([Phase(event=meeting, rounds=20)])
    blt = replace(plan_with(noise="blt", sampler="poisson", correlation=Correlation(separation=4)).at(0), rate=0.1)
    with pytest.raises(RefusedPlan, match=r"server\.noise = blt"):
        released([Phase(event=blt, rounds=20)])
