import pytest
import torch
from torch.func import functional_call

from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network, check_has_head, check_records_uncoupled
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import learned_part

NAMES = ["conv3-blur", "conv4", "conv4-strided", "mlp"]


def spec_of(name="conv4-strided", **changes):
    return NetworkSpec(
        **{"name": name, "channels": 1, "image_size": 28, "ways": 5, "width": 8, "norm": "group", **changes}
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("norm", ["group", "batch", "none"])
@pytest.mark.parametrize("size", [28, 32])
def test_every_network_maps_images_to_logits(name, norm, size):
    spec = spec_of(name, norm=norm, image_size=size)
    logits = functional_call(build_network(spec), initial_weights(spec, 0), (torch.rand(6, 1, size, size), 4))
    assert logits.shape == (6, 5)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("name", ["conv4", "conv4-strided", "conv3-blur", "mlp", "linear"])
def test_downscaled_images_are_averaged_first(name):
    small, large = spec_of(name, image_size=16, downscale=1), spec_of(name, image_size=48, downscale=3)
    weights = initial_weights(small, 0)
    images = torch.randn(4, 1, 48, 48, generator=torch.Generator().manual_seed(0))
    shifted = dict(zip(initial_weights(large, 0), weights.values(), strict=True))
    averaged = torch.nn.functional.avg_pool2d(images, 3)
    expected = functional_call(build_network(small), weights, averaged)
    assert torch.allclose(functional_call(build_network(large), shifted, images), expected, atol=1e-5)


@pytest.mark.parametrize("changes", [{"downscale": 40}, {"name": "os:path", "downscale": 2}])
def test_a_downscale_that_cannot_be_is_refused(changes):
    with pytest.raises(InputError, match=r"model\.downscale"):
        build_network(spec_of(**changes))


@pytest.mark.parametrize("name", NAMES)
def test_no_network_keeps_state(name):
    assert not list(build_network(spec_of(name, norm="batch")).buffers())


def test_initial_weights_are_a_function_of_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    one, again, other = (initial_weights(spec_of(), seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(one[n], again[n]) for n in one)
    assert any(not torch.equal(one[n], other[n]) for n in one)


def test_what_is_learned():
    weights = initial_weights(spec_of(), 0)
    assert set(learned_part(spec_of(), weights)) == set(weights)
    body = spec_of(learn="body")
    assert not initial_weights(body, 0)["head.weight"].any()
    assert set(learned_part(body, weights)) == {n for n in weights if not n.startswith("head.")}
    scales = learned_part(spec_of(learn="scales"), weights)
    assert all(value.ndim == 1 for name, value in scales.items() if name != next(iter(weights)))
    assert next(iter(weights)) in scales


def test_reference_batch_normalisation_is_that_of_torch_on_the_reference():
    layer = build_network(spec_of("conv4-strided", norm="batch")).body.layers[0].norm
    images = torch.randn(9, 8, 5, 5) * 3 + 1
    expected = torch.nn.functional.batch_norm(images[:6], None, None, layer.weight, layer.bias, training=True)
    assert torch.allclose(layer(images, 6)[:6], expected, atol=1e-5)
    assert torch.allclose(layer(images[:6]), expected, atol=1e-5)


def test_record_features_have_one_length_and_support_features_are_centred():
    record = build_network(spec_of(features="record", feature_scale=4.0))
    lengths = record.body(torch.rand(5, 1, 28, 28)).norm(dim=1)
    assert torch.allclose(lengths, torch.full((5,), 4.0), atol=1e-4)
    support = build_network(spec_of(features="support", norm="batch")).body(torch.rand(7, 1, 28, 28), 5)
    assert torch.allclose(support[:5].mean(0), torch.zeros(support.shape[1]), atol=1e-5)
    assert float(support[:5].detach().square().sum(1).mean()) == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("changes", [{"norm": "batch"}, {"features": "support"}])
def test_coupled_networks_are_refused_under_record_level_privacy(changes):
    spec = spec_of(**changes)
    with pytest.raises(RefusedPlan, match=r"--model\.norm group and --model\.features record"):
        check_records_uncoupled(build_network(spec), spec)


def test_names_that_cannot_be_built_say_why():
    for name, reason in (
        ("conv5", "known are"),
        ("no_such_package:net", "no_such_package"),
        ("torch.nn:NoSuch", "NoSuch"),
        ("builtins:dict", "returned dict"),
    ):
        with pytest.raises(InputError, match=reason):
            build_network(spec_of(name))
    with pytest.raises(InputError, match="16 pixels"):
        build_network(spec_of("conv4", image_size=8))
    with pytest.raises(InputError, match="body and head"):
        check_has_head(torch.nn.Linear(2, 2), "mine:net")
