"""A plan, and the record-level layer in it, comes back from its JSON as it was; every constant is stated."""

from dataclasses import asdict, fields, replace

import pytest

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.ledger.plan_json import _record_of, constants, plan_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

LAYER = RecordLayer(
    support_noise=3.0, query_noise=5.0, support_steps=2, support_records=7, query_records=11, query_to_message_bound=0.5
)
LAYERS = (
    LAYER,
    replace(LAYER, query_noise=None),
    replace(LAYER, support_noise=None, parts="micro-episodes"),
)


@pytest.mark.parametrize("field", [field.name for field in fields(RecordLayer)])
def test_every_field_of_a_record_layer_is_read(field):
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
    assert asdict(_record_of({**asdict(layer), **changed})) == {**asdict(layer), **changed}


@pytest.mark.parametrize("layer", [None, *LAYERS])
def test_what_a_plan_states_makes_it_again(layer):
    plan = PrivacyPlan(
        clients=100, cohort=10, rounds=3, noise_multiplier=2.0, record=layer, noise_mode="stacked", colluding=2
    )
    assert plan_of(constants(plan)) == plan


@pytest.mark.parametrize("name", [field.name for field in fields(PrivacyPlan) if field.init])
def test_a_constant_that_is_left_out_is_not_guessed(name):
    """A default would be one that nobody promised."""
    stated = constants(PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0))
    del stated[name]
    with pytest.raises((LookupError, TypeError)):
        plan_of(stated)
