import pytest
import torch
from safetensors.torch import save_file

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.models.functional import apply_body
from dpfedmeta.learning.models.initial_weights import check_weights, initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec


def spec_of(**changes):
    chosen = {"name": "conv4", "channels": 3, "image_size": 32, "ways": 5, "width": 8, "norm": "batch", "learn": "body"}
    return NetworkSpec(**{**chosen, **changes})


@pytest.fixture
def saved(tmp_path):
    weights = {name: value + 1.0 for name, value in initial_weights(spec_of(), 3).items()}
    save_file(weights, tmp_path / "public.safetensors")
    return tmp_path / "public.safetensors", weights


def test_the_body_comes_from_the_file_and_the_head_does_not(saved):
    path, weights = saved
    begun = initial_weights(spec_of(initial=str(path)), 0)
    assert begun.keys() == weights.keys()
    for name, value in begun.items():
        if name.startswith("body."):
            assert torch.equal(value, weights[name])
        else:
            assert not value.any()


def test_a_run_directory_stands_for_its_model(saved, tmp_path):
    path, weights = saved
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    path.rename(tmp_path / "run" / "checkpoint" / "model.safetensors")
    begun = initial_weights(spec_of(initial=str(tmp_path / "run")), 0)
    assert torch.equal(begun["body.layers.0.convolution.weight"], weights["body.layers.0.convolution.weight"])


def test_images_of_another_size_do_not_matter(saved):
    # Averaging comes as a first layer without weights, which moves the numbers of the others.
    path, weights = saved
    begun = initial_weights(spec_of(initial=str(path), image_size=64, downscale=2), 0)
    assert torch.equal(begun["body.layers.1.convolution.weight"], weights["body.layers.0.convolution.weight"])
    assert torch.equal(begun["body.layers.4.norm.bias"], weights["body.layers.3.norm.bias"])


@pytest.mark.parametrize("changes", [{"channels": 1}, {"width": 16}, {"norm": "none"}, {"name": "conv3-blur"}])
def test_another_network_is_refused(saved, changes):
    path, _ = saved
    with pytest.raises(InputError, match=r"model\.initial: .*public\.safetensors: body\.\S+: expected .*, found"):
        initial_weights(spec_of(initial=str(path), **changes), 0)


def test_a_missing_or_damaged_file_is_named(saved, tmp_path):
    path, weights = saved
    with pytest.raises(InputError, match=r"model\.initial = .*nowhere.*cannot be read"):
        initial_weights(spec_of(initial=str(tmp_path / "nowhere")), 0)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match="is not a complete safetensors file"):
        initial_weights(spec_of(initial=str(path)), 0)
    save_file({**weights, "body.layers.0.norm.bias": torch.full((8,), torch.nan)}, path)
    with pytest.raises(InputError, match=r"layers\.0\.norm\.bias: holds values that are not finite"):
        initial_weights(spec_of(initial=str(path)), 0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["body.layers.0.convolution.weight", "body.layers.3.norm.bias"])
@pytest.mark.parametrize("place", [0, -1])
def test_one_value_that_is_not_finite_is_enough(saved, value, name, place):
    """Wherever it stands; in the head it does not matter, since that is not taken."""
    path, weights = saved
    changed = {each: weight.clone() for each, weight in weights.items()}
    changed[name].view(-1)[place] = value
    save_file(changed, path)
    with pytest.raises(InputError, match=rf"^model\.initial: .*: {name}: holds values that are not finite$"):
        initial_weights(spec_of(initial=str(path)), 0)
    with pytest.raises(InputError, match=rf"^here: {name}: holds values that are not finite$"):
        check_weights(spec_of(), changed, "here")
    save_file({**weights, "head.weight": torch.full_like(weights["head.weight"], value)}, path)
    assert initial_weights(spec_of(initial=str(path)), 0).keys() == weights.keys()


def test_a_network_without_a_body_has_nothing_to_begin_with(saved):
    path, _ = saved
    with pytest.raises(InputError, match="no part named body"):
        initial_weights(
            spec_of(initial=str(path), name="tests.learning.models.test_initial_weights:flat", learn="all"), 0
        )


def flat(*, channels, image_size, ways, width, norm):
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(channels * image_size**2, ways))


BODIES = [
    ("textures", {"name": "conv4", "width": 32}),
    ("textures", {"name": "conv3-blur", "width": 16}),
    ("textures", {"name": "conv3-blur", "width": 8, "norm": "group"}),
    ("strokes", {"name": "conv3-blur", "width": 16, "channels": 1}),
    ("strokes", {"name": "conv3-blur", "width": 8, "norm": "group", "channels": 1}),
]


@pytest.mark.parametrize(("initial", "network"), BODIES)
def test_what_is_built_in_is_whole_and_the_same_for_every_seed(initial, network):
    one, two = (initial_weights(spec_of(**network, downscale=1, initial=initial), s) for s in (0, 1))
    random = initial_weights(spec_of(**network, downscale=1), 0)
    assert all(torch.equal(one[n], two[n]) and torch.isfinite(one[n]).all() for n in one)
    assert not torch.equal(one["body.layers.0.convolution.weight"], random["body.layers.0.convolution.weight"])


def test_what_is_built_in_is_for_the_normalisation_that_trained_it():
    with pytest.raises(InputError, match=r"no such weights for conv4 with model\.width = 32 and model\.norm = group"):
        initial_weights(spec_of(width=32, norm="group", initial="textures"), 0)


def test_what_is_not_built_in_says_what_is():
    with pytest.raises(InputError, match=r"model\.width = 7 .*only .*textures-conv4-32-batch\.safetensors"):
        initial_weights(spec_of(width=7, initial="textures"), 0)


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("name", ["conv4", "conv4-strided", "conv3-blur"])
def test_a_larger_first_kernel_computes_the_same_with_shorter_gradients(name, norm):
    first, images = (
        "body.layers.0.convolution.weight",
        torch.randn(6, 3, 32, 32, generator=torch.Generator().manual_seed(0)),
    )
    found = {}
    for gain in (1.0, 8.0):
        spec = spec_of(name=name, norm=norm, first_gain=gain, downscale=1)
        weights = {key: value.requires_grad_() for key, value in initial_weights(spec, 0).items()}
        features = apply_body(build_network(spec), weights, images, None)
        body = {key: value for key, value in weights.items() if key.startswith("body.")}
        gradients = torch.autograd.grad((features**2).sum(), list(body.values()), materialize_grads=True)
        found[gain] = features, dict(zip(body, gradients, strict=True))
    (features, gradients), (same, shorter) = found.values()
    torch.testing.assert_close(same, features, rtol=1e-2, atol=1e-3)
    for key, value in gradients.items():  # type: ignore[attr-defined]
        factor = 8.0 if key == first else 1.0
        torch.testing.assert_close(factor * shorter[key], value, rtol=5e-2, atol=2e-2 * float(value.abs().max()))


def test_a_head_of_several_layers_stays_as_its_factory_made_it(tmp_path, monkeypatch):
    """At zero it would pass no gradient on, and nothing could be learned."""
    (tmp_path / "heads_of_ones_own.py").write_text(
        "from torch import nn\n"
        "def deep(channels, image_size, ways, width, norm):\n"
        "    net = nn.Sequential()\n"
        "    net.add_module('body', nn.Flatten())\n"
        "    net.add_module('head', nn.Sequential(nn.Linear(16, 5), nn.ReLU(), nn.Linear(5, ways)))\n"
        "    return net\n"
        "def plain(channels, image_size, ways, width, norm):\n"
        "    net = deep(channels, image_size, ways, width, norm)\n"
        "    net.head = nn.Linear(16, ways)\n"
        "    return net\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    made = {
        name: initial_weights(
            NetworkSpec(
                name=f"heads_of_ones_own:{name}", channels=1, image_size=4, ways=3, width=4, norm="none", learn="body"
            ),
            0,
        )
        for name in ("deep", "plain")
    }
    assert all(value.any() for value in made["deep"].values())
    assert not any(value.any() for value in made["plain"].values())


def test_another_default_device_draws_the_same_weights():
    expected = initial_weights(spec_of(), 3)
    # A stand-in for a GPU, which has random numbers of its own: this device has none.
    with torch.device("meta"):
        found = initial_weights(spec_of(), 3)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())
