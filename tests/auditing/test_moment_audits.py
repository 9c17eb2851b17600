"""Audits of moments: canaries that move a release as far as a record or a client may, and findings that say so."""

import pytest
import torch

from dpfedmeta.auditing.attacks.likelihood_ratio import attack_on
from dpfedmeta.auditing.audit_request import AuditRequest
from dpfedmeta.auditing.estimators.many_runs import Bench, findings_of
from dpfedmeta.auditing.neighbouring_runs import Known, MomentWorlds
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.auditing.run_audit import cells_under_zero_out, findings, forecast
from dpfedmeta.learning.record_dp import moment_messages
from dpfedmeta.privacy.units import Bounded

ONE = {"server.rounds": "1"}
ALGORITHMS = ("moments-agr", "moments-agrlr", "moments-agrlr-secure", "moments-then-gradients")


def request_of(algo, **given):
    sizes = {name: given.pop(name) for name in ("runs", "seed", "units", "observers", "audits") if name in given}
    own = {"seed": 1, "runs": 300, "audits": ("distinguish",)} | sizes
    return AuditRequest(algo=algo, dataset="omniglot", given=given, **own)


def moved(plan, worlds):
    """By how much the exact message of the canary differs, in the unit in which it is sent."""
    weights = plan.algorithm.initial(plan.network, 0)
    model = plan.algorithm.learned(plan.network, weights)
    first = ObservedRound(round=0, bound=plan.policy.initial().bound, model=model, total=None, deviation=0.0)
    known = Known(worlds=worlds)
    return float(torch.linalg.vector_norm(known.message(first, True) - known.message(first, False)))


def attack_of(plan, unit, observer):
    cell = next(each for each in cells_under_zero_out(plan) if (each.unit, each.observer) == (unit, observer))
    return cell, attack_on(plan, cell)


@pytest.mark.parametrize("algo", ["moments-agrlr", "moments-agrlr-secure"])
def test_a_canary_record_moves_what_is_sent_by_all_that_a_record_may(algo):
    """Under sums but for rounding, which lengthens records: the mean of them is 5% shorter than the longest."""
    plan = request_of(algo, **ONE).plan()
    _, attack = attack_of(plan, "record", "server")
    found = moved(plan, attack.worlds)
    if algo == "moments-agrlr":
        assert found * plan.privacy.record.query_records == pytest.approx(1.0, abs=1e-6)
    else:
        whole = plan.privacy.at(0).whole
        assert 0.9 < found * whole.of_a_client / (whole.units) <= 1.0


@pytest.mark.parametrize("other", [0, -1])
def test_a_canary_client_moves_a_message_by_nearly_all_that_a_client_may(other):
    plan = request_of("moments-agrlr", **ONE).plan()
    record = plan.privacy.record
    most = record.blocks.of_client(record.query_records) / record.query_records
    found = moved(plan, MomentWorlds(plan=plan, other=other)) * (1.0 if other else 2**0.5)
    assert 0.9 * most < found <= most * (1 + 1e-9)


# The cells for which a preset promises something.
CELLS = {
    "moments-agr": ("client", "public"),
    "moments-agrlr": ("record", "server"),
    "moments-agrlr-secure": ("record", "server"),
    "moments-then-gradients": ("client", "public"),
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", CELLS)
def test_what_is_promised_is_found_up_to_a_fifth_and_no_more(algo):
    """On a plan without sampling: all that a canary moves is seen."""
    unit, observer = CELLS[algo]
    rounds = {} if algo == "moments-then-gradients" else ONE
    request = request_of(algo, **rounds, units=(unit,), observers=(observer,), runs=1500)
    (found,), (expected,) = findings(request), forecast(request)
    assert 0.8 * found.promised < found.audited <= found.promised
    assert found.audited == pytest.approx(expected.audited, rel=0.2)


def test_half_the_noise_in_a_message_is_found(monkeypatch):
    """Planted: a record is said to move the moments by half of what it does."""

    def half(value, sensitivity):
        return Bounded(value=value, sensitivity=sensitivity / 2)

    plan = request_of("moments-agrlr", **ONE).plan()
    cell, attack = attack_of(plan, "record", "server")
    monkeypatch.setattr(moment_messages, "Bounded", half)
    found = next(iter(findings_of(Bench(plan=plan, runs=200, seed=1).ratios(attack), cell, attack.curve, 0.05)))
    assert found.above


def test_a_crowd_of_canaries_is_refused_under_sums_and_has_its_coordinates_elsewhere():
    (found,) = findings(request_of("moments-agrlr-secure", audits=("one-run",)))
    assert found.audited is None
    assert "whole numbers of their records" in found.method
    (expected,) = forecast(request_of("moments-agrlr-secure", audits=("one-run",)))
    assert expected.method == found.method


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_the_small_plan_is_of_moments_too(algo):
    settings = request_of(algo).settings()
    assert (settings.model.name, settings.meta.own["directions"]) == ("metric", 8)
    noises = {phase.event.noise.multiplier for phase in request_of(algo).plan().privacy.phases if phase.event.noise}
    assert len(noises) == (2 if algo == "moments-then-gradients" else 1)
