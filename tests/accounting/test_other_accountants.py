from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from dpfedmeta.accounting import other_accountants
from dpfedmeta.accounting.divergences.pld_composition import sampled_epsilon
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.other_accountants import opinion_on_releases, opinion_remarks, second_opinion
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.core.errors import InputError

PLAN = PrivacyPlan(clients=100_000, cohort=1000, rounds=100, noise_multiplier=1.0)


def test_a_second_opinion_on_plans_of_every_kind():
    name, epsilon = second_opinion(PLAN.phases, 1e-6)
    assert name == "dp-accounting PLD"
    assert sampled_epsilon(PLAN.phases, "add-remove", 1e-6) == pytest.approx(epsilon, rel=0.005)
    layer = RecordLayer(support_noise=2.0, query_noise=2.0, support_steps=1, support_records=25, query_records=25)
    shared = PrivacyPlan(clients=100_000, cohort=1000, rounds=100, noise_multiplier=0.0, record=layer)
    assert second_opinion(shared.phases, 1e-6)[1] < epsilon
    fixed = PrivacyPlan(clients=100_000, cohort=1000, rounds=100, noise_multiplier=1.0, sampler="fixed")
    assert "RDP" in second_opinion(fixed.phases, 1e-6)[0]
    assert second_opinion(fixed.phases, 1e-6)[1] > sampled_epsilon(fixed.phases, "replace-one", 1e-6)


def test_a_small_epsilon_is_not_lost_in_the_other_accountants_grid():
    """On dp-accounting's own grid this is 0.00154 where 0.00060 holds."""
    small = PrivacyPlan(clients=400_000, cohort=60, rounds=300, noise_multiplier=10.0)
    own = sampled_epsilon(small.phases, "add-remove", 1e-6)
    assert second_opinion(small.phases, 1e-6)[1] == pytest.approx(own, rel=0.01)


def test_a_tiny_noise_does_not_make_a_grid_that_never_ends(monkeypatch):
    """It was refined a hundred times where epsilon is 0: minutes of silence after a run."""
    widths = []
    monkeypatch.setattr(
        "dpfedmeta.accounting.other_accountants.dp_accounting_pld",
        lambda *_, width: widths.append(width) or 0.0,
    )
    tiny = replace(PLAN, noise_multiplier=0.05, client_delta=0.5)
    assert second_opinion(tiny.phases, 0.5) == ("dp-accounting PLD", 0.0)
    assert len(widths) == 1
    assert widths[0] > 1e-3


def test_releases_of_which_it_knows_one_alone_get_no_opinion():
    known = PLAN.phases
    unknown = replace(PLAN, noise="toeplitz", correlation=Correlation(separation=2)).phases
    fixed = replace(PLAN, sampler="fixed").phases
    assert opinion_on_releases(known, 1e-6) is not None
    for phases in (unknown, (*known, *unknown), (*known, *fixed), (*fixed, *known)):
        assert opinion_on_releases(phases, 1e-6) is None


def test_no_noise_needs_no_opinion():
    nothing = PrivacyPlan(clients=10, cohort=1, rounds=1, noise_multiplier=None)
    assert second_opinion(nothing.phases, 1e-6) is None
    assert second_opinion((), 1e-6) is None


def with_rare(phases, rare):
    """The same rounds, each of which may fail with a probability so large that all of them together have this one."""
    rounds = sum(phase.rounds for phase in phases)
    return tuple(replace(each, event=replace(each.event, surplus_probability=rare / rounds)) for each in phases)


@pytest.mark.parametrize(
    "plan",
    [
        replace(PLAN, rounds=10, sampler="fixed"),
        replace(
            PLAN, clients=8000, rounds=8, noise="toeplitz", noise_multiplier=8.0, correlation=Correlation(separation=1)
        ),
    ],
    ids=["fixed", "all at once"],
)
def test_what_is_rare_is_off_delta_whichever_accountant_is_asked(plan):
    name, epsilon = second_opinion(with_rare(plan.phases, 0.0), 2e-7)
    assert second_opinion(with_rare(plan.phases, 8e-7), 1e-6) == (name, pytest.approx(epsilon, rel=1e-9))


@pytest.mark.parametrize("loose", [(False,), (True,), (False, True), (True, True)])
@pytest.mark.parametrize(("other", "agrees"), [(None, True), (2.0, True), (1.981, True), (1.97, False), (5.0, True)])
def test_another_accountant_s_number_is_held_against_ours_unless_all_are_loose(monkeypatch, loose, other, agrees):
    asked = []

    def opinion(phases, delta):
        asked.append((phases, delta))
        return None if other is None else ("theirs", other)

    monkeypatch.setattr(other_accountants, "second_opinion", opinion)
    bounds = tuple(SimpleNamespace(loose=each) for each in loose)
    cells = [SimpleNamespace(epsilon=2.0, bounds=bounds), None]
    fits = agrees or all(loose)
    with nullcontext() if fits else pytest.raises(InputError, match=r"2 here but 1\.97 by theirs: please report"):
        found = opinion_remarks(("before", "charged"), 1e-5, cells)
        assert (found == []) == (other is None)
        assert not found or "(theirs): " in found[0]
    assert asked == [(("before", "charged"), 1e-5)]
