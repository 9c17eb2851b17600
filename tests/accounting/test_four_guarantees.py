import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats

from dpfedmeta.accounting.divergences.gdp import gaussian_delta, gaussian_epsilon, gaussian_mu
from dpfedmeta.accounting.divergences.participation_counts import worst_participations
from dpfedmeta.accounting.divergences.pld_composition import COARSE, sampled_epsilon
from dpfedmeta.accounting.divergences.rdp import rdp_epsilon
from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.observers.four_guarantees import epsilon_curve, guarantees
from dpfedmeta.accounting.observers.server_observer import client_server, record_server
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan, Terms
from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.core.errors import RefusedPlan

BASE = PrivacyPlan(clients=400_000, cohort=1500, rounds=266, noise_multiplier=1.0)
LAYER = RecordLayer(support_noise=3.654, query_noise=1.634, support_steps=5, support_records=25, query_records=25)
AGRLR = replace(BASE, record=LAYER, noise_multiplier=0.0, max_participations=1)


def cells(plan, rounds=None):
    return {(g.unit, g.observer): g for g in guarantees(plan, rounds)}


def mixture(plan):
    return next(b.epsilon for b in cells(plan)["record", "public"].bounds if b.method == "gdp-mixture")


def test_checked_numbers_of_the_design():
    assert rdp_epsilon(BASE.phases, 1e-6) == pytest.approx(1.128, rel=0.01)
    assert cells(BASE)["client", "public"].epsilon == pytest.approx(0.475, rel=0.01)
    assert cells(replace(BASE, noise_multiplier=0.755))["client", "public"].epsilon == pytest.approx(1.499, rel=0.01)
    assert cells(BASE)["record", "public"].epsilon == pytest.approx(0.489, rel=0.01)
    assert cells(AGRLR)["record", "server"].epsilon == pytest.approx(2.5, rel=0.01)
    ones = replace(AGRLR, record=replace(LAYER, support_noise=1.0, query_noise=1.0))
    assert cells(ones)["record", "server"].epsilon == pytest.approx(11.48, rel=0.01)


def test_checked_numbers_of_shared_mode():
    event = AGRLR.at(0)
    assert event.largest_cohort == 1759
    assert event.total_noise == pytest.approx(2.741, rel=0.01)
    assert cells(AGRLR)["client", "public"].epsilon == pytest.approx(0.087, rel=0.01)
    assert replace(AGRLR, record=replace(LAYER, query_records=5)).at(0).total_noise == pytest.approx(13.70, rel=0.01)


def test_micro_episodes_are_one_release_of_every_record():
    micro = replace(LAYER, support_noise=None, query_records=5)
    plan = replace(AGRLR, record=micro)
    assert cells(plan)["record", "server"].epsilon == pytest.approx(gaussian_epsilon(1 / 1.634, 1e-5))
    assert cells(plan)["client", "server"].epsilon == pytest.approx(gaussian_epsilon(2 * 5 / 1.634, 1e-6))
    # The server tops M noisy sums up, each of z_q over the number of micro-episodes.
    assert plan.at(0).total_noise == pytest.approx(1.634 / 5 * math.sqrt(plan.at(0).largest_cohort))
    # Nothing is released in a support step, so how many there are costs nothing.
    assert guarantees(replace(plan, record=replace(micro, support_steps=100, support_records=7))) == guarantees(plan)
    assert mixture(plan) <= mixture(replace(plan, record=replace(micro, support_noise=LAYER.support_noise)))


@pytest.mark.parametrize(("cap", "expected"), [(None, 4.590), (1, 2.432), (2, 3.425), (3, 4.023)])
def test_checked_numbers_of_the_mixture(cap, expected):
    # One participation is 1/1.634-GDP whatever the server does: take the server's noise away.
    layer = replace(LAYER, support_noise=1.634 * math.sqrt(5))
    plan = replace(AGRLR, record=layer, max_participations=cap, noise_mode="stacked", noise_multiplier=0.0)
    assert mixture(plan) == pytest.approx(expected, rel=0.01)


def test_a_cell_that_holds_nothing_is_infinite_and_present():
    got = cells(BASE)
    assert math.isinf(got["client", "server"].epsilon)
    assert math.isinf(got["record", "server"].epsilon)
    assert got["record", "server"].method == "none"
    nothing = cells(replace(BASE, noise_multiplier=None))
    assert len(nothing) == 4
    assert all(math.isinf(g.epsilon) for g in nothing.values())


def test_client_towards_server_is_true_and_useless():
    expected = gaussian_epsilon(2 * 25 / 1.634, 1e-6)
    assert cells(AGRLR)["client", "server"].epsilon == pytest.approx(expected)


def test_before_the_first_round_nothing_is_spent():
    for plan in (BASE, AGRLR):
        finite = [g.epsilon for g in guarantees(plan, rounds=0) if not math.isinf(g.epsilon)]
        assert finite
        assert all(epsilon == 0.0 for epsilon in finite)


def test_epsilon_grows_with_rounds_and_the_coarse_grid_is_an_upper_bound():
    for rounds in (1, 10, 100):
        fine, coarse = guarantees(BASE, rounds), guarantees(BASE, rounds, COARSE)
        later = guarantees(BASE, rounds + 20)
        for a, b, c in zip(fine, coarse, later, strict=True):
            assert a.epsilon <= b.epsilon * (1 + 1e-9)
            assert a.epsilon <= c.epsilon


def test_replace_one_is_handed_std_over_c():
    # dp-accounting's PLD doubles the sensitivity itself; a second doubling would show here.
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(PoissonSampledDpEvent(BASE.at(0).rate, GaussianDpEvent(1.0)), 266)
    ours = sampled_epsilon(BASE.phases, "replace-one", 1e-5)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)


def test_shared_mode_takes_beta_off_delta_and_counts_colluders():
    event, more = AGRLR.at(0), replace(AGRLR, colluding=100).at(0)
    assert 0 < 266 * event.surplus_probability <= 1e-6 / 100
    assert stats.binom.sf(event.largest_cohort - 2, AGRLR.clients, event.rate) * 266 > 1e-8
    assert more.noise.multiplier < event.noise.multiplier
    assert more.total_noise == event.total_noise


def test_shared_mode_without_any_noise_left_is_refused():
    with pytest.raises(RefusedPlan, match="colluding"):
        _ = replace(AGRLR, colluding=1759).phases


def test_participations_are_capped_or_bounded_with_high_probability():
    assert worst_participations(AGRLR.phases, 1, 1e-5) == (1, 1e-5)
    worst, left = worst_participations(AGRLR.phases, None, 1e-5)
    exceeded = stats.binom(266, AGRLR.at(0).rate).sf
    assert exceeded(worst) <= 1e-7 < exceeded(worst - 1)
    assert left < 1e-5


def test_reptile_and_stacked_mode_use_their_own_rows():
    reptile = replace(AGRLR, record=replace(LAYER, query_noise=None), noise_mode="stacked", noise_multiplier=1.0)
    got = cells(reptile)
    assert got["record", "server"].epsilon == pytest.approx(gaussian_epsilon(math.sqrt(5) / 3.654, 1e-5))
    assert got["client", "server"].epsilon == pytest.approx(gaussian_epsilon(2 * math.sqrt(5) * 25 / 3.654, 1e-6))


@pytest.mark.parametrize("mu", [1e-3, 0.1, 1.0, 5.0, 30.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_gaussian_epsilon_inverts_delta_from_above(mu, delta):
    epsilon = gaussian_epsilon(mu, delta)
    assert float(gaussian_delta(epsilon, mu)) <= delta
    if epsilon > 1e-9:
        assert float(gaussian_delta(epsilon * (1 - 1e-6), mu)) > delta
        assert gaussian_mu(epsilon, delta) == pytest.approx(mu, rel=1e-6)


def test_gaussian_delta_matches_the_hockey_stick_integral():
    epsilon, mu = 0.7, 1.3
    x = np.linspace(-12, 14, 400_001)
    p, q = stats.norm.pdf(x, mu), stats.norm.pdf(x)
    integral = np.trapezoid(np.maximum(p - math.exp(epsilon) * q, 0.0), x)
    assert float(gaussian_delta(epsilon, mu)) == pytest.approx(integral, rel=1e-6)


def test_gaussian_delta_is_stable_at_extremes():
    for mu, epsilon in ((1e-6, 1.0), (50.0, 1e4), (0.01, 500.0)):
        assert 0.0 <= float(gaussian_delta(epsilon, mu)) <= 1.0
    assert gaussian_epsilon(math.inf, 1e-5) == math.inf
    assert sampled_epsilon(BASE.phases, "add-remove", 0.0) == math.inf


def test_monte_carlo_of_the_mixture_bound():
    # The likelihood ratio of R ~ min(Bin(T, q), cap) participations of a mu-GDP mechanism, simulated.
    generator = np.random.default_rng(0)
    mu, q, rounds, epsilon, samples = 1.0, 0.05, 20, 0.5, 400_000
    taken = np.minimum(generator.binomial(rounds, q, samples), 2)
    shift = np.sqrt(taken) * mu
    loss = shift * generator.standard_normal(samples) + shift**2 / 2
    simulated = np.maximum(1 - np.exp(epsilon - loss), 0.0)
    counts = np.arange(3)
    mass = stats.binom.pmf(counts, rounds, q)
    mass[-1] = stats.binom.sf(1, rounds, q)
    bound = float(mass @ gaussian_delta(epsilon, np.sqrt(counts) * mu))
    assert simulated.mean() == pytest.approx(bound, abs=4 * simulated.std() / math.sqrt(samples))


EVERY = [
    replace(plan, **more)
    for plan in (
        BASE,
        AGRLR,
        replace(AGRLR, noise_mode="stacked", noise_multiplier=1.0),
        replace(AGRLR, noise_mode="stacked", noise_multiplier=1.0, record=replace(LAYER, query_noise=None)),
    )
    for more in (
        {"max_participations": None},
        {"max_participations": 2},
        {"sampler": "fixed", "max_participations": None},
        {"schedule": (Change(from_round=100, noise_scale=1.2, cohort_scale=2.0),)},
    )
]


@pytest.mark.parametrize("plan", EVERY)
def test_every_combination_has_four_explained_cells(plan):
    client_public, client_server, record_server, record_public = guarantees(plan)
    fixed = plan.sampler == "fixed"
    assert client_public.adjacency == ("replace-one" if fixed else "add-remove")
    assert 0 < client_public.epsilon < 20
    assert {b.method for b in record_public.bounds} == {"gdp-mixture", "pld"}
    # Replacing a record is at most replacing a client, and needs a larger delta to be promised more weakly.
    assert record_public.epsilon <= max(b.epsilon for b in record_public.bounds)
    for cell in guarantees(plan):
        assert all(b.event and b.formula for b in cell.bounds)
        assert set(cell.as_json()) >= {
            "unit",
            "observer",
            "epsilon",
            "delta",
            "adjacency",
            "method",
            "event",
            "formula",
        }
    assert math.isinf(record_server.epsilon) == (plan.record is None) == math.isinf(client_server.epsilon)


def test_a_schedule_of_one_value_changes_nothing():
    flat = replace(BASE, schedule=(Change(from_round=50), Change(from_round=200)))
    for one, other in zip(guarantees(BASE), guarantees(flat), strict=True):
        assert one.epsilon == pytest.approx(other.epsilon, rel=1e-4) or one.epsilon == other.epsilon


def test_a_schedule_in_shared_mode_has_its_own_limit_and_noise_in_each_event():
    plan = replace(AGRLR, schedule=(Change(from_round=100, cohort_scale=0.5),))
    first, second = plan.phases
    assert (first.rounds, second.rounds) == (100, 166)
    assert first.event.largest_cohort > second.event.largest_cohort
    assert first.event.total_noise > second.event.total_noise
    assert plan.at(99) == first.event
    assert plan.at(100) == second.event
    assert plan.first(120) == (first, replace(second, rounds=20))
    with pytest.raises(IndexError):
        plan.at(266)


@pytest.mark.parametrize("cell", [client_server, record_server])
def test_towards_the_server_further_rounds_with_more_noise_never_cost_less(cell):
    shares = PrivacyPlan(
        clients=2000, cohort=100, rounds=6, noise_multiplier=40.0, noise_site="clients", sampler="fixed"
    )
    quiet, loud = (Phase(event=replace(shares, noise_multiplier=z).at(0), rounds=3) for z in (40.0, 4000.0))
    alone = cell([quiet], Terms.of(shares)).epsilon
    assert 0 < alone < math.inf
    assert all(cell(both, Terms.of(shares)).epsilon >= alone for both in ([quiet, loud], [loud, quiet]))


def test_a_fixed_cohort_needs_no_surplus():
    event = replace(AGRLR, sampler="fixed", max_participations=None).at(0)
    assert event.largest_cohort == 1500
    assert event.surplus_probability == 0.0


BAD = [
    {"client_delta": 1.0}, {"client_delta": 0.0}, {"record_delta": math.nan}, {"noise_multiplier": math.nan},
    {"noise_multiplier": -1.0}, {"noise_multiplier": math.inf}, {"clients": 0}, {"cohort": 0.0}, {"cohort": 500_000.0},
    {"rounds": 0}, {"colluding": 0}, {"max_participations": 0}, {"sampler": "shuffle"}, {"noise_mode": "both"},
    {"sampler": "fixed", "cohort": 10.5}, {"schedule": (Change(from_round=5), Change(from_round=5))},
    {"schedule": (Change(from_round=5, cohort_scale=300.0),)}, {"sampler": "fixed", "max_participations": 1},
    {"noise_multiplier": 1e-200}, {"noise_multiplier": 1e200},
    {"record": replace(LAYER, query_noise=None), "noise_mode": "shared"},
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_a_plan_that_cannot_be_accounted_for_is_refused_with_its_key(bad):
    with pytest.raises(RefusedPlan, match=rf"{list(bad)[-1]}|cohort") as refusal:
        guarantees(replace(BASE, **bad))
    assert "no guarantee can be computed" in str(refusal.value)


@pytest.mark.parametrize("bad", [{"support_noise": 0.0}, {"query_noise": math.nan}, {"support_steps": 0}])
def test_a_record_layer_without_noise_is_refused(bad):
    with pytest.raises(RefusedPlan, match=next(iter(bad))):
        replace(LAYER, **bad)


def test_the_curve_ends_at_the_plan():
    rounds, curves = epsilon_curve(replace(BASE, rounds=30), points=6)
    assert rounds[0] == 1
    assert rounds[-1] == 30
    assert list(curves) == ["(client, public)", "(client, server)", "(record, server)", "(record, public)"]
    assert curves["(client, public)"][-1] == guarantees(replace(BASE, rounds=30))[0].epsilon
    assert curves["(client, public)"] == sorted(curves["(client, public)"])


def test_colluding_clients_of_a_fixed_cohort_know_that_the_others_were_likelier():
    small = PrivacyPlan(clients=100, cohort=10, rounds=100, noise_multiplier=4.0, sampler="fixed")
    values = [guarantees(replace(small, colluding=c))[0].epsilon for c in (1, 50, 90, 99)]
    assert values == sorted(values)
    assert values[1] == pytest.approx(6.06, rel=0.01)
    assert replace(small, colluding=99).at(0).rate == 1.0
    assert replace(small, sampler="poisson", colluding=50).at(0).rate == 0.1


def test_a_noise_next_to_nothing_costs_much_and_little_time():
    plan = PrivacyPlan(clients=2000, cohort=20, rounds=10, noise_multiplier=1e-3)
    assert guarantees(plan)[0].epsilon > 1e4


def replaced(plan):
    return [cell.relations.get("in-place") for cell in guarantees(plan)]


def test_a_record_that_is_replaced_counts_twice():
    assert replaced(AGRLR)[:2] == [None, None]
    assert replaced(AGRLR)[2] == pytest.approx(5.54, rel=1e-3)
    many = replace(AGRLR, max_participations=3)
    assert replaced(many)[2] == pytest.approx(gaussian_epsilon(math.sqrt(3) * 2 / 1.634, 1e-5), rel=1e-3)
    support = replace(AGRLR, record=replace(LAYER, support_noise=2.0))
    assert replaced(support)[2] == pytest.approx(gaussian_epsilon(2 * math.sqrt(5) / 2.0, 1e-5))
    micro = replace(AGRLR, record=replace(LAYER, query_records=5, support_noise=None))
    assert replaced(micro)[2] == pytest.approx(gaussian_epsilon(2 / 1.634, 1e-5))


@pytest.mark.parametrize("support_noise", [1.634 * math.sqrt(5), None])
def test_a_replaced_record_towards_the_public_is_a_mixture_of_twice_the_mu(support_noise):
    layer = replace(LAYER, support_noise=support_noise)
    # No noise at the server: the mixture alone is finite.
    plan = replace(AGRLR, record=layer, max_participations=None, noise_mode="stacked", noise_multiplier=0.0)
    times = np.arange(1, 40)
    chances = stats.binom.pmf(times, 266, 1500 / 400_000)
    delta = float(chances @ gaussian_delta(replaced(plan)[3], np.sqrt(times) * 2 / 1.634))
    assert delta == pytest.approx(1e-5, rel=1e-6)
    assert replaced(plan)[3] > guarantees(plan)[3].epsilon


def test_the_support_role_counts_a_replaced_record_twice_towards_the_public():
    """Its noise is the smaller one here, so it alone decides."""
    layer = replace(LAYER, support_noise=3.0)
    plan = replace(AGRLR, record=layer, max_participations=None, noise_mode="stacked", noise_multiplier=0.0)
    times = np.arange(1, 40)
    chances = stats.binom.pmf(times, 266, 1500 / 400_000)
    for epsilon, change in ((guarantees(plan)[3].epsilon, 1.0), (replaced(plan)[3], 2.0)):
        delta = float(chances @ gaussian_delta(epsilon, np.sqrt(5 * times) * change / 3.0))
        assert delta == pytest.approx(1e-5, rel=1e-6)


def test_the_servers_layer_counts_a_replaced_query_record_twice():
    """Local noise far too small to help: what is left is the server's, of which a query record meets 2/n_q."""
    layer = replace(LAYER, support_noise=1e3, query_noise=2e-3)
    plan = replace(AGRLR, record=layer, cohort=4000.0, clients=4000, rounds=3, max_participations=3,
                   noise_multiplier=0.2, noise_mode="stacked")  # fmt: skip
    by_mixture = gaussian_epsilon(math.sqrt(3) * min(2 / 25, 2) / 0.2, 1e-5)
    assert replaced(plan)[3] == pytest.approx(by_mixture, rel=1e-3)
    assert guarantees(plan)[3].epsilon == pytest.approx(gaussian_epsilon(math.sqrt(3) / 25 / 0.2, 1e-5), rel=1e-3)


def test_a_whole_message_that_changes_is_replaced_already():
    for plan in (BASE, replace(BASE, sampler="fixed", rounds=20)):
        assert replaced(plan)[3] == guarantees(plan)[3].epsilon
    assert math.isinf(replaced(BASE)[2])


def test_replacement_stands_beside_the_promise_in_json():
    *clients, server, public = (cell.as_json() for cell in guarantees(AGRLR))
    assert not any("relations" in cell for cell in clients)
    assert server["relations"] == {"zero-out": server["epsilon"], "in-place": pytest.approx(5.54, rel=1e-3)}
    assert public["relations"]["in-place"] >= public["epsilon"]
    assert guarantees(BASE)[2].as_json()["relations"] == dict.fromkeys(RELATIONS)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 2.5, 30.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-6, 0.1])
def test_the_largest_mu_never_exceeds_delta(epsilon, delta):
    assert float(gaussian_delta(epsilon, gaussian_mu(epsilon, delta))) <= delta
