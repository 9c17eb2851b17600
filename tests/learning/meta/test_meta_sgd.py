"""Meta-SGD against its definition: theta - alpha * gradient, differentiated by theta and by alpha."""

from dataclasses import replace

import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.meta_sgd import LearnedRates, MetaSgd
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_params
from dpfedmeta.learning.meta.meta_gradients import batched, batched_query_gradients, meta_gradient
from dpfedmeta.learning.models.initial_weights import with_ways
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.planning.client_spec import method_of

SPEC = NetworkSpec(name="mlp", channels=1, image_size=6, ways=3, width=5, norm="none")


def episode(seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(2)
    images = [torch.rand(6, 1, 6, 6, generator=generator) for _ in range(2)]
    return Episode(support_images=images[0], support_labels=labels, query_images=images[1], query_labels=labels)


def algorithm(adapt, steps=2):
    return MetaSgd(order=2, adaptation=Adaptation(adapt=adapt, steps=steps, lr=0.3, rule=LearnedRates()))


def weights_of(adapt):
    own = algorithm(adapt).initial(SPEC, 1)
    generator = torch.Generator().manual_seed(2)
    # Every parameter at a rate of its own.
    return {
        name: value * (0.5 + torch.rand(value.shape, generator=generator)) if name.startswith("rate/") else value
        for name, value in own.items()
    }


def by_definition(weights, held, adapt, steps):
    """Written from the paper, by autograd alone."""
    network = build_network(SPEC)
    leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
    rates = {name.removeprefix("rate/"): value for name, value in leaves.items() if name.startswith("rate/")}
    theta = {name: value for name, value in leaves.items() if not name.startswith("rate/")}
    for _ in range(steps):
        loss = cross_entropy(functional_call(network, theta, (held.support_images,)), held.support_labels)
        found = torch.autograd.grad(loss, [theta[name] for name in rates], create_graph=True)
        theta = theta | {n: theta[n] - rates[n] * g for n, g in zip(rates, found, strict=True)}
    loss = cross_entropy(functional_call(network, theta, (held.query_images,)), held.query_labels)
    return dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))


@pytest.mark.parametrize("adapt", ["all", "head"])
def test_the_gradient_is_that_of_the_definition_by_theta_and_by_the_rates(adapt):
    weights, held, own = weights_of(adapt), episode(), algorithm(adapt)
    assert {name for name in weights if name.startswith("rate/")} == {
        f"rate/{name}" for name in weights if not name.startswith("rate/") and (adapt == "all" or "head" in name)
    }
    expected = by_definition(weights, held, adapt, 2)
    found = meta_gradient(build_network(SPEC), weights, {}, held, own.adaptation, 2)
    together = batched_query_gradients(build_network(SPEC), weights, {}, batched([held, episode(5)]), own.adaptation, 2)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
        torch.testing.assert_close(together[name][0], value, rtol=1e-4, atol=1e-6, msg=name)
    assert all(float(found[name].abs().max()) > 0 for name in found if name.startswith("rate/head"))


def test_with_equal_rates_theta_moves_as_under_maml():
    own, plain = algorithm("all"), Adaptation(adapt="all", steps=2, lr=0.3)
    weights = own.initial(SPEC, 1)
    theta = own.adaptation.rule.network(weights)
    found = meta_gradient(build_network(SPEC), weights, {}, episode(), own.adaptation, 2)
    expected = meta_gradient(build_network(SPEC), theta, {}, episode(), plain, 2)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6)


def test_adapting_uses_the_learned_rates_and_leaves_them_out():
    own, weights, held = algorithm("head", steps=1), weights_of("head"), episode()
    adapted = adapted_params(build_network(SPEC), weights, held.support_images, held.support_labels, own.adaptation)
    assert not any(name.startswith("rate/") for name in adapted)
    slower = {name: value * (0.1 if name.startswith("rate/") else 1.0) for name, value in weights.items()}
    less = adapted_params(build_network(SPEC), slower, held.support_images, held.support_labels, own.adaptation)
    moved = [float((each["head.weight"] - weights["head.weight"]).norm()) for each in (adapted, less)]
    assert moved[1] == pytest.approx(0.1 * moved[0], rel=1e-4)


def test_rates_follow_the_head_to_another_number_of_classes():
    _, more = with_ways(SPEC, weights_of("head"), 5)
    assert more["rate/head.weight"].shape == more["head.weight"].shape == (5, 5)


def test_rates_are_learned_whatever_else_is():
    body = replace(SPEC, learn="body")
    own = algorithm("head")
    learned = own.learned(body, own.initial(body, 0))
    assert {"rate/head.weight", "rate/head.bias"} <= set(learned)
    assert not {"head.weight", "head.bias"} & set(learned)


def test_first_order_and_noisy_steps_are_refused():
    task = load_task("omniglot")[0]
    with pytest.raises(InputError, match=r"meta\.order = 1: Meta-SGD"):
        method_of(resolve("meta-sgd", "omniglot", None, {"meta.order": "1"}), task)
    assert not MetaSgd.plain_steps
    assert isinstance(method_of(resolve("meta-sgd", "omniglot"), task), Maml)
