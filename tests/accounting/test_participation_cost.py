"""What one participation costs towards the server is answered in one place, for every kind of plan."""

import ast
import math
from dataclasses import replace

import pytest

from dpfedmeta.accounting.divergences.gdp import gaussian_epsilon
from dpfedmeta.accounting.events.events import Earlier, Phase
from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.observers.server_observer import record_server, records_of_several
from dpfedmeta.accounting.participation_cost import participation
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from tests.parsed import PACKAGE, modules, nodes_of

OWN = RecordLayer(support_noise=3.0, query_noise=2.0, support_steps=4, support_records=25, query_records=20)
PARTS = RecordLayer(
    support_noise=None, query_noise=None, support_steps=1, support_records=1, query_records=5, of_sum=True
)
MESSAGES = PrivacyPlan(clients=2000, cohort=100, rounds=6, noise_multiplier=4.0, max_participations=2)
SUMS = replace(
    MESSAGES, server_sees="sum", secure=SecureRounds(bits=20, dimension=100, parts=5, adversarial=0.05), record=PARTS
)


def one(plan, unit, relation="zero-out"):
    return participation(plan.at(0), plan.record, plan.server_sees, unit, relation).mu


def test_each_kind_of_plan_by_its_formula():
    layered, summed = replace(MESSAGES, record=OWN), SUMS.at(0).sum_noise.multiplier
    split = replace(MESSAGES, noise_site="clients", sampler="fixed", max_participations=None)
    assert one(layered, "record") == 2 / 3
    assert one(layered, "record", "in-place") == 4 / 3
    assert one(layered, "client") == 2 * 20 / 2.0
    assert one(SUMS, "record") == pytest.approx(1 / 5 / summed)
    assert one(SUMS, "record", "in-place") == pytest.approx(2 / 5 / summed)
    assert one(SUMS, "client") == pytest.approx(2 / summed)
    assert one(split, "record") == one(split, "client") == pytest.approx(2.0 * math.sqrt(100) / 4.0)
    assert one(replace(split, server_sees="sum"), "record") == pytest.approx(2.0 / split.at(0).noise.multiplier)
    for unit in ("record", "client"):
        assert one(MESSAGES, unit) == one(replace(MESSAGES, server_sees="sum"), unit) == math.inf
        assert one(replace(SUMS, noise_multiplier=0.0), unit) == math.inf


def test_parts_without_noise_of_their_own_have_none_to_offer():
    """Read as 0 it was a guarantee that nothing held."""
    assert PARTS.roles() == (math.inf, math.inf)


@pytest.mark.parametrize("plan", [replace(MESSAGES, record=OWN), SUMS, replace(SUMS, record=None, max_participations=1,
    secure=replace(SUMS.secure, parts=1))])  # fmt: skip
@pytest.mark.parametrize("relation", ["zero-out", "in-place"])
def test_several_runs_cost_what_their_rounds_cost_as_copies_of_one(plan, relation):
    copies = [Phase(event=phase.event, rounds=phase.rounds, copy=copy) for copy in range(3) for phase in plan.phases]
    terms = replace(Terms.of(plan), relation=relation)
    together = record_server(copies, terms).bounds[0].epsilon
    alone = record_server(plan.phases, terms).bounds[0].epsilon
    found = records_of_several([(plan.phases, terms)] * 3)
    assert found == pytest.approx(together, rel=1e-9)
    assert found > 1.5 * alone
    assert records_of_several([(plan.phases, terms)]) == pytest.approx(alone, rel=1e-9)


def test_several_runs_may_differ():
    quiet, loud = (
        replace(MESSAGES, record=OWN),
        replace(MESSAGES, record=replace(OWN, query_noise=1.0, support_steps=1)),
    )
    squared = 2 * (2 / 3) ** 2 + 2 * 1.0
    found = records_of_several([(plan.phases, Terms.of(plan)) for plan in (quiet, loud)])
    assert found == pytest.approx(gaussian_epsilon(math.sqrt(squared), 1e-5), rel=1e-9)


def test_several_runs_of_which_one_cannot_be_counted():
    runs = [(plan.phases, Terms.of(plan)) for plan in (SUMS, replace(SUMS, max_participations=None))]
    assert records_of_several(runs) is None
    assert records_of_several([runs[0], (MESSAGES.phases, Terms.of(MESSAGES))]) == math.inf
    # Rare events are taken off delta, of all runs together.
    many = math.ceil(SUMS.record_delta / (SUMS.rounds * SUMS.at(0).surplus_probability)) + 1
    assert records_of_several([runs[0]] * many) == math.inf
    assert records_of_several([runs[0]] * 2) > guarantees(SUMS)[2].epsilon


READERS = {
    "roles": {
        "accounting/events/record_layer.py",
        "accounting/release_costs/independent_cost.py",
    },
    "whole_client": {"accounting/events/record_layer.py", "accounting/participation_cost.py"},
    "towards_messages": {
        "accounting/calibration.py",
        "accounting/participation_cost.py",
        "accounting/release_costs/independent_cost.py",
    },
    "sum_noise": {
        "accounting/participation_cost.py",
        "accounting/observers/server_observer.py",
        "accounting/events/events.py",
    },
}


@pytest.mark.parametrize("field", READERS)
def test_nobody_else_reads_what_it_is_computed_from(field):
    found = {
        str(path.relative_to(PACKAGE))
        for path in modules()
        for node in nodes_of(path)
        if isinstance(node, ast.Attribute) and node.attr == field
    }
    assert found == READERS[field]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize(("support", "query"), [(3.0, 2.0), (None, 2.0)])
def test_the_releases_that_an_event_lists_cost_what_the_participation_does(steps, support, query):
    """Each step on the support set is one, so that a message that left out or added one is no message of the plan."""
    layer = replace(OWN, support_noise=support, query_noise=query, support_steps=steps)
    plan = replace(MESSAGES, record=layer)
    noises = [noise.multiplier for noise in plan.at(0).record_noises]
    assert noises == [support] * steps * (support is not None) + [query] * (query is not None)
    roles = [math.sqrt(sum(noise**-2 for noise in noises if noise == each)) for each in (support, query) if each]
    if len(roles) == 2:
        assert one(plan, "record") == pytest.approx(max(roles))


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("plan", [replace(MESSAGES, record=OWN), SUMS], ids=["messages", "sums"])
def test_whichever_of_several_runs_begins_with_what_was_spent_before_nothing_is_stated(plan, place):
    later = replace(plan, earlier=(Earlier(run="a", head="0", phases=plan.phases),))
    runs = [(plan.phases, Terms.of(plan))] * 2
    assert math.isfinite(records_of_several(runs))
    runs[place] = (later.phases, Terms.of(later))
    assert records_of_several(runs) == math.inf
