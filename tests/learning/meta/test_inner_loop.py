from typing import Literal

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import LinearSupport, descended_head, inner_problem
from dpfedmeta.learning.models.functional import apply
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def plain_steps(initial: Params, support: LinearSupport, steps: int, lr: float) -> Params:
    """The definition: gradients of the support loss by autograd, differentiable."""
    theta = dict(initial)
    for _ in range(steps):
        logits = support.features @ theta["head.weight"].mT
        if "head.bias" in theta:
            logits = logits + theta["head.bias"]
        gradients = torch.autograd.grad(cross_entropy(logits, support.labels), tuple(theta.values()), create_graph=True)
        theta = {name: value - lr * g for (name, value), g in zip(theta.items(), gradients, strict=True)}
    return theta


def problem(bias: bool, records: int = 6) -> tuple[Params, LinearSupport, list[Tensor]]:
    features = torch.randn(records, 4, generator=generator(), dtype=torch.float64, requires_grad=True)
    initial = {"head.weight": torch.randn(3, 4, generator=generator(1), dtype=torch.float64, requires_grad=True)}
    if bias:
        initial["head.bias"] = torch.randn(3, generator=generator(2), dtype=torch.float64, requires_grad=True)
    labels = torch.arange(3).repeat_interleave(records // 3)
    return initial, LinearSupport(features=features, labels=labels), [features, *initial.values()]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("steps", [0, 1, 5])
def test_it_takes_the_very_steps_of_the_definition_and_has_their_derivatives(bias: bool, steps: int) -> None:
    initial, support, leaves = problem(bias)
    found, wanted = (make(initial, support, steps, 0.5) for make in (descended_head, plain_steps))
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12)
    derivatives = [
        torch.autograd.grad(sum((v**2).sum() for v in theta.values()), leaves, materialize_grads=True)  # type: ignore[arg-type]
        for theta in (found, wanted)
    ]
    for one, other in zip(*derivatives, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_heads_side_by_side_are_those_one_by_one() -> None:
    features = torch.randn(4, 6, 5, generator=generator())
    weights, biases = torch.randn(4, 3, 5, generator=generator(1)), torch.randn(4, 3, generator=generator(2))
    labels = torch.arange(3).repeat(2)
    together = descended_head(
        {"head.weight": weights, "head.bias": biases}, LinearSupport(features=features, labels=labels), 7, 2.0
    )
    for index in range(4):
        alone = descended_head(
            {"head.weight": weights[index], "head.bias": biases[index]},
            LinearSupport(features=features[index], labels=labels),
            7,
            2.0,
        )
        for name, value in alone.items():
            torch.testing.assert_close(together[name][index], value)


def test_saturated_logits_stay_finite_and_fitted() -> None:
    """Long features and large steps: logits of thousands."""
    initial, support, _ = problem(bias=True, records=3)
    long = LinearSupport(features=support.features * 1e3, labels=support.labels)
    head = descended_head(initial, long, 20, 10.0)
    logits = long.features @ head["head.weight"].mT + head["head.bias"]
    assert logits.isfinite().all()
    assert logits.abs().max() > 1e3
    assert torch.equal(logits.argmax(1), support.labels)


def test_a_wrong_step_would_be_seen() -> None:
    initial, support, _ = problem(bias=True)
    found, wanted = descended_head(initial, support, 5, 0.5), plain_steps(initial, support, 4, 0.5)
    assert not torch.allclose(found["head.weight"], wanted["head.weight"], rtol=1e-3)


@pytest.mark.parametrize("norm", ["batch", "none"])
@pytest.mark.parametrize("transductive", [False, True])
@pytest.mark.parametrize("adapt", ["all", "head"])
def test_statistics_are_those_of_the_support_set_unless_all_records_are_seen(
    adapt: Literal["all", "head"], transductive: bool, norm: Literal["batch", "none"]
) -> None:
    """In the steps as in the predictions; of a network without batch statistics nothing changes."""
    spec = NetworkSpec(name="conv4-strided", channels=1, image_size=14, ways=3, width=4, norm=norm)
    network, weights = build_network(spec), initial_weights(spec, 1)
    labels = torch.arange(3)
    episode = Episode(
        support_images=torch.rand(3, 1, 14, 14, generator=generator()),
        support_labels=labels,
        query_images=1 + 3 * torch.rand(6, 1, 14, 14, generator=generator(1)),
        query_labels=labels.repeat(2),
    )
    both = torch.cat([episode.support_images, episode.query_images])
    how = Adaptation(adapt=adapt, steps=2, lr=0.3)
    found = inner_problem(network, weights, episode, how, first_order=True, transductive=transductive)
    outputs = apply(network, weights, both, None if transductive else 3)
    torch.testing.assert_close(found.query_logits(found.initial), outputs[3:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(
        found.support_loss(found.initial), cross_entropy(outputs[:3], labels), rtol=1e-4, atol=1e-5
    )
    other = apply(network, weights, both, 3 if transductive else None)
    assert torch.allclose(outputs[:3], other[:3], rtol=1e-3) == (norm == "none")
