from dataclasses import replace

import pytest
import torch
from torch import nn

from dpfedmeta.learning.models.functional import channels_last
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.layers.per_example_layers import has_record_layers, kernel_gradients
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec, Precision
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients, VmapGradients

BASE = NetworkSpec(name="conv4", channels=3, image_size=16, ways=3, width=8, norm="group", groups=2)
SPECS = {
    "conv4": BASE,
    "conv4, one channel": replace(BASE, channels=1),
    "conv4, odd sides": replace(BASE, image_size=21),
    "conv4, tanh": replace(BASE, activation="tanh"),
    "conv4, no norm": replace(BASE, norm="none"),
    "conv4-strided": replace(BASE, name="conv4-strided"),
    "conv3-blur": replace(BASE, name="conv3-blur", features="record"),
    "conv3-blur, no norm": replace(BASE, name="conv3-blur", norm="none"),
    "mlp": replace(BASE, name="mlp"),
    "linear": replace(BASE, name="linear"),
}


def batch(spec: NetworkSpec, records: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    shape = (records, spec.channels, spec.image_size, spec.image_size)
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)), torch.arange(records) % 3


def weights_of(spec: NetworkSpec) -> dict[str, torch.Tensor]:
    """With negative scales too, and shifts that are not 0."""
    generator = torch.Generator().manual_seed(2)
    made = initial_weights(spec, 0)
    return {n: v + 0.8 * torch.randn(v.shape, generator=generator) if v.ndim == 1 else v for n, v in made.items()}


@pytest.mark.parametrize("name", SPECS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_each_record_gets_the_gradient_that_vmap_gives_it(name: str, dtype: torch.dtype) -> None:
    spec = SPECS[name]
    network, weights = build_network(spec), {n: v.to(dtype) for n, v in weights_of(spec).items()}
    images, labels = batch(spec)
    assert has_record_layers(network)
    engines = (LayeredGradients(), VmapGradients())
    found, wanted = (e(network, weights, {}, frozenset(), images.to(dtype), labels) for e in engines)
    assert list(found) == list(wanted)
    largest = max(float(value.abs().max()) for value in wanted.values())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=0, atol=tolerance * largest, msg=key)


def test_heads_may_differ_from_record_to_record_and_some_weights_need_no_gradient() -> None:
    network, weights = build_network(BASE), weights_of(BASE)
    images, labels = batch(BASE)
    heads = {n: v + torch.randn(6, *v.shape) for n, v in weights.items() if n.startswith("head.")}
    body = {n: v for n, v in weights.items() if n not in heads}
    arguments = (network, body, heads, frozenset(heads), images, labels)
    found, wanted = LayeredGradients()(*arguments), VmapGradients()(*arguments)
    for key, value in wanted.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-5, msg=key)
    assert list(found) == list(body)


@pytest.mark.parametrize("bad", [1e3, 1e6, 1e30, float("inf"), float("nan")])
@pytest.mark.parametrize("place", [0, 3, 5])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_record_does_not_touch_another_ones_gradient(bad: float, place: int, precision: Precision) -> None:
    network, weights = build_network(replace(BASE, precision=precision)), weights_of(BASE)
    images, labels = batch(BASE)
    others = [record for record in range(6) if record != place]
    honest = LayeredGradients()(network, weights, {}, frozenset(), images, labels)
    images[place] = bad
    among = LayeredGradients()(network, weights, {}, frozenset(), images, labels)
    for key, value in honest.items():
        torch.testing.assert_close(among[key][others], value[others], rtol=1e-5, atol=1e-6, msg=key)


def test_coupled_or_foreign_layers_are_left_to_vmap() -> None:
    assert not has_record_layers(build_network(replace(BASE, norm="batch")))
    assert not has_record_layers(build_network(replace(BASE, features="support")))

    class Centre(nn.Module):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return values - values.mean(0)

    class Cosine(nn.Linear):
        def forward(self, values: torch.Tensor) -> torch.Tensor:
            return nn.functional.linear(nn.functional.normalize(values), self.weight)

    coupled, other_head = build_network(BASE), build_network(BASE)
    coupled.body.layers.append(Centre())  # type: ignore[union-attr]
    other_head.head = Cosine(other_head.head.in_features, 3)  # type: ignore[union-attr, arg-type]
    assert not has_record_layers(coupled)
    assert not has_record_layers(other_head)
    foreign = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 3))
    assert not has_record_layers(foreign)
    weights = {name: value.detach() for name, value in foreign.named_parameters()}
    images, labels = batch(BASE)
    found = LayeredGradients()(foreign, weights, {}, frozenset(), images, labels)
    wanted = VmapGradients()(foreign, weights, {}, frozenset(), images, labels)
    assert all(torch.equal(found[name], value) for name, value in wanted.items())


@pytest.mark.parametrize(("stride", "padding", "size"), [(1, 1, 3), (2, 1, 3), (1, 2, 5), (3, 0, 2)])
def test_kernel_gradients_sum_to_those_of_autograd(stride: int, padding: int, size: int) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(4, 5, 11, 10, generator=generator, dtype=torch.float64)
    kernel = torch.randn(6, 5, size, size, generator=generator, dtype=torch.float64, requires_grad=True)
    out = nn.functional.conv2d(images, kernel, stride=stride, padding=padding)
    grads = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    (wanted,) = torch.autograd.grad(out, kernel, grads)
    each = kernel_gradients(images, grads, size, (stride, stride), (padding, padding))
    assert each.shape == (4, *kernel.shape)
    torch.testing.assert_close(each.sum(0), wanted)


@pytest.mark.parametrize("channels", [1, 5, 16])
@pytest.mark.parametrize(("stride", "padding", "size"), [(1, 1, 3), (2, 1, 3), (1, 2, 5), (3, 0, 2), (4, 0, 3)])
def test_compiled_kernel_gradients_agree_with_double_precision(
    channels: int, stride: int, padding: int, size: int
) -> None:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(3, channels, 11, 9, generator=generator)
    shape = nn.functional.conv2d(images, torch.zeros(7, channels, size, size), stride=stride, padding=padding).shape
    sizes = size, (stride, stride), (padding, padding)
    images, grads = channels_last(images), channels_last(torch.randn(shape, generator=generator))
    each, wanted = kernel_gradients(images, grads, *sizes), kernel_gradients(images.double(), grads.double(), *sizes)
    torch.testing.assert_close(each.double(), wanted, rtol=1e-5, atol=1e-4)
    # A record that is not finite spoils its own gradient only.
    images[1] = torch.inf
    torch.testing.assert_close(kernel_gradients(images, grads, *sizes)[[0, 2]], each[[0, 2]], rtol=0, atol=0)
