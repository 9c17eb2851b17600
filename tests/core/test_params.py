import pytest
import torch

from dpfedmeta.core.params import digest

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2)}
OTHERS = {
    "a name": {"a": WEIGHTS["a"], "c": WEIGHTS["b"]},
    "names exchanged": {"a": WEIGHTS["b"], "b": WEIGHTS["a"]},
    "a form": {"a": WEIGHTS["a"].reshape(3, 2), "b": WEIGHTS["b"]},
    "a type of the same bytes": {"a": WEIGHTS["a"].view(torch.int32), "b": WEIGHTS["b"]},
    "a bit": {"a": WEIGHTS["a"], "b": torch.nextafter(WEIGHTS["b"], torch.tensor(2.0))},
    "a tensor more": {**WEIGHTS, "c": torch.zeros(0)},
    "a tensor less": {"a": WEIGHTS["a"]},
}


@pytest.mark.parametrize("other", OTHERS)
def test_whatever_differs_the_digest_does(other):
    assert digest(OTHERS[other]) != digest(WEIGHTS)


def test_the_sign_of_zero_counts():
    assert digest({"a": torch.tensor([0.0])}) != digest({"a": torch.tensor([-0.0])})


def test_neither_order_nor_memory_counts():
    turned = WEIGHTS["a"].T.contiguous().T
    assert digest({"b": WEIGHTS["b"], "a": turned}) == digest(WEIGHTS)
