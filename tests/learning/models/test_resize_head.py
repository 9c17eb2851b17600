from dataclasses import replace

import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.models.initial_weights import check_weights, initial_weights, with_ways
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

SPEC = NetworkSpec(name="mlp", channels=1, image_size=8, ways=3, width=4, norm="none")


def test_the_same_ways_change_nothing():
    weights = initial_weights(SPEC, 0)
    spec, same = with_ways(SPEC, weights, 3)
    assert spec == SPEC
    assert all(same[name] is weights[name] for name in weights)


@pytest.mark.parametrize("ways", [2, 5])
def test_classes_keep_their_rows_and_further_ones_start_at_the_mean(ways):
    weights = initial_weights(SPEC, 0)
    spec, changed = with_ways(SPEC, weights, ways)
    assert spec.ways == ways
    check_weights(spec, changed, "here")
    kept = min(ways, 3)
    assert torch.equal(changed["head.weight"][:kept], weights["head.weight"][:kept])
    for row in changed["head.weight"][3:]:
        torch.testing.assert_close(row, weights["head.weight"].mean(0))
    assert torch.equal(changed["body.layers.1.weight"], weights["body.layers.1.weight"])


def test_a_head_of_zeros_stays_one():
    spec = replace(SPEC, learn="body")
    _, changed = with_ways(spec, initial_weights(spec, 0), 7)
    assert not changed["head.weight"].any()
    assert changed["head.weight"].shape == (7, 4)


@pytest.mark.parametrize("damage", ["shape", "missing", "more", "nan"])
def test_weights_of_another_network_are_refused(damage):
    weights = dict(initial_weights(SPEC, 0))
    if damage == "shape":
        weights["head.bias"] = torch.zeros(4)
    elif damage == "missing":
        del weights["head.bias"]
    elif damage == "more":
        weights["head.more"] = torch.zeros(1)
    else:
        weights["head.bias"] = torch.full((3,), float("nan"))
    with pytest.raises(InputError, match=r"here: head\."):
        check_weights(SPEC, weights, "here")
    check_weights(SPEC, initial_weights(SPEC, 0), "here")
    assert build_network(SPEC) is not None
