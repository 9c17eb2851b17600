"""What earlier versions wrote of a record-level layer, by the kind of message they named, is read as it was meant."""

from dataclasses import asdict, fields, replace

import pytest

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.versions import EVENTS, _record_of, charge_of, constants, old_phase, plan_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.core.errors import InputError

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
    others = {
        "parts": "others",
        "batch_rate": 0.5,
        "accountant": "rdp",
        "of_sum": True,
        "rows": True,
        "own_terms": True,
        "blocks": {"pairs": 1.5, "labels": 0.0, "radius": 1.0},
    }
    layer = replace(LAYER, query_noise=None)
    changed = {field: others.get(field, 13)}
    if field in ("of_sum", "own_terms", "blocks"):
        changed |= {"support_noise": None, **({"query_noise": 5.0} if field != "of_sum" else {})}
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


@pytest.mark.parametrize("layer", [None, LAYER, MEANT["update"]], ids=["no records", "query", "update"])
def test_a_line_of_before_events_states_its_own_noises(layer):
    """What epsilon depends on is the line's, whatever the plan says; of updates a query's noise has no meaning."""
    plan = PrivacyPlan(clients=1000, cohort=100, rounds=3, noise_multiplier=4.0, record=layer, noise_mode="stacked")
    line = {
        "round": 1,
        "attempt": 2,
        "inputs": "a",
        "noise_multiplier": 2.5,
        "query_noise": 7.5,
        "message_noise": 0.125,
    }
    if layer is None:
        del line["query_noise"]
    charge = charge_of(line, plan, EVENTS - 1)
    assert (charge.round, charge.attempt, charge.inputs, charge.fresh) == (1, 2, "a", "")
    assert (charge.event.noise.multiplier, charge.event.message_noise) == (2.5, 0.125)
    assert charge.event.query_noise == (7.5 if layer is LAYER else None)
    assert charge_of({**line, "noise_multiplier": 0.0}, plan, EVENTS - 1).event.noise is None
    for wrong in ({"round": 1.0}, {"attempt": True}, {"inputs": 3}):
        with pytest.raises(TypeError, match=r"round .*, attempt .*, inputs "):
            charge_of({**line, **wrong}, plan, EVENTS - 1)
    for name in ("round", "attempt", "inputs", "noise_multiplier"):
        with pytest.raises(LookupError):
            charge_of({key: value for key, value in line.items() if key != name}, plan, EVENTS - 1)


@pytest.mark.parametrize("version", [2, 6, 0, "5", None])
def test_a_version_that_nobody_knows_names_those_that_are_known(version):
    stated = constants(PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0))
    with pytest.raises(InputError, match=rf"version {version} is not known here, only version 3, 4, 5; verify it with"):
        plan_of(stated, version)


@pytest.mark.parametrize("version", [3, 4])
def test_what_an_earlier_version_left_unsaid_is_what_it_was(version):
    plan = PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0)
    stated = constants(plan)
    unsaid = {"noise", "server_sees"} | ({"hostile"} if version == 3 else set())
    assert plan_of({name: value for name, value in stated.items() if name not in unsaid}, version) == plan
    assert plan_of({**stated, "hostile": 0.25}, version).hostile == 0.25
