"""Convolutions of rounded operands: exact products of what they were rounded to, and no more than that is lost."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv2d, cosine_similarity, interpolate

from dpfedmeta.core.params import Params, flatten
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.meta_gradients import batched, batched_query_gradients, meta_gradient
from dpfedmeta.learning.models.functional import channels_last
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.layers.convolution import (
    ConvolutionSpec,
    bfloat16_in_hardware,
    convolution,
    convolution_gradients,
)
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import LEAST_SHORT_CHANNELS, NetworkSpec
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients, PerRecordGradients, VmapGradients

SHORT = ConvolutionSpec(stride=(2, 2), padding=(1, 1), precision="bfloat16")
FULL = ConvolutionSpec(stride=(2, 2), padding=(1, 1))
# Half the gap between neighbouring numbers of 8 significant bits.
ROUNDING = 2.0**-8


def operands(channels: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = channels_last(torch.randn(5, channels, 9, 9, generator=generator))
    kernel = torch.randn(6, channels, 3, 3, generator=generator)
    return images, kernel, channels_last(torch.randn(5, 6, 5, 5, generator=generator))


def rounded(*values: Tensor) -> list[Tensor]:
    return [value.bfloat16().double() for value in values]


def close(found: Tensor | None, exact: Tensor, parts: float = 0.0) -> bool:
    """Up to the rounding of the result, of parts of a sum that are as large as `parts`, and of sums in float32."""
    assert found is not None
    assert found.dtype == torch.float32
    return bool(((found - exact).abs() <= ROUNDING * (exact.abs() + parts) + 1e-4).all())


def test_values_are_sums_of_rounded_operands() -> None:
    images, kernel, _ = operands()
    assert close(convolution(images, kernel, SHORT), conv2d(*rounded(images, kernel), None, 2, 1))
    assert not close(convolution(images, kernel, SHORT), conv2d(images.double(), kernel.double(), None, 2, 1))


def test_gradients_are_those_of_rounded_operands() -> None:
    images, kernel, grads = operands()
    found = convolution_gradients(grads, images, kernel, SHORT, (True, True))
    exact = convolution_gradients(*rounded(grads, images, kernel), FULL, (True, True))  # type: ignore[call-arg, arg-type]
    for one, other in zip(found, exact, strict=True):
        assert other is not None
        # A processor without bfloat16 emulates it, and PyTorch's emulation of gradients rounds parts of each sum too.
        assert close(one, other, 0.0 if bfloat16_in_hardware() else float(other.abs().max()))


def test_images_themselves_are_not_rounded() -> None:
    images, kernel, grads = operands(LEAST_SHORT_CHANNELS - 1)
    assert torch.equal(convolution(images, kernel, SHORT), convolution(images, kernel, FULL))
    found, exact = (convolution_gradients(grads, images, kernel, spec, (False, True))[1] for spec in (SHORT, FULL))
    assert torch.equal(found, exact)  # type: ignore[arg-type]


def test_colossal_and_broken_values_do_not_reach_other_images() -> None:
    images, kernel, _ = operands()
    before = convolution(images, kernel, SHORT)
    images[1, 0, 4, 4], images[3] = math.nan, 1e38
    after = convolution(images, kernel, SHORT)
    assert torch.equal(after[[0, 2, 4]], before[[0, 2, 4]])


def test_second_derivatives_point_where_exact_ones_do() -> None:
    images, kernel, _ = operands()

    def second(spec: ConvolutionSpec, dtype: torch.dtype) -> Tensor:
        values = [value.to(dtype).requires_grad_() for value in (images, 0.1 * kernel)]
        first = torch.autograd.grad(convolution(values[0], values[1], spec).tanh().sum(), values, create_graph=True)
        found = torch.autograd.grad(sum((value**2).sum() for value in first), values)  # type: ignore[arg-type]
        return torch.cat([value.flatten() for value in found]).double()

    assert cosine_similarity(second(SHORT, torch.float32), second(FULL, torch.float64), dim=0) > 0.999


def client(seed: int = 0) -> Episode:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat_interleave(3)
    images = interpolate(torch.randn(18, 3, 6, 6, generator=generator), size=(24, 24), mode="bilinear")
    return Episode(support_images=images[:9], support_labels=labels, query_images=images[9:], query_labels=labels)


def specs(norm: str) -> list[NetworkSpec]:
    common = {"name": "conv4", "channels": 3, "image_size": 24, "ways": 3, "width": 16, "norm": norm}
    return [NetworkSpec(**common, precision=precision) for precision in ("bfloat16", "float32")]  # type: ignore[arg-type]


def far(one: Tensor, other: Tensor) -> bool:
    """Further than float32 engines are from each other."""
    return float((one - other).norm() / other.norm()) > 1e-3


@pytest.mark.parametrize("norm", ["batch", "group", "none"])
@pytest.mark.parametrize("order", [1, 2])
def test_meta_gradients_keep_their_direction_on_either_engine(norm: str, order: int) -> None:
    adaptation, episode = Adaptation(adapt="all", steps=2, lr=0.05), client()
    weights = initial_weights(specs(norm)[0], 0)
    found: list[Tensor] = []
    for spec in specs(norm):
        network = build_network(spec)
        found.append(flatten(meta_gradient(network, weights, {}, episode, adaptation, order)))  # type: ignore[arg-type]
        together = batched_query_gradients(network, weights, {}, batched([episode]), adaptation, order)  # type: ignore[arg-type]
        found.append(flatten({name: value[0] for name, value in together.items()}))
    short, short_together, full, full_together = found
    assert far(short, full)
    assert far(short_together, full_together)
    assert float((short_together - short).norm() / short.norm()) < 0.1
    torch.testing.assert_close(full_together, full, rtol=1e-3, atol=1e-4 * float(full.abs().max()))
    # Maxima and ReLUs that the rounding tips over are what is lost; without normalisation it grows with depth.
    assert cosine_similarity(short, full, dim=0) > 0.95
    assert cosine_similarity(short_together, full, dim=0) > 0.95


def test_per_record_gradients_keep_their_direction_and_engines_agree() -> None:
    episode, weights = client(), initial_weights(specs("group")[0], 0)

    def rows(engine: PerRecordGradients, spec: NetworkSpec) -> Tensor:
        arguments = episode.support_images, episode.support_labels
        found: Params = engine(build_network(spec), weights, {}, frozenset(), *arguments)
        assert all(value.dtype == torch.float32 for value in found.values())
        return torch.cat([value.flatten(1) for value in found.values()], dim=1)

    short, full = specs("group")
    layered, vmapped = (rows(engine, short) for engine in (LayeredGradients(), VmapGradients()))
    for found in (layered, vmapped):
        assert far(found, rows(LayeredGradients(), full))
        assert bool((cosine_similarity(found, rows(LayeredGradients(), full), dim=1) > 0.95).all())
    assert float((layered - vmapped).norm() / vmapped.norm()) < 0.02
