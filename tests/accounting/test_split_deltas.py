"""Every delta that is split, against numbers of another origin, where the split moves epsilon by far more than 1%.

A plan takes at most a hundredth of delta for a rare event, which moves epsilon by a fraction of a percent. So here rare
events take nine tenths of it: what is not taken off shows as a tenth of epsilon and more.
"""

import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant
from scipy import stats
from scipy.optimize import brentq

from dpfedmeta.accounting.calibration import Targets, calibrate
from dpfedmeta.accounting.divergences import participation_counts as participations_module
from dpfedmeta.accounting.divergences.participation_counts import worst_participations
from dpfedmeta.accounting.events.events import Event, Phase
from dpfedmeta.accounting.events.noise_cost import GaussianNoise
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import phases_of
from dpfedmeta.accounting.observers.four_guarantees import client_public_epsilon, four_cells, guarantees
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms

CLIENT, RECORD = 1e-4, 3e-4
LAYER = RecordLayer(support_noise=3.0, query_noise=1.2, support_steps=2, support_records=5, query_records=5)
ROUNDS, RATE, NOISE = 30, 0.05, 1.5


def phase(rounds=ROUNDS, surplus=0.0, **changes):
    given = {"sampler": "poisson", "clients": 1000, "cohort": 1000 * RATE, "rate": RATE, "largest_cohort": 80,
             "total_noise": 2 * NOISE, "noise": GaussianNoise(multiplier=NOISE)}  # fmt: skip
    return Phase(rounds=rounds, event=Event(surplus_probability=surplus, **(given | changes)))


def terms(**changes):
    given = {"record": LAYER, "noise_mode": "shared", "server_sees": "messages", "max_participations": None,
             "client_delta": CLIENT, "record_delta": RECORD}  # fmt: skip
    return Terms(**(given | changes))


@cache
def composed(relation, rounds):
    accountant = PLDAccountant(relation)
    return accountant.compose(PoissonSampledDpEvent(RATE, GaussianDpEvent(NOISE)), rounds)


@cache
def by_dp_accounting(delta, relation, rounds=ROUNDS):
    return composed(relation, rounds).get_epsilon(delta)


def gaussian(epsilon, mu):
    """Delta of mu-GDP, with scipy.stats alone."""
    return stats.norm.cdf(-epsilon / mu + mu / 2) - math.exp(epsilon) * stats.norm.cdf(-epsilon / mu - mu / 2)


def solved(delta_at, delta):
    return brentq(lambda epsilon: delta_at(epsilon) - delta, 1e-6, 600.0, xtol=1e-12)


def mixture(mu, delta, cap=None, rounds=ROUNDS):
    counts = np.arange(1, rounds + 1)
    mass = stats.binom.pmf(counts, rounds, RATE)
    taken = counts if cap is None else np.minimum(counts, cap)
    return solved(lambda e: sum(m * gaussian(e, mu * math.sqrt(r)) for m, r in zip(mass, taken, strict=True)), delta)


# Nine tenths of the smaller delta are taken by surplus clients, in one phase or in two.
SURPLUS = {
    "one phase": (phase(surplus=0.9 * CLIENT / ROUNDS),),
    "two phases": (phase(10, 0.6 * CLIENT / 10), phase(20, 0.3 * CLIENT / 20, cohort=50.001)),
}


@pytest.mark.parametrize("phases", SURPLUS.values(), ids=SURPLUS)
def test_surplus_clients_are_off_the_deltas_of_both_public_cells(phases):
    client_public, client_server, record_server, record_public = four_cells(phases, terms())
    added = by_dp_accounting(0.1 * CLIENT, NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert added > 1.1 * by_dp_accounting(CLIENT, NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert client_public.epsilon == pytest.approx(added, rel=5e-3)
    assert client_public_epsilon(phases, CLIENT) == client_public.epsilon
    left = RECORD - 0.9 * CLIENT
    bounds = {bound.method: bound.epsilon for bound in record_public.bounds}
    replaced = by_dp_accounting(left, NeighboringRelation.REPLACE_ONE)
    assert replaced > 1.02 * by_dp_accounting(RECORD, NeighboringRelation.REPLACE_ONE)
    assert bounds["pld"] == pytest.approx(replaced, rel=5e-3)
    worse = max(min(1 / 1.2, 0.2 / NOISE), min(math.sqrt(2) / 3.0, 2 / NOISE))
    assert mixture(worse, left) > 1.02 * mixture(worse, RECORD)
    assert bounds["gdp-mixture"] == pytest.approx(mixture(worse, left), rel=1e-5)
    assert record_public.epsilon == min(bounds.values())
    # Nobody drops anybody from what the server sees.
    without = four_cells(
        [replace(each, event=replace(each.event, surplus_probability=0.0)) for each in phases], terms()
    )
    assert (client_server, record_server) == without[1:3]
    assert without[0].epsilon < 0.9 * client_public.epsilon


def test_surplus_that_takes_all_of_a_delta_leaves_no_promise():
    client_public, _, _, record_public = four_cells((phase(surplus=CLIENT / ROUNDS),), terms())
    assert client_public.epsilon == math.inf
    assert record_public.epsilon < math.inf
    assert four_cells((phase(surplus=RECORD / ROUNDS),), terms())[3].epsilon == math.inf


def test_a_mixture_with_a_cap_pays_for_surplus_clients_too():
    phases = SURPLUS["one phase"]
    record_public = four_cells(phases, terms(max_participations=1))[3]
    bounds = {bound.method: bound.epsilon for bound in record_public.bounds}
    left = RECORD - 0.9 * CLIENT
    worse = max(min(1 / 1.2, 0.2 / NOISE), min(math.sqrt(2) / 3.0, 2 / NOISE))
    assert bounds["gdp-mixture"] == pytest.approx(mixture(worse, left, cap=1), rel=1e-5)


# (layer, server, mu of one participation towards the public): the table of the design, row by row.
ROLES = [
    ("no record-level noise", None, {}, 2 / NOISE),
    ("support by its own noise", {"support_noise": 3.0}, {}, math.sqrt(2) / 3.0),
    ("support by the whole message", {"support_noise": 0.5}, {}, 2 / NOISE),
    ("query by its share", {"support_noise": 90.0, "query_noise": 0.3}, {}, 0.2 / NOISE),
    ("query by its own noise", {"support_noise": 90.0, "query_noise": 20.0}, {}, 1 / 20),
    ("episodes", {"support_noise": None, "query_noise": 0.3}, {}, 0.2 / NOISE),
    ("update", {"support_noise": 0.5, "query_noise": None}, {"noise_mode": "stacked"}, 2 / NOISE),
    (
        "stacked share",
        {"support_noise": 90.0, "query_noise": 0.3, "query_to_message_bound": 3.0},
        {"noise_mode": "stacked"},
        0.6 / NOISE,
    ),
    (
        "stacked share at most the whole message",
        {"support_noise": 90.0, "query_noise": 0.3, "query_to_message_bound": 20.0},
        {"noise_mode": "stacked"},
        2 / NOISE,
    ),
    (
        "shared share has no ratio",
        {"support_noise": 90.0, "query_noise": 0.3, "query_to_message_bound": 3.0},
        {},
        0.2 / NOISE,
    ),
]


@pytest.mark.parametrize(("layer", "more", "mu"), [row[1:] for row in ROLES], ids=[row[0] for row in ROLES])
@pytest.mark.parametrize("cap", [None, 1])
def test_the_mixture_takes_the_worse_role_and_for_it_the_smaller_layer(layer, more, mu, cap):
    record = None if layer is None else replace(LAYER, **layer)
    record_public = four_cells((phase(),), terms(record=record, max_participations=cap, **more))[3]
    found = next(bound.epsilon for bound in record_public.bounds if bound.method == "gdp-mixture")
    assert found == pytest.approx(mixture(mu, RECORD, cap=cap), rel=1e-5)


def test_one_round_without_noise_leaves_no_public_promise():
    silent = (phase(5), phase(1, noise=None, total_noise=None))
    client_public, _, _, record_public = four_cells(silent, terms(record=None))
    assert client_public.epsilon == record_public.epsilon == math.inf


def test_a_ledger_s_surplus_counts_like_the_plan_s():
    plan = PrivacyPlan(clients=1000, cohort=50.0, rounds=30, noise_multiplier=1.0, record=LAYER, client_delta=CLIENT)
    events = [planned_charge(plan, r) for r in range(30)]
    assert sum(s.rounds * s.event.surplus_probability for s in phases_of(events)) == pytest.approx(
        30 * plan.at(0).surplus_probability
    )
    loud = [replace(e, event=replace(e.event, surplus_probability=0.9 * CLIENT / 30)) for e in events]
    assert client_public_epsilon(phases_of(loud), CLIENT) == pytest.approx(
        client_public_epsilon(phases_of(events), 0.1 * CLIENT), rel=1e-3
    )


@pytest.fixture
def rare_takes_nine_tenths(monkeypatch):
    """More participations than R may take most of delta, so that what is left is seen."""
    monkeypatch.setattr(participations_module, "RARE_SHARE", 0.97)


def worst_of(rounds=ROUNDS):
    """(R, P(more than R), a delta of which that is nine tenths)."""
    exceeded = stats.binom.sf(np.arange(rounds + 1), rounds, RATE)
    return 6, float(exceeded[6]), float(exceeded[6]) / 0.9


@pytest.mark.usefixtures("rare_takes_nine_tenths")
def test_what_more_participations_than_the_worst_take_is_off_the_deltas_towards_the_server():
    worst, beyond, delta = worst_of()
    assert worst_participations((phase(),), None, delta) == (worst, pytest.approx(0.1 * delta))
    _, client_server, record_server, _ = four_cells((phase(),), terms(client_delta=delta, record_delta=delta))
    for cell, mu in ((client_server, 2 * 5 / 1.2), (record_server, 1 / 1.2)):
        split = solved(lambda e, m=mu: gaussian(e, m * math.sqrt(worst)), delta - beyond)
        assert split > 1.03 * solved(lambda e, m=mu: gaussian(e, m * math.sqrt(worst)), delta)
        assert cell.epsilon == pytest.approx(split, rel=1e-6)
    # Messages with a share of the noise.
    shares = four_cells((phase(message_noise=0.8),), terms(record=None, client_delta=delta, record_delta=delta))
    split = solved(lambda e: gaussian(e, 2 / 0.8 * math.sqrt(worst)), delta - beyond)
    assert [cell.epsilon for cell in shares[1:3]] == pytest.approx([split, split], rel=1e-6)


@pytest.mark.usefixtures("rare_takes_nine_tenths")
def test_what_more_participations_take_is_off_the_delta_of_local_steps():
    worst, beyond, delta = worst_of()
    steps = replace(LAYER, query_noise=None, batch_rate=0.2, support_steps=4, support_noise=1.5)
    record_server = four_cells((phase(),), terms(record=steps, noise_mode="stacked", record_delta=delta))[2]
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.2, GaussianDpEvent(1.5)), 4 * worst)
    assert record_server.epsilon == pytest.approx(accountant.get_epsilon(delta - beyond), rel=5e-3)
    assert accountant.get_epsilon(delta - beyond) > 1.05 * accountant.get_epsilon(delta)


@pytest.mark.usefixtures("rare_takes_nine_tenths")
def test_record_noise_is_solved_for_the_delta_that_is_left():
    worst, beyond, delta = worst_of()
    plan = PrivacyPlan(clients=1000, cohort=50.0, rounds=30, noise_multiplier=2.0, record=LAYER, record_delta=delta)
    found = calibrate(plan, Targets(record_epsilon=2.0)).record
    split = solved(lambda e: gaussian(e, math.sqrt(worst) / found.query_noise), delta - beyond)
    assert split == pytest.approx(2.0, rel=1e-6)


def test_client_noise_is_solved_for_the_delta_that_is_left(monkeypatch):
    """Surplus clients take nine tenths of the clients' delta."""
    monkeypatch.setattr("dpfedmeta.accounting.privacy_plan.privacy_plan.RARE_SHARE", 0.9)
    tight = replace(LAYER, query_noise=0.01, support_noise=0.01)
    plan = PrivacyPlan(clients=1000, cohort=50.0, rounds=30, noise_multiplier=1.0, record=tight, client_delta=CLIENT)
    plan = replace(plan, record_delta=CLIENT)
    found = calibrate(plan, Targets(client_epsilon=1.0))
    beta = 30 * found.at(0).surplus_probability
    assert 0.5 * CLIENT < beta < 0.9 * CLIENT
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(0.05, GaussianDpEvent(found.at(0).noise.multiplier)), 30)
    assert accountant.get_epsilon(CLIENT - beta) == pytest.approx(1.0, rel=5e-3)
    assert accountant.get_epsilon(CLIENT) < 0.95
    assert guarantees(found)[0].epsilon <= 1.0


@pytest.mark.parametrize("deltas", [(1e-6, 1e-5), (1e-4, 1e-7)])
@pytest.mark.parametrize(("clients", "cohort", "rounds"), [(400_000, 1500.0, 266), (1000, 50.0, 30), (50, 5.0, 3)])
def test_the_largest_cohort_is_the_smallest_that_rarely_suffices(clients, cohort, rounds, deltas):
    """M and beta by their definition: beta = T P(Bin(N, q) >= M) <= the smaller delta / 100."""
    plan = PrivacyPlan(
        clients=clients, cohort=cohort, rounds=rounds, noise_multiplier=0.5, record=LAYER, client_delta=deltas[0],
        record_delta=deltas[1],
    )  # fmt: skip
    allowed = min(deltas) / 100 / rounds
    smallest = next(
        m for m in range(int(cohort), clients + 2) if stats.binom.sf(m - 1, clients, cohort / clients) <= allowed
    )
    found = plan.at(0)
    assert found.largest_cohort == smallest
    assert found.surplus_probability == pytest.approx(stats.binom.sf(smallest - 1, clients, cohort / clients))
    own = (1.2 / 5) ** 2
    assert found.total_noise**2 >= 0.25 + own
    assert found.total_noise**2 == pytest.approx(max(0.25 + own, smallest * own))
    assert found.noise.multiplier**2 == pytest.approx(found.total_noise**2 - own)


@pytest.mark.parametrize("colluding", [1, 3, 7])
@pytest.mark.parametrize("noise", [0.0, 4.0])
def test_colluding_clients_face_what_they_do_not_know(noise, colluding):
    plan = PrivacyPlan(clients=1000, cohort=50.0, rounds=30, noise_multiplier=noise, record=LAYER, colluding=colluding)
    found, own = plan.at(0), (1.2 / 5) ** 2
    assert found.noise.multiplier**2 >= noise**2 * (1 - 1e-12)
    assert found.total_noise**2 == pytest.approx(max(noise**2 + colluding * own, found.largest_cohort * own))
    assert found.noise.multiplier**2 == pytest.approx(found.total_noise**2 - colluding * own)


@pytest.mark.parametrize("colluding", [1, 4])
def test_shares_of_a_split_noise(colluding):
    plan = PrivacyPlan(
        clients=500, cohort=20.0, rounds=3, noise_multiplier=2.0, sampler="fixed", noise_site="clients",
        colluding=colluding,
    )  # fmt: skip
    found = plan.at(0)
    assert 20 * found.message_noise**2 == pytest.approx(4.0)
    assert found.total_noise == 2.0
    assert found.noise.multiplier**2 == pytest.approx(4.0 * (20 - colluding) / 20)
    assert found.rate == pytest.approx(20 / (500 - colluding))
