"""Sums of messages as whole numbers: exact in any order, and no further than a message from the sum without it."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedmeta.accounting.events.failure_probability import MOST_MESSAGES
from dpfedmeta.privacy.discretised.fixed_point import WholeNumbers

BOUNDS = st.floats(1e-290, 1e290)
SEEDS = st.integers(0, 2**31)


def messages(seed, count, size, longest):
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(count, size, generator=generator, dtype=torch.float64)
    scale = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    # Norms up to the longest one, and some of exactly that norm.
    scale[::3] = 1.0
    return drawn / drawn.norm(dim=1, keepdim=True) * scale * longest


@given(SEEDS, BOUNDS | st.just(math.inf))
@settings(max_examples=60, deadline=None)
def test_no_coordinate_grows_and_none_moves_by_more_than_a_unit(seed, longest):
    numbers = WholeNumbers.for_messages(longest)
    assert numbers.longest == longest or longest == math.inf
    for message in messages(seed, 6, 40, numbers.longest):
        kept = numbers.values(numbers.of(message))
        assert bool((kept.abs() <= message.abs()).all())
        assert bool(((message - kept).abs() < numbers.units[-1]).all())
        assert bool((kept * message >= 0).all())
    assert numbers.units[-1] <= numbers.longest * 2.0**-35


@pytest.mark.parametrize("longest", [1e-290, 1e-300, 1e-308, 5e-324])
def test_a_unit_is_never_smaller_than_floats_can_be_scaled_by(longest):
    numbers = WholeNumbers.for_messages(longest)
    (unit,) = numbers.units
    assert unit == max(unit, 2.0**-1022)
    values = torch.tensor([longest, -longest, 0.0], dtype=torch.float64)
    whole = numbers.of(values)
    assert int(whole.abs().max()) <= 2**37
    kept = numbers.values(whole)
    assert bool((kept.abs() <= values.abs()).all())
    assert bool(((values - kept).abs() < unit).all())


@given(SEEDS, BOUNDS, st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_a_sum_does_not_depend_on_its_order_or_on_who_adds_what(seed, longest, count):
    numbers = WholeNumbers.for_messages(longest)
    each = [numbers.of(message) for message in messages(seed, count, 30, longest)]
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    forwards = sum(each, start=numbers.zero(30))
    shuffled = sum((each[place] for place in order), start=numbers.zero(30))
    parts = sum(each[: count // 2], start=numbers.zero(30)) + sum(each[count // 2 :], start=numbers.zero(30))
    assert torch.equal(forwards, shuffled)
    assert torch.equal(forwards, parts)


def test_floats_added_in_another_order_do_differ():
    each = messages(3, 40, 2000, 0.3)
    assert not torch.equal(sum(each), sum(reversed(list(each))))


def check_sensitivity(encode, numbers=None):
    """A client that comes or goes moves the sum by the norm of its message at most, at any edge of rounding."""
    numbers = numbers or WholeNumbers.for_messages(0.3)
    for seed in range(30):
        others, own = messages(seed, 5, 200, 0.3), messages(seed + 1000, 1, 200, 0.3)[0]
        without = sum((encode(numbers, each) for each in others), start=numbers.zero(200))
        moved = numbers.values(without + encode(numbers, own)) - numbers.values(without)
        assert float(moved.norm()) <= 0.3 * (1 + 1e-15)


def upwards(numbers, values):
    return torch.ceil(values / numbers.units[0]).long()[None]


def of_a_sum_in_floats(numbers, values):
    return torch.round(values / numbers.units[0] + 0.5).long()[None]


def test_one_client_moves_the_sum_by_its_own_norm_at_most(only_ours):
    only_ours(check_sensitivity, WholeNumbers.of, upwards, of_a_sum_in_floats)


@pytest.mark.parametrize("longest", [1e-290, 1.0, 0.7, 2.0**20, 1e290])
def test_as_many_messages_as_allowed_do_not_overflow(longest):
    numbers = WholeNumbers.for_messages(longest)
    one = numbers.of(torch.tensor([longest, -longest], dtype=torch.float64))
    assert int(one.abs().max()) * MOST_MESSAGES <= 2**63
    total = numbers.values(one * (MOST_MESSAGES - 1))
    assert total.tolist() == pytest.approx([longest * (MOST_MESSAGES - 1), -longest * (MOST_MESSAGES - 1)])


def test_without_a_bound_float32_of_use_is_kept_to_the_last_bit():
    numbers = WholeNumbers.for_messages(math.inf)
    values = torch.randn(5000, generator=torch.Generator().manual_seed(1)).double()
    small = values * 2.0**-20
    assert torch.equal(numbers.values(numbers.of(values)), values)
    assert torch.equal(numbers.values(numbers.of(small)), torch.trunc(small * 2.0**52) * 2.0**-52)
    assert float((numbers.values(numbers.of(small)) - small).abs().max()) < 2.0**-52
