import math

import numpy as np
import pytest
import torch

from dpfedmeta.core import params
from dpfedmeta.core.params import digest, host

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


def both(values):
    """The same parameters as tensors and as numpy arrays."""
    tensors = {name: torch.tensor(value, dtype=torch.float32) for name, value in values.items()}
    return tensors, {name: value.numpy().copy() for name, value in tensors.items()}


VALUES = {"w": [[1.5, -2.0, 0.25], [4.0, 8.0, -16.0]], "b": [3.0], "s": 0.5}
OTHER = {"w": [[2.0, 1.0, 0.0], [-4.0, 0.5, 16.0]], "b": [7.0], "s": -1.5}
FLAT = [1.5, -2.0, 0.25, 4.0, 8.0, -16.0, 3.0, 0.5]


def same(found, expected):
    assert list(found) == list(expected)
    for name, value in expected.items():
        assert np.array_equal(host(found[name]), np.asarray(value, dtype=np.float32)), name
        assert host(found[name]).shape == np.asarray(value).shape


@pytest.mark.parametrize("kind", [0, 1], ids=["tensors", "arrays"])
class TestBothKinds:
    def test_numbers_of_all_parameters_together(self, kind):
        values = both(VALUES)[kind]
        assert params.dimension(values) == 8
        assert params.norm(values) == pytest.approx(math.sqrt(sum(x * x for x in FLAT)), rel=1e-12)
        assert params.norm({}) == 0.0
        assert host(params.flatten(values)).tolist() == FLAT
        assert params.vector_of(values).dtype == np.float64
        assert params.vector_of(values).tolist() == FLAT
        # As long as a float64 is, which no float32 is.
        assert params.norm(both({"a": [1e30, 1e30]})[kind]) == pytest.approx(math.sqrt(2) * 1e30, rel=1e-6)
        assert params.length_of(both({"a": [3.0, 4.0]})[kind]["a"]) == 5.0
        huge = torch.tensor([1e200, -1e200], dtype=torch.float64)
        # Infinite, without a warning.
        assert params.length_of(huge.numpy() if kind else huge) == math.inf or not kind

    @pytest.mark.parametrize("place", [("w", (1, 2)), ("b", (0,)), ("s", ())])
    @pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
    def test_one_number_that_is_not_finite_is_enough(self, kind, place, bad):
        values = both(VALUES)[kind]
        assert params.is_finite(values)
        assert params.is_finite({})
        values[place[0]][place[1]] = bad
        assert not params.is_finite(values)

    def test_arithmetic_by_name(self, kind):
        # Numpy makes a number of an array without dimensions.
        one, two = ({name: given[name] for name in ("w", "b")} for given in (VALUES, OTHER))
        values, other = both(one)[kind], both(two)[kind]
        turned = dict(reversed(list(other.items())))
        same(params.scaled(values, -0.5), {name: -0.5 * np.asarray(value) for name, value in one.items()})
        expected = {name: np.asarray(one[name]) - np.asarray(two[name]) for name in one}
        same(params.difference(values, turned), expected)
        thrice = {name: 2 * np.asarray(one[name]) + np.asarray(two[name]) for name in one}
        same(params.added([values, turned, values]), thrice)
        same(params.added(iter([values])), one)
        same(params.zeros_like(values), {name: np.zeros_like(np.asarray(value)) for name, value in one.items()})
        assert all(params.is_numpy(value) is bool(kind) for value in params.added([values, other]).values())
        with pytest.raises(ValueError, match="no parameters to add up"):
            params.added([])

    def test_a_vector_is_cut_as_the_parameters_are(self, kind):
        values = both(VALUES)[kind]
        same(params.unflatten(params.flatten(values), values), VALUES)
        with pytest.raises(ValueError, match="a vector of 9 for parameters of 8"):
            params.unflatten(both({"a": [*FLAT, 1.0]})[kind]["a"], values)
        with pytest.raises((ValueError, RuntimeError)):
            params.unflatten(both({"a": FLAT[:-1]})[kind]["a"], values)

    def test_a_mean_is_computed_in_float64_and_rounded_once(self, kind):
        values = both({"a": [1.0, 2.0**24], "b": [[3.0]]})[kind]
        added = np.array([2.0**-30, 1.0, 0.5])
        found = params.rounded_mean(values, added, 3.0)
        exact = [(1.0 + 2.0**-30) / 3, (2.0**24 + 1) / 3, 3.5 / 3]
        same(found, {"a": np.float32(exact[:2]), "b": np.float32([exact[2:]])})
        same(params.rounded_mean(values, None, 3.0), {"a": np.float32([1 / 3, 2.0**24 / 3]), "b": np.float32([[1.0]])})
        assert all(host(value).dtype == np.float32 for value in found.values())
        assert all(params.is_numpy(value) is bool(kind) for value in found.values())

    def test_types_are_changed_and_numbers_are_not(self, kind):
        value = both(VALUES)[kind]["w"]
        assert host(params.float64(value)).dtype == np.float64
        assert host(params.same_type(params.float64(value), value)).dtype == np.float32
        assert host(params.int64(both({"a": [1.9, -1.9, 0.5]})[kind]["a"])).tolist() == [1, -1, 0]
        kept = params.same_kind(np.array([1.0, 2.0]), value)
        assert params.is_numpy(kept) is bool(kind)
        assert host(kept).tolist() == [1.0, 2.0]
        assert digest(both(VALUES)[0]) == digest(both(VALUES)[1])


def test_parameters_travel_as_arrays_and_come_back_as_a_copy():
    tensors, _ = both(VALUES)
    tensors["w"].requires_grad_(True)
    arrays = params.arrays_of(tensors)
    assert all(params.is_numpy(value) for value in arrays.values())
    back = params.tensors_of(arrays)
    same(back, VALUES)
    back["w"][0, 0] = 99.0
    assert arrays["w"][0, 0] == 1.5
    assert not params.detached(tensors)["w"].requires_grad
    assert not params.flatten(tensors).requires_grad
    assert torch.equal(params.placed(tensors["b"], torch.device("cpu")), tensors["b"])
