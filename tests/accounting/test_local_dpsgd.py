"""Accounting for mini-batched local steps, noise that is split over clients, and limits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.pld import PLDAccountant

from dpfedmeta.accounting import PrivacyPlan, Targets, calibrate, guarantees
from dpfedmeta.accounting.divergences.participation_counts import worst_participations
from dpfedmeta.accounting.divergences.pld_composition import sampled_delta, sampled_epsilon
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.charges import planned_charge
from dpfedmeta.accounting.ledger.ledger import phases_of
from dpfedmeta.accounting.observers.server_observer import poisson_steps_epsilon
from dpfedmeta.core.errors import RefusedPlan


def layer(**changes):
    return RecordLayer(
        **{
            "support_noise": 1.0, "query_noise": None, "support_steps": 10, "support_records": 500, "query_records": 1,
            "batch_rate": 0.1, **changes,
        }
    )  # fmt: skip


def local(**changes):
    record = layer(**changes.pop("record", {}))
    return PrivacyPlan(
        **{"clients": 100, "cohort": 100, "rounds": 20, "noise_multiplier": None, "record": record, **changes}
    )


def record_server(plan):
    return guarantees(plan)[2]


@pytest.mark.parametrize(
    ("rate", "noise", "steps"), [(0.1, 1.0, 200), pytest.param(0.01, 0.8, 1000, marks=pytest.mark.slow), (0.5, 3.0, 50)]
)
def test_steps_agree_with_dp_accounting(rate, noise, steps):
    accountant = PLDAccountant()
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), steps)
    ours = poisson_steps_epsilon(rate, noise, steps, 1e-5, "pld")
    assert ours == pytest.approx(accountant.get_epsilon(1e-5), rel=5e-3)
    assert poisson_steps_epsilon(rate, noise, steps, 1e-5, "prv") == pytest.approx(ours, abs=0.03)
    assert poisson_steps_epsilon(rate, noise, steps, 1e-5, "rdp") > ours


def test_all_participations_are_composed():
    everybody = record_server(local()).epsilon
    assert everybody == pytest.approx(poisson_steps_epsilon(0.1, 1.0, 200, 1e-5, "pld"))
    capped = local(max_participations=3)
    assert record_server(capped).epsilon == pytest.approx(poisson_steps_epsilon(0.1, 1.0, 30, 1e-5, "pld"))


def test_sampling_among_clients_amplifies_nothing_towards_the_server():
    drawn = local(cohort=10, max_participations=3)
    assert record_server(drawn).epsilon == record_server(local(max_participations=3)).epsilon


def test_without_sampling_the_formula_is_the_gaussian_one():
    whole, nearly = local(record={"batch_rate": 1.0}), local(record={"batch_rate": 1 - 1e-9})
    assert record_server(whole).method == "gdp"
    assert record_server(nearly).epsilon == pytest.approx(record_server(whole).epsilon, rel=2e-3)


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_the_solved_noise_meets_the_target_from_below(accountant):
    solved = calibrate(local(record={"accountant": accountant}), Targets(record_epsilon=2.0))
    assert 0.99 * 2.0 <= record_server(solved).epsilon <= 2.0


@pytest.mark.parametrize("noise", [1e-2, 1e3])
def test_extreme_noises_give_a_number_or_infinity(noise):
    epsilon = record_server(local(record={"support_noise": noise})).epsilon
    assert epsilon > 0
    assert not math.isnan(epsilon)


def test_the_public_is_promised_no_less_than_the_server():
    cells = guarantees(local(cohort=10))
    assert cells[3].epsilon <= cells[2].epsilon


@pytest.mark.parametrize("changes", [{"batch_rate": 0.0}, {"batch_rate": 1.5}, {"batch_rate": math.nan},
                                     {"query_noise": 1.0}])  # fmt: skip
def test_batches_that_make_no_sense_are_refused(changes):
    with pytest.raises(RefusedPlan, match="batch_rate"):
        layer(**changes)


def test_a_mixture_of_batches_is_never_worse_than_its_bound():
    """Monte Carlo: the privacy loss of the dominating pair, K-fold, has the mass beyond epsilon that delta says."""
    rate, noise, steps = 0.2, 1.0, 5
    generator = np.random.default_rng(0)
    with_it = generator.random((400_000, steps)) < rate
    values = generator.normal(0, noise, (400_000, steps)) + with_it
    ratio = (values - 0.5) / noise**2
    loss = np.log1p(rate * np.expm1(ratio)).sum(1)
    for epsilon in (0.5, 1.5):
        delta = np.maximum(0, -np.expm1(epsilon - loss)).mean()
        error = 4 * np.maximum(0, -np.expm1(epsilon - loss)).std() / math.sqrt(400_000)
        assert poisson_steps_epsilon(rate, noise, steps, delta + error, "pld") <= epsilon * 1.01
        assert poisson_steps_epsilon(rate, noise, steps, max(delta - error, 1e-6), "pld") >= epsilon * 0.99


def split(**changes):
    return PrivacyPlan(
        **{"clients": 1000, "cohort": 100, "rounds": 20, "noise_multiplier": 2.0, "sampler": "fixed",
           "noise_site": "clients", "client_delta": 1e-5, **changes}
    )  # fmt: skip


def test_a_split_noise_is_that_of_the_others():
    plan = split()
    alone = replace(plan, noise_site="server", noise_multiplier=2.0 * math.sqrt(99 / 100))
    assert guarantees(plan)[0].epsilon == pytest.approx(guarantees(alone)[0].epsilon)
    assert plan.at(0).message_noise == pytest.approx(0.2)


def test_a_ledger_carries_the_share():
    plan = split()
    (phase,) = phases_of([planned_charge(plan, round_) for round_ in range(plan.rounds)])
    assert phase.event.message_noise == plan.at(0).message_noise


@pytest.mark.parametrize("changes", [{"sampler": "poisson"}, {"record": layer(batch_rate=1.0)}, {"colluding": 100}])
def test_a_share_that_is_not_what_was_planned_is_refused(changes):
    with pytest.raises(RefusedPlan):
        guarantees(split(**changes))


@pytest.mark.parametrize("z", [0.8, 3.0])
def test_delta_and_epsilon_are_inverse(z):
    phases = PrivacyPlan(clients=1000, cohort=200, rounds=40, noise_multiplier=z).phases
    epsilon = sampled_epsilon(phases, "add-remove", 1e-5)
    assert sampled_delta(phases, "add-remove", epsilon) == pytest.approx(1e-5, rel=0.05)
    assert sampled_delta((), "add-remove", 1.0) == 0.0


def test_a_replaced_record_of_a_mini_batch_has_the_bound_of_another_accountant():
    plan = local(record={"batch_rate": 0.2, "support_noise": 1.5})
    cell = guarantees(plan)[2]
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE, value_discretization_interval=1e-3)
    worst, left = worst_participations(plan.phases, plan.max_participations, plan.record_delta)
    steps = worst * plan.record.support_steps
    accountant.compose(PoissonSampledDpEvent(0.2, GaussianDpEvent(1.5)), steps)
    assert cell.relations["in-place"] == pytest.approx(accountant.get_epsilon(left), rel=0.01)
    assert cell.relations["in-place"] > cell.epsilon
    # What the public sees is computed from what the server sees; no other bound is smaller here.
    public = guarantees(plan)[3]
    assert (public.epsilon, public.relations["in-place"]) == (cell.epsilon, cell.relations["in-place"])
