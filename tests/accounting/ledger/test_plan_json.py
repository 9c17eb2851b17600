"""A plan, and the record-level layer in it, comes back from its JSON as it was; every constant is stated."""

import re
from copy import deepcopy
from dataclasses import asdict, fields, replace

import pytest

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.ledger.plan_json import _record_of, constants, plan_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan
from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds
from dpfedmeta.accounting.relations.relations import MomentBlocks

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
        "blocks": {"pairs": 1.5, "labels": 0.0, "radius": 1.0, "target": 0.0},
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


PLAN = constants(PrivacyPlan(clients=100, cohort=10, rounds=3, noise_multiplier=2.0, record=LAYER))
BLOCKS = MomentBlocks(pairs=1.5, labels=0.0, radius=1.0)
MOMENTS = replace(LAYER, support_noise=None, blocks=BLOCKS)
# A plan's JSON, and where in it a form stands.
FORMS = {
    PrivacyPlan: (PLAN, ()),
    RecordLayer: (PLAN, ("record",)),
    MomentBlocks: ({**PLAN, "record": asdict(MOMENTS)}, ("record", "blocks")),
    Change: ({**PLAN, "schedule": [asdict(Change(from_round=1))]}, ("schedule", 0)),
    Correlation: ({**PLAN, "correlation": asdict(Correlation(separation=2))}, ("correlation",)),
    SecureRounds: ({**PLAN, "secure": asdict(SecureRounds(bits=20, dimension=5))}, ("secure",)),
}


@pytest.mark.parametrize(
    ("form", "name"), [(form, field.name) for form in FORMS for field in fields(form) if field.init]
)
def test_a_constant_that_is_left_out_is_not_guessed(form, name):
    """A default would be one that nobody promised, in the plan as in each part of it."""
    stated, place = deepcopy(FORMS[form])
    part = stated
    for step in place:
        part = part[step]
    del part[name]
    with pytest.raises(LookupError, match=name):
        plan_of(stated)


def test_every_part_of_a_plan_is_walked():
    """The forms that its annotations name; what earlier ledgers charged has a reader of its own."""
    names = {word for form in FORMS for field in fields(form) for word in re.findall(r"[A-Z]\w+", str(field.type))}
    plain = {"None", "NoiseMode", "NoiseSite", "ServerSees", "AccountantName", "Relation"}
    assert names - plain == {form.__name__ for form in FORMS} - {"PrivacyPlan"} | {"Earlier"}
