"""What earlier versions wrote of a record-level layer, by the kind of message they named, is read as it was meant."""

from dataclasses import asdict, fields, replace

import pytest

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.versions import EVENTS, _record_of, charge_of, constants, old_phase, plan_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan

STATED = {
    "support_noise": 3.0, "query_noise": 5.0, "support_steps": 2, "support_records": 7, "query_records": 11,
    "query_to_message_bound": 0.5,
}  # fmt: skip
LAYER = RecordLayer(**STATED)
MEANT = {
    "query": LAYER,
    "update": replace(LAYER, query_noise=None),
    "episodes": replace(LAYER, support_noise=None, parts="micro-episodes"),
}


@pytest.mark.parametrize("message", MEANT)
def test_a_kind_of_message_is_the_releases_that_it_had(message):
    """A number where nothing was released has no meaning."""
    assert _record_of({**STATED, "message": message}, EVENTS - 1) == MEANT[message]


@pytest.mark.parametrize("field", [field.name for field in fields(RecordLayer)])
def test_of_this_version_every_field_is_read(field):
    others = {"parts": "others", "batch_rate": 0.5, "accountant": "rdp", "of_sum": True}
    layer = replace(LAYER, query_noise=None)
    changed = {field: others.get(field, 13)}
    if field == "of_sum":
        changed |= {"support_noise": None}
    elif field == "query_noise":
        layer = LAYER
    assert asdict(_record_of({**asdict(layer), **changed}, EVENTS)) == {**asdict(layer), **changed}


def test_a_line_of_before_events_has_the_constants_of_its_own_round():
    """It states what epsilon depends on; the rest is that of the plan's round, or of its nearest."""
    schedule = (Change(from_round=1, cohort_scale=0.5), Change(from_round=2, noise_scale=2.0))
    plan = PrivacyPlan(clients=1000, cohort=100, rounds=3, noise_multiplier=4.0, record=LAYER, schedule=schedule)
    stated = ("clients", "cohort", "message_noise", "query_noise", "rate", "sampler", "support_noise", "support_steps")
    assert len({plan.at(round_) for round_ in range(3)}) == 3
    for round_, of in ((-1, 0), (0, 0), (1, 1), (2, 2), (3, 2)):
        event = plan.at(of)
        line = {name: getattr(event, name) for name in (*stated, "surplus_probability")}
        line |= {"round": round_, "attempt": 0, "inputs": "a", "noise_multiplier": event.noise.multiplier}
        assert charge_of(line, plan, EVENTS - 1).event == event


def test_a_phase_is_stated_as_it_was_before_events_were():
    plan = PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0, max_participations=2, hostile=0.1,
                       record=LAYER)  # fmt: skip
    (phase,) = plan.phases
    told = {"largest_cohort": 21, "message_noise": 0.3, "surplus_probability": 1e-7, "total_noise": 2.5}
    phase = replace(phase, copy=4, event=replace(phase.event, **told, assured_noise=2.25, hostile=3))
    assert old_phase(phase) == {
        "rounds": 3, "sampler": "poisson", "clients": 100, "cohort": 10, "rate": 0.1, **told,
        "effective_noise": phase.event.noise.multiplier, "assured_noise": 2.25, "hostile": 3, "copy": 4,
    }  # fmt: skip
    assert old_phase(replace(phase, event=replace(phase.event, noise=None)))["effective_noise"] == 2.5


@pytest.mark.parametrize("layer", [None, *MEANT.values()])
def test_what_a_plan_states_makes_it_again(layer):
    plan = PrivacyPlan(
        clients=100, cohort=10, rounds=3, noise_multiplier=2.0, record=layer, noise_mode="stacked", colluding=2
    )
    assert plan_of(constants(plan), EVENTS) == plan
