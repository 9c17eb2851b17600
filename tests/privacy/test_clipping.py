import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedmeta.core.params import norm
from dpfedmeta.privacy.clipping import clip, clip_per_layer
from dpfedmeta.privacy.per_example.clip_rows import clipped_record_sum

finite = st.integers(-(10**9), 10**9).map(lambda n: n * 1e21) | st.integers(-1000, 1000).map(lambda n: n / 7)
vectors = st.lists(finite, min_size=3, max_size=3)


def params(values):
    return {"a": torch.tensor(values[:2]), "b": torch.tensor(values[2:])}


@settings(max_examples=300, deadline=None)
@given(vectors, st.floats(1e-6, 1e6))
def test_a_clipped_contribution_is_never_longer_than_its_bound(values, bound):
    assert norm(clip(params(values), bound)) <= bound


@settings(max_examples=200, deadline=None)
@given(vectors, vectors, st.floats(1e-3, 1e3))
def test_clipping_is_one_lipschitz(left, right, bound):
    a, b = params(left), params(right)
    apart = norm({name: a[name].double() - b[name].double() for name in a})
    x, y = clip(a, bound), clip(b, bound)
    assert norm({name: x[name].double() - y[name].double() for name in x}) <= apart * (1 + 1e-5) + 1e-5 * bound


def test_short_contributions_and_an_infinite_bound_change_nothing():
    short = params([0.1, 0.2, 0.3])
    for bound in (1.0, math.inf):
        assert all(torch.equal(clip(short, bound)[n], short[n]) for n in short)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_contribution_that_is_not_finite_counts_as_zero(bad):
    assert norm(clip(params([bad, 1.0, 1.0]), 1.0)) == 0.0
    # The layers that are finite do not count alone.
    layers = {"a.weight": torch.tensor([bad, 1.0]), "b.weight": torch.ones(2)}
    assert norm(clip_per_layer(layers, 1.0)) == 0.0


def test_zero_divides_nothing():
    assert norm(clip(params([0.0, 0.0, 0.0]), 1.0)) == 0.0


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_a_bound_that_is_not_positive_is_an_error(bound):
    with pytest.raises(ValueError, match="must be > 0"):
        clip(params([1.0, 1.0, 1.0]), bound)


def record_gradients(seed=0, records=6, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "w": scale * torch.randn(records, 3, 2, generator=generator),
        "b": scale * torch.randn(records, 4, generator=generator),
    }


@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e3, 1e18])
def test_one_record_moves_the_sum_by_at_most_the_sensitivity(scale):
    gradients = record_gradients(scale=scale)
    whole = clipped_record_sum(gradients, 0.7)
    for record in range(6):
        without = {n: g.clone() for n, g in gradients.items()}
        for tensor in without.values():
            tensor[record] = 0.0
        moved = clipped_record_sum(without, 0.7)
        change = norm({n: whole.value[n].double() - moved.value[n].double() for n in gradients})
        assert change <= whole.sensitivity * (1 + 1e-5)


def test_the_sum_equals_a_loop_over_records():
    gradients = record_gradients()
    expected = {n: torch.zeros_like(g[0]) for n, g in gradients.items()}
    for record in range(6):
        clipped = clip({n: g[record] for n, g in gradients.items()}, 0.7)
        expected = {n: expected[n] + clipped[n] for n in expected}
    whole = clipped_record_sum(gradients, 0.7).value
    assert all(torch.allclose(whole[n].float(), expected[n], atol=1e-6) for n in expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_counts_as_zero_and_touches_no_other(bad):
    gradients = record_gradients()
    poisoned = {n: g.clone() for n, g in gradients.items()}
    poisoned["w"][2, 0, 0] = bad
    removed = {n: g.clone() for n, g in gradients.items()}
    for tensor in removed.values():
        tensor[2] = 0.0
    left, right = (clipped_record_sum(g, 0.7).value for g in (poisoned, removed))
    assert all(torch.allclose(left[n], right[n], atol=1e-7) for n in left)


def test_lengths_are_taken_in_float64_and_nothing_is_copied_in_any_layout():
    long = torch.tensor([[1e25, 0.0], [3.0, 4.0], [1e-25, 0.0]])
    clipped = clipped_record_sum({"w": long}, 1.0).value["w"]
    assert torch.allclose(clipped, torch.tensor([1.6, 0.8], dtype=torch.float64), rtol=1e-5)
    generator = torch.Generator().manual_seed(0)
    plain = torch.randn(5, 2, 3, 4, generator=generator)
    turned = plain.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    other = torch.randn(5, 7, generator=generator)
    one, two = (clipped_record_sum({"a": value, "b": other}, 0.5).value for value in (plain, turned))
    for name, value in one.items():
        torch.testing.assert_close(two[name], value)
        assert two[name].is_contiguous()
