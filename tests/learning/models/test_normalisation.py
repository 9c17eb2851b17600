import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, vmap

from dpfedmeta.learning.models.functional import apply, channels_last
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.kernels.normalisation_jit import VARIANCE_FLOOR, Coupling, loops_apply, normalised
from dpfedmeta.learning.models.layers.normalisation import ReferenceBatchNorm
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec


def images(*shape: int, seed: int = 0) -> Tensor:
    return channels_last(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))


def block(values: Tensor, weight: Tensor, bias: Tensor, counted: int, *, pooled: bool = True) -> Tensor:
    """Normalise, then pool, as every textbook writes it; in the precision of its arguments."""
    used = values[:counted]
    centre, variance = used.mean((0, 2, 3)), used.var((0, 2, 3), correction=0)
    scale = weight / (variance + VARIANCE_FLOOR).sqrt()
    normal = (values - centre.view(-1, 1, 1)) * scale.view(-1, 1, 1) + bias.view(-1, 1, 1)
    return nn.functional.max_pool2d(normal, 2) if pooled else normal


def norm_with(weight: Tensor, bias: Tensor) -> ReferenceBatchNorm:
    norm = ReferenceBatchNorm(len(weight), pooled=True)
    norm.weight.data, norm.bias.data = weight, bias
    return norm


def signed(norm: ReferenceBatchNorm, values: Tensor) -> Tensor:
    signs = norm.signs()
    return values if signs is None else values * signs.view(-1, 1, 1)


WEIGHT, BIAS = torch.tensor([1.0, -0.7, 0.3]), torch.tensor([0.1, 0.0, -2.0])


@pytest.mark.parametrize("size", [(6, 3, 8, 8), (6, 3, 7, 7), (6, 3, 4, 9), (6, 3, 3, 2)])
@pytest.mark.parametrize("counted", [6, 4, 1])
def test_values_and_gradients_are_those_of_the_textbook(size: tuple[int, ...], counted: int) -> None:
    values = images(*size).requires_grad_()
    norm = norm_with(WEIGHT.clone(), BIAS.clone())
    assert loops_apply(values)
    out = norm(channels_last(signed(norm, values)), counted)
    exact = [t.detach().double().requires_grad_() for t in (values, WEIGHT, BIAS)]
    expected = block(*exact, counted)  # type: ignore[arg-type]
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad((out * weights).sum(), [values, norm.weight, norm.bias])
    wanted = torch.autograd.grad((expected * weights.double()).sum(), exact)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("rectified", [True, False])
@pytest.mark.parametrize("counted", [3, 5])
def test_second_derivatives_are_those_of_the_textbook(pooled: bool, rectified: bool, counted: int) -> None:
    def second(values: Tensor, weight: Tensor, bias: Tensor, compiled: bool) -> tuple[Tensor, ...]:
        norm = norm_with(weight, bias)
        norm.pooled = pooled
        inputs = [values, norm.weight, norm.bias]
        if compiled:
            out = norm(channels_last(signed(norm, values) if pooled else values), counted, rectified=rectified)
        else:
            out = block(*inputs, counted, pooled=pooled)
            out = torch.relu(out) if rectified else out
        first = torch.autograd.grad((out**3).sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((part**2).sum() for part in first), inputs)  # type: ignore[arg-type]

    values = images(5, 3, 7, 6)
    found = second(values.requires_grad_(), WEIGHT.clone(), BIAS.clone(), True)
    wanted = second(values.detach().double().requires_grad_(), WEIGHT.double(), BIAS.double(), False)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5 * float(other.abs().max()))


@pytest.mark.parametrize("pooled", [True, False])
@pytest.mark.parametrize("counted", [4, 2])
def test_segments_are_normalised_each_on_its_own(pooled: bool, counted: int) -> None:
    values = images(12, 3, 7, 6).requires_grad_()
    weight, bias = WEIGHT.abs().expand(3, 3).requires_grad_(), BIAS.expand(3, 3).requires_grad_()
    together = Coupling(counted=counted, segments=3)
    out = normalised(values, weight, bias, together, pooled=pooled, rectified=True)
    found = torch.autograd.grad((out**3).sum(), [values, weight, bias])
    for own in range(3):
        part = channels_last(values.detach()[4 * own : 4 * own + 4]).requires_grad_()
        inputs = [part, WEIGHT.abs().requires_grad_(), BIAS.clone().requires_grad_()]
        alone = normalised(*inputs, Coupling(counted=counted), pooled=pooled, rectified=True)  # type: ignore[misc]
        assert torch.equal(out[4 * own : 4 * own + 4], alone)
        wanted = torch.autograd.grad((alone**3).sum(), inputs)
        assert torch.equal(found[0][4 * own : 4 * own + 4], wanted[0])
        assert torch.equal(found[1][own], wanted[1])
        assert torch.equal(found[2][own], wanted[2])


def test_later_images_do_not_touch_earlier_ones() -> None:
    values = images(6, 3, 8, 8)
    other = values.clone(memory_format=torch.preserve_format)
    other[4:] = 100.0
    norm = ReferenceBatchNorm(3, pooled=True)
    torch.testing.assert_close(norm(values, 4)[:4], norm(other, 4)[:4], rtol=0, atol=0)
    assert not torch.equal(norm(values)[:4], norm(other)[:4])


def test_a_large_common_offset_cancels_nothing_and_a_constant_image_has_no_variance() -> None:
    values = images(4, 3, 8, 8)
    norm = ReferenceBatchNorm(3, pooled=True)
    shifted = channels_last(values + 1000.0)
    torch.testing.assert_close(norm(shifted), norm(channels_last(shifted - 1000.0)), rtol=1e-3, atol=1e-3)
    flat = norm(channels_last(torch.full((4, 3, 8, 8), 0.1)))
    torch.testing.assert_close(flat, torch.zeros(4, 3, 4, 4), rtol=0, atol=1e-5)


def test_what_is_not_finite_stays_visible() -> None:
    values = images(4, 3, 8, 8)
    values[0, 1, 2, 3] = float("nan")
    assert not ReferenceBatchNorm(3, pooled=True)(values, 2)[:, 1].isfinite().any()


def test_under_torch_func_and_in_double_precision_it_is_the_same_function() -> None:
    spec = NetworkSpec(name="conv4", channels=3, image_size=16, ways=2, width=4, norm="batch")
    network, params = build_network(spec), initial_weights(spec, 0)
    stacked = torch.stack([images(4, 3, 16, 16, seed=seed) for seed in range(3)])

    def loss(theta: dict[str, Tensor], seen: Tensor) -> Tensor:
        return apply(network, theta, seen, 2).square().sum()

    together = vmap(grad(loss), in_dims=(None, 0))(params, stacked)
    for index in range(3):
        leaves = {name: value.clone().requires_grad_() for name, value in params.items()}
        alone = torch.autograd.grad(loss(leaves, channels_last(stacked[index])), tuple(leaves.values()))
        for (name, both), single in zip(together.items(), alone, strict=True):
            torch.testing.assert_close(both[index], single, rtol=1e-3, atol=1e-4 * float(single.abs().max()), msg=name)
    exact = {name: value.double() for name, value in params.items()}
    doubled, single = loss(exact, stacked[0].double()), loss(params, channels_last(stacked[0]))
    torch.testing.assert_close(doubled.float(), single, rtol=1e-4, atol=1e-4)


def test_nan_anywhere_in_a_window_stays_visible() -> None:
    values = images(3, 3, 4, 4)
    for row in range(2):
        for column in range(2):
            broken = values.clone(memory_format=torch.preserve_format)
            broken[2, 1, row, column] = float("nan")
            assert ReferenceBatchNorm(3, pooled=True)(broken, 2)[2, 1, 0, 0].isnan()
