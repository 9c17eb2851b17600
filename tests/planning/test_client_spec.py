"""How held-out clients adapt, from the settings and from how clients of the training do."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest

from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.planning.client_spec import evaluation_adaptation

# Whatever a field is when nobody gives it, this is something else.
TRAINED = Adaptation(adapt="head", steps=7, lr=0.3, rule=object(), targets=object(), balance="classes")


def evaluated(**chosen):
    settings = SimpleNamespace(evaluation=SimpleNamespace(**{"adapt": None, "steps": None, "lr": None, **chosen}))
    return evaluation_adaptation(settings, SimpleNamespace(adaptation=TRAINED))


@pytest.mark.parametrize("field", [field.name for field in fields(Adaptation)])
def test_held_out_clients_adapt_as_those_of_the_training(field):
    left = {each.name: each.default for each in fields(Adaptation)}
    assert getattr(TRAINED, field) != left[field]
    assert getattr(evaluated(), field) is getattr(TRAINED, field)


@pytest.mark.parametrize(("field", "value"), [("adapt", "all"), ("steps", 2), ("lr", 0.01)])
def test_a_setting_of_the_evaluation_changes_its_own_field(field, value):
    assert evaluated(**{field: value}) == replace(TRAINED, **{field: value})
