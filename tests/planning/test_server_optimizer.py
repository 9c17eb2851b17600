import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.server_optimizers.sgd_rule import sgd
from dpfedmeta.planning.run_plan import rule_of

NO_FUNCTION = 3


def failing(moments):
    raise KeyError("no such thing")


def shorter(moments):
    return {name: torch.zeros(1) for name in moments.first}


def halved(moments):
    return {name: 0.5 * value for name, value in moments.first.items()}


def test_a_rule_is_found_by_its_name_or_by_its_module():
    assert rule_of("sgd") is sgd
    assert rule_of(f"{__name__}:halved") is halved


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NO_FUNCTION", "expected a function of moments, got int"),
        ("failing", "failed in a trial with moments of ones"),
        ("shorter", "other names or shapes"),
    ],
)
def test_what_is_no_rule_is_refused_before_the_first_round(name, words):
    with pytest.raises(InputError, match=words):
        rule_of(f"{__name__}:{name}")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(InputError, match="muon"):
        rule_of("muno")
