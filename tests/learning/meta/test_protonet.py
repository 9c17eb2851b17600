"""Prototypical networks against their definition, with and without an encoder's adapter."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.task_file import load_task
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes, ProtoNet
from dpfedmeta.learning.meta import prototype_gradients
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.meta.meta_gradients import batched, batched_query_gradients, meta_gradient
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import learned_part
from dpfedmeta.planning.client_spec import method_of

SPEC = NetworkSpec(
    name="low-rank", channels=30, image_size=1, ways=3, width=4, norm="none", learn="body", records="vectors"
)
NONE = Adaptation(adapt="head", steps=0, lr=0.1, rule=CosinePrototypes())
METHOD = ProtoNet(order=2, adaptation=NONE)


def episode(seed=0, shots=4, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(shots)
    centres = torch.randn(3, 30, generator=generator)
    parts = [centres[labels] + torch.randn(3 * shots, 30, generator=generator) for _ in range(2)]
    support, query = (part.to(dtype) for part in parts)
    return Episode(support_images=support, support_labels=labels, query_images=query, query_labels=labels)


def numpy_prototypes(held):
    """Cosines of query records and class means of directions, without any of our code."""
    unit = [part / np.linalg.norm(part, axis=1, keepdims=True) for part in (held.support_images, held.query_images)]
    means = np.stack([unit[0][held.support_labels == way].mean(0) for way in range(3)])
    return unit[1] @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T


def test_before_any_client_it_is_the_encoder_with_prototypes():
    held = episode()
    found = adapted_logits(build_network(SPEC), initial_weights(SPEC, 0), held, NONE).detach().numpy()
    expected = numpy_prototypes(
        Episode(**{n: v.double().numpy() if "images" in n else v.numpy() for n, v in vars(held).items()})
    )
    np.testing.assert_allclose(found / 16.0, expected, rtol=0, atol=1e-6)


def test_the_gradient_is_that_of_the_loss_by_what_is_learned():
    weights = {n: v.double() for n, v in initial_weights(SPEC, 0).items()}
    weights = {
        n: v + 0.05 * torch.randn(v.shape, generator=torch.Generator().manual_seed(3)) for n, v in weights.items()
    }
    held, network = episode(dtype=torch.float64), build_network(SPEC).double()
    model = learned_part(SPEC, weights)
    fixed = {name: value for name, value in weights.items() if name not in model}
    found = meta_gradient(network, model, fixed, held, NONE, 2)

    def loss(moved):
        return float(cross_entropy(adapted_logits(network, {**weights, **moved}, held, NONE), held.query_labels))

    for name, value in model.items():
        step = torch.zeros_like(value)
        step.view(-1)[value.numel() // 2] = 1e-5
        numeric = (loss({name: value + step}) - loss({name: value - step})) / 2e-5
        assert found[name].view(-1)[value.numel() // 2] == pytest.approx(numeric, rel=1e-4, abs=1e-8)


def test_several_clients_at_once_have_the_gradients_of_each():
    weights, clients = initial_weights(SPEC, 0), [episode(seed) for seed in range(3)]
    model, network = learned_part(SPEC, weights), build_network(SPEC)
    fixed = {name: value for name, value in weights.items() if name not in model}
    together = batched_query_gradients(network, model, fixed, batched(clients), NONE, 2)
    for place, held in enumerate(clients):
        alone = meta_gradient(network, model, fixed, held, NONE, 2)
        for name in model:
            torch.testing.assert_close(together[name][place], alone[name], rtol=1e-4, atol=1e-5)


def moved_weights(spec, dtype, size=0.3):
    """Weights away from the start, where no part of the gradient vanishes."""
    generator = torch.Generator().manual_seed(3)
    start = initial_weights(spec, 0).items()
    return {name: (v + size * torch.randn(v.shape, generator=generator)).to(dtype) for name, v in start}


def context_of(spec, weights):
    model = learned_part(spec, weights)
    fixed = {name: value for name, value in weights.items() if name not in model}
    return SimpleNamespace(
        module=build_network(spec).to(next(iter(weights.values())).dtype),
        learned=model,
        fixed=fixed,
        device=torch.device("cpu"),
    )


def with_a_missing_class(held):
    return replace(held, support_labels=held.support_labels.clamp_max(1))


def with_a_record_of_zeros(held):
    return replace(held, query_images=torch.cat([torch.zeros(1, 30).to(held.query_images), held.query_images[1:]]))


@pytest.mark.parametrize("learn", ["body", "scales"])
@pytest.mark.parametrize("kind", ["affine", "identity", "low-rank", "metric"])
@pytest.mark.parametrize("change", [lambda held: held, with_a_missing_class, with_a_record_of_zeros])
def test_the_closed_form_is_the_gradient_that_autograd_finds(kind, learn, change):
    spec = replace(SPEC, name=kind, learn=learn)
    context = context_of(spec, moved_weights(spec, torch.float64))
    held = change(episode(dtype=torch.float64))
    expected = meta_gradient(context.module, context.learned, context.fixed, held, NONE, 2)
    found = METHOD.gradient(context, held)
    assert list(found) == list(expected)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)
        assert found[name].abs().max() > 0


def test_the_closed_form_of_several_episodes_is_that_of_each_and_nothing_of_the_others_enters():
    context = context_of(SPEC, moved_weights(SPEC, torch.float32))
    clients = [episode(seed) for seed in range(4)]
    together = METHOD.gradients(context, batched(clients))
    others = METHOD.gradients(context, batched([clients[0], *(episode(seed) for seed in range(10, 13))]))
    for name, value in together.items():
        assert torch.equal(value[0], others[name][0])
        for place, held in enumerate(clients):
            torch.testing.assert_close(value[place], METHOD.gradient(context, held)[name], rtol=1e-4, atol=1e-6)


def test_a_network_of_ones_own_goes_by_autograd_and_orders_agree_without_a_step(monkeypatch):
    context = context_of(SPEC, moved_weights(SPEC, torch.float32))
    closed = METHOD.gradient(context, episode())
    monkeypatch.setattr(prototype_gradients, "prototype_gradients", lambda *_: pytest.fail("in closed form"))

    class Own(type(context.module)):
        pass

    context.module.__class__ = Own
    for name, value in METHOD.gradient(context, episode()).items():
        torch.testing.assert_close(value, closed[name], rtol=1e-4, atol=1e-6)
    first = replace(METHOD, order=1).gradient(context, episode())
    for name, value in first.items():
        torch.testing.assert_close(value, closed[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "change", [{"features": "record"}, {"name": "mlp"}], ids=["scaled features", "another network"]
)
def test_other_networks_have_no_closed_form(change):
    assert prototype_gradients.has_closed_form(build_network(SPEC))
    assert not prototype_gradients.has_closed_form(build_network(replace(SPEC, **change)))


def test_a_class_without_a_support_record_has_no_direction():
    head = CosinePrototypes().start({}, lambda: torch.ones(2, 4), torch.tensor([0, 0]), 3)
    assert torch.equal(head["head.weight"][1:], torch.zeros(2, 4))
    assert bool(head["head.weight"].isfinite().all())


def test_steps_are_none_and_a_learned_head_is_refused(tiny_task_file):
    task, _ = load_task(str(tiny_task_file))
    settings = resolve("maml", str(tiny_task_file), None, {"meta.method": "protonet", "meta.learn": "body"})
    assert method_of(settings, task).adaptation.steps == 0
    wrong = resolve("maml", str(tiny_task_file), None, {"meta.method": "protonet", "meta.learn": "all"})
    with pytest.raises(InputError, match=r"meta\.learn = all: .*use --meta.learn body"):
        method_of(wrong, task)
