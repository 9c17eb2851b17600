"""Adapters: the identity before training, and no record that weighs more than another."""

import pytest
import torch

from dpfedmeta.learning.models.functional import apply_body
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, check_records_uncoupled
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import learned_part

KINDS = ["affine", "identity", "low-rank"]


def spec(kind, **changes):
    return NetworkSpec(
        name=kind, channels=40, image_size=1, ways=4, width=3, norm="none", learn="body", records="vectors", **changes
    )


def features(weights, kind, records):
    return apply_body(build_network(spec(kind)), weights, records, None)


@pytest.mark.parametrize("kind", KINDS)
def test_before_training_it_is_the_identity_on_directions(kind):
    records = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    found = features(initial_weights(spec(kind), 0), kind, records)
    directions = records / records.norm(dim=1, keepdim=True)
    torch.testing.assert_close(found / found.norm(dim=1, keepdim=True), directions, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("times", [1e-3, 1.0, 1e6])
def test_no_record_weighs_more_than_another(kind, times):
    records = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    weights = {n: v + 0.1 * torch.ones_like(v) for n, v in initial_weights(spec(kind), 0).items()}
    found = features(weights, kind, times * records)
    torch.testing.assert_close(found, features(weights, kind, records), rtol=1e-4, atol=1e-4)
    lengths = found.norm(dim=1)
    torch.testing.assert_close(lengths, lengths[:1].expand(7), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_zeros_has_a_finite_gradient(kind):
    weights = {n: v.clone().requires_grad_() for n, v in initial_weights(spec(kind), 0).items()}
    features(weights, kind, torch.zeros(2, 40)).sum().backward()
    assert all(value.grad is None or bool(value.grad.isfinite().all()) for value in weights.values())


@pytest.mark.parametrize(("kind", "count"), [("affine", 2 * 40 + 1), ("identity", 1), ("low-rank", 2 * 3 * 40 + 1)])
def test_few_numbers_are_learned_and_each_of_them_matters(kind, count):
    start = initial_weights(spec(kind), 0)
    learned = learned_part(spec(kind), start)
    assert sum(value.numel() for value in learned.values()) == count
    moved = {n: v + 0.1 * torch.randn(v.shape, generator=torch.Generator().manual_seed(1)) for n, v in learned.items()}
    records = torch.randn(7, 40, generator=torch.Generator().manual_seed(0))
    before = features({**start, **moved}, kind, records)
    for name in learned:
        assert not torch.allclose(features({**start, **moved, name: start[name]}, kind, records), before)


@pytest.mark.parametrize("kind", KINDS)
def test_records_do_not_see_each_other(kind):
    network = build_network(spec(kind))
    check_records_uncoupled(network, spec(kind))
    records = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    weights = initial_weights(spec(kind), 0)
    torch.testing.assert_close(features(weights, kind, records)[:1], features(weights, kind, records[:1]))
