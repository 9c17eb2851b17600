"""The price of choosing: against dp-accounting, the paper's closed forms, and the exact divergence of a toy."""

import math
from dataclasses import replace
from fractions import Fraction
from itertools import islice, takewhile

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.dp_event import RepeatAndSelectDpEvent
from dp_accounting.rdp.rdp_privacy_accountant import RdpAccountant, compute_epsilon
from scipy.stats import norm

from dpfedmeta.accounting import private_selection
from dpfedmeta.accounting.divergences.rdp import ORDERS
from dpfedmeta.accounting.events.events import Earlier
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.registered_budget import replaced_cost
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.private_selection import RunCount, largest_divergences, selected_divergences, selection_cost
from dpfedmeta.core.errors import InputError, RefusedPlan


def law_of(count, most):
    """P(K = 1), P(K = 2), ..., until they no longer matter."""
    found = (float(each) for each in islice(count.probabilities(), most))
    return list(takewhile(lambda each: each > 1e-18, found))


PLAN = PrivacyPlan(clients=1000, cohort=100.0, rounds=30, noise_multiplier=2.0, client_delta=1e-5)
LAWS = [(0.0, 1.5), (0.0, 10.0), (0.0, 100.0), (0.5, 10.0), (1.0, 10.0), (3.0, 100.0)]


@pytest.mark.parametrize(("eta", "mean"), LAWS)
def test_divergences_are_those_of_dp_accounting(eta, mean):
    """An implementation of the same theorem by others."""
    found = selected_divergences(ORDERS, np.array(ORDERS) / 18.0, RunCount(mean=mean, eta=eta))
    accountant = RdpAccountant(ORDERS)
    accountant.compose(RepeatAndSelectDpEvent(GaussianDpEvent(3.0), mean=mean, shape=eta))
    known = np.isfinite(accountant.rdp)
    assert np.count_nonzero(known) > 50
    assert found[known] == pytest.approx(np.asarray(accountant.rdp)[known], rel=1e-9)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_pure_privacy_is_multiplied_by_two_and_eta_as_published(eta):
    """Corollary 3 of the paper: runs of pure (e, 0) give ((2 + eta) e, 0), whatever the mean."""
    orders = (2, 10**4, 10**8)
    found = selected_divergences(orders, np.full(3, 0.7), RunCount(mean=50.0, eta=eta))
    assert found[-1] == pytest.approx((2.0 + eta) * 0.7, rel=1e-6)


@pytest.mark.parametrize(("eta", "mean"), LAWS)
def test_the_number_of_runs_has_its_law(eta, mean):
    count = RunCount(mean=mean, eta=eta)
    law = law_of(count, 10**6)
    assert math.fsum(law) == pytest.approx(1.0, abs=1e-9)
    assert math.fsum(number * p for number, p in enumerate(law, 1)) == pytest.approx(mean, rel=1e-6)
    # As the paper writes it (definition 1), for a few numbers.
    gamma = count.gamma
    for number in (1, 2, 5):
        if eta == 0:
            due = (1 - gamma) ** number / (number * math.log(1 / gamma))
        else:
            due = (1 - gamma) ** number / (gamma**-eta - 1) * math.prod((k + eta) / (k + 1) for k in range(number))
        assert law[number - 1] == pytest.approx(due, rel=1e-9)
    assert count.tail(10) >= 1 - math.fsum(law[:10])
    # Draws are the inverse of the law's cumulative sums.
    sums = np.cumsum(law)
    for uniform in (0.0, 0.3, 0.99, 0.5 * (sums[0] + sums[1])):
        assert count.of(Fraction(uniform)) == int(np.searchsorted(sums, uniform, side="right")) + 1


def lost_by_the_best(epsilon, deviation, count, cap=None):
    """Exact delta of the largest of K Gaussian values, of N(1, s^2) against N(0, s^2), both ways."""
    law = np.array(law_of(count, 1500))
    if cap is not None:
        law = np.concatenate([law[: cap - 1], [1 - law[: cap - 1].sum()]])
    places = np.linspace(-12 * deviation, 12 * deviation + 1, 4001)
    numbers = np.arange(1, len(law) + 1)

    def density(shift):
        below = norm.cdf(places, shift, deviation)
        # d/dx of E[F(x)^K], by Horner.
        slope = np.zeros_like(places)
        for weight in (law * numbers)[::-1]:
            slope = slope * below + weight
        return slope * norm.pdf(places, shift, deviation)

    one, other = density(1.0), density(0.0)
    assert np.trapezoid(one, places) == pytest.approx(1.0, abs=1e-6)
    return max(
        np.trapezoid(np.maximum(left - math.exp(epsilon) * right, 0), places)
        for left, right in ((one, other), (other, one))
    )


@pytest.mark.parametrize(
    ("eta", "mean", "cap"), [(0.0, 10.0, None), (1.0, 10.0, None), (1.0, 10.0, 150), (1.0, 5.0, 40)]
)
def test_the_best_of_a_toy_leaks_more_than_one_run_and_no_more_than_is_said(eta, mean, cap):
    plan, delta = replace(PLAN, cohort=1000.0, rounds=1, noise_multiplier=2.0, client_delta=0.01), 0.01
    count = RunCount(mean=mean, eta=eta, cap=cap)
    cost = selection_cost([plan], count)
    assert lost_by_the_best(cost.epsilon, 2.0, count, cap) <= delta
    # Not by far: the bound of one run would be broken.
    exact = RunCount(mean=mean, eta=eta)
    assert lost_by_the_best(cost.single, 2.0, exact, cap) > delta / 3
    assert cost.single < cost.epsilon


def test_monte_carlo_the_chosen_run_stays_within_its_price():
    """K, settings and noise drawn as a private sweep draws them; a threshold test on 50,000 searches."""
    count, generator, searches = RunCount(mean=8.0, eta=1.0), np.random.default_rng(3), 50_000
    cost = selection_cost([replace(PLAN, cohort=1000.0, rounds=1, noise_multiplier=2.0, client_delta=0.01)], count)
    law = np.array(law_of(count, 400))
    best = {}
    for shift in (0.0, 1.0):
        runs = generator.choice(len(law), size=searches, p=law / law.sum()) + 1
        # The largest of k uniform numbers.
        best[shift] = norm.ppf(generator.random(searches) ** (1.0 / runs), shift, 2.0)
    worst = max(
        np.mean(best[1.0] > place) - math.exp(cost.epsilon) * np.mean(best[0.0] > place)
        for place in np.linspace(0, 9, 60)
    )
    assert worst <= 0.01
    assert max(np.mean(best[1.0] > p) - np.mean(best[0.0] > p) for p in np.linspace(0, 9, 60)) > 0.1


def test_a_cap_costs_and_one_that_costs_too_much_is_refused():
    free = selection_cost([PLAN], RunCount(mean=10.0, eta=1.0)).epsilon
    capped = selection_cost([PLAN], RunCount(mean=10.0, eta=1.0, cap=250))
    assert free < capped.epsilon < 1.2 * free
    assert 0 < capped.beyond < 1e-9
    with pytest.raises(RefusedPlan, match="raise the cap"):
        selection_cost([PLAN], RunCount(mean=10.0, eta=1.0, cap=20))


def test_the_worst_setting_of_the_list_counts_and_more_runs_cost_more():
    noisy = replace(PLAN, noise_multiplier=4.0)
    both = selection_cost([noisy, PLAN], RunCount(mean=10.0)).epsilon
    assert both == selection_cost([PLAN], RunCount(mean=10.0)).epsilon
    assert both > selection_cost([noisy], RunCount(mean=10.0)).epsilon
    assert np.all(largest_divergences([noisy, PLAN]) == largest_divergences([PLAN]))
    means = [selection_cost([PLAN], RunCount(mean=mean)).epsilon for mean in (2.0, 10.0, 50.0)]
    assert means == sorted(means)
    assert len(set(means)) == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"sampler": "check-ins", "cohort": 1000 / 30, "capacity": 200, "max_participations": 1},
            "no plain Renyi divergence",
        ),
        ({"noise_multiplier": 0.0}, "no plain Renyi divergence"),
        ({"earlier": (Earlier(run="a", head="0", phases=PLAN.phases),)}, "spent before"),
    ],
)
def test_runs_without_a_plain_divergence_are_refused(changes, words):
    with pytest.raises(RefusedPlan, match=words):
        selection_cost([replace(PLAN, **changes)], RunCount(mean=10.0))


@pytest.mark.parametrize(("name", "other"), [("clients", 2000), ("sampler", "fixed"), ("client_delta", 1e-7)])
def test_settings_that_share_no_promise_are_refused(name, other):
    """Whatever one guarantee is about, also in a list of two that would be priced at the first one's."""
    for plans in ([PLAN, replace(PLAN, **{name: other})], [PLAN, PLAN, replace(PLAN, **{name: other})]):
        with pytest.raises(RefusedPlan, match=f"differ in {name}"):
            selection_cost(plans, RunCount(mean=10.0))


@pytest.mark.parametrize(
    "given", [{"mean": 1.0}, {"mean": math.nan}, {"mean": 5.0, "eta": -1.0}, {"mean": 5.0, "cap": 3}]
)
def test_a_law_that_is_none_is_refused(given):
    with pytest.raises(InputError, match="expected"):
        RunCount(**{"mean": 5.0, **given})


def test_a_small_delta_is_no_reason_to_refuse_and_a_refusal_says_what_to_do():
    """Nothing but a cap is cut off the law: a tail of 1e-11 times e^epsilon would leave nothing of this delta."""
    plan, count = replace(PLAN, noise_multiplier=1.0, client_delta=1e-9), RunCount(mean=10.0)
    cost = selection_cost([plan], count)
    assert cost.single < cost.epsilon < 3 * cost.single
    assert cost.beyond * (1 + math.exp(cost.epsilon)) < 1e-30
    with pytest.raises(RefusedPlan, match=r"runs of epsilon = .* take more noise, or fewer runs"):
        selection_cost([replace(plan, noise_multiplier=0.01)], count)


def test_the_law_is_drawn_far_beyond_the_digits_of_a_float():
    count = RunCount(mean=2.0, eta=1.0)  # geometric: P(K > k) = 2^-k
    # gamma is a float, 1/2 to its last digit.
    assert count.tail(100) == pytest.approx(2.0**-100, rel=1e-6, abs=0)
    assert count.of(1 - Fraction(1, 2**100)) in (100, 101)
    assert RunCount(mean=2.0, eta=1.0, cap=60).of(1 - Fraction(1, 2**100)) == 60
    assert count.of(Fraction(0)) == 1


def test_what_a_cap_cuts_off_is_lost_in_both_worlds():
    """By the law that is cut off, one world is so far from the first one, and the other e to epsilon times as far.

    With next to no epsilon that is twice. More than half of delta is then too much, however little the runs cost.
    """
    silent = replace(PLAN, noise_multiplier=1e5)
    for cap in (60, 80, 100):
        count = RunCount(mean=10.0, eta=1.0, cap=cap)
        lost = count.tail(cap)
        enough = replace(silent, client_delta=2.02 * lost)
        assert selection_cost([enough], count).epsilon < 0.01
        with pytest.raises(RefusedPlan, match="raise the cap"):
            selection_cost([replace(silent, client_delta=1.98 * lost)], count)


SHARED = RecordLayer(support_noise=None, query_noise=1.5, support_steps=1, support_records=1, query_records=5)


def test_a_run_that_counts_with_rare_events_is_not_chosen_from():
    """Its Renyi divergence is finite, and holds but for a probability that a divergence cannot say."""
    plan = replace(PLAN, record=SHARED)
    assert plan.at(0).surplus_probability > 0
    with pytest.raises(RefusedPlan, match="rare events"):
        largest_divergences([plan])
    with pytest.raises(RefusedPlan, match="rare events"):
        largest_divergences([PLAN, plan])
    stacked = replace(plan, noise_mode="stacked")
    assert np.all(largest_divergences([stacked]) == largest_divergences([PLAN]))


def test_sums_of_whole_numbers_have_no_price():
    """Their noise is discrete; under fixed cohorts nothing else tells them from Gaussian sums."""
    sums = {"sampler": "fixed", "cohort": 400.0, "server_sees": "sum"}
    whole = replace(PLAN, **sums, secure=SecureRounds(bits=16, dimension=64))
    assert whole.at(0).surplus_probability == 0
    for price in (lambda: largest_divergences([whole], (2, 8)), lambda: replaced_cost(whole, 8)):
        with pytest.raises(RefusedPlan, match="sums of whole numbers"):
            price()
    assert np.all(np.isfinite(largest_divergences([replace(PLAN, sampler="fixed")], (2, 8))))


def test_a_price_states_what_it_is_the_price_of(monkeypatch):
    few = (2, 4, 8, 16, 32, 64)  # fixed cohorts take seconds at all orders
    monkeypatch.setattr(private_selection, "ORDERS", few)
    monkeypatch.setattr(private_selection, "largest_divergences", lambda plans: largest_divergences(plans, few))
    fixed = replace(PLAN, sampler="fixed", noise_multiplier=6.0, rounds=10)
    plans = [fixed, replace(fixed, noise_multiplier=8.0), replace(fixed, rounds=5)]
    count = RunCount(mean=10.0, eta=0.5, cap=400)
    cost = selection_cost(plans, count)
    assert (cost.settings, cost.mean, cost.eta, cost.cap) == (3, 10.0, 0.5, 400)
    assert (cost.delta, cost.adjacency) == (1e-5, "replace-one")
    assert cost.beyond == count.tail(400)
    # One run, by the same moments and at the same delta, is the loudest of the list.
    of_one = compute_epsilon(few, largest_divergences([fixed], few), 1e-5)[0]
    assert cost.single == pytest.approx(of_one, rel=1e-2)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mean": 1.0}, "1 runs in expectation: expected a number above 1 and at most 1000"),
        ({"mean": 1000.1}, "at most 1000"),
        ({"eta": -1e-9}, "expected a number from 0 to 10"),
        ({"eta": 10.001}, "expected a number from 0 to 10"),
        ({"cap": 4}, "a cap of 4 runs: expected at least the mean, 5"),
        ({"cap": 10**6 + 1}, "a cap of 1000001 runs"),
    ],
)
def test_the_ends_of_what_a_law_may_be(given, words):
    with pytest.raises(InputError, match=words):
        RunCount(**{"mean": 5.0, **given})
    for accepted in ({"mean": 1.001}, {"mean": 1000.0}, {"eta": 0.0}, {"eta": 10.0}, {"cap": 5}, {"cap": 10**6}):
        assert RunCount(**{"mean": 5.0, **accepted}).mean >= 1.0


@pytest.mark.parametrize("cap", [2, 5])
def test_beyond_its_cap_no_law_has_more_runs(cap):
    """P(K > cap), from above, and as many runs as the cap for every number that lies there."""
    count = RunCount(mean=1.5, eta=1.0, cap=cap)
    law = law_of(replace(count, cap=None), 300)
    beyond = math.fsum(law[cap:])
    assert beyond <= count.tail(cap) <= beyond * (1 + 1e-6) + 1e-15
    assert {count.of(Fraction(place, 1000)) for place in (0, 700, 900, 980, 990, 999)} == set(range(1, cap + 1))
