"""examples/tail_encoder.py: the last block of Lite0 with its public weights, which begins as the encoder."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from dpfedmeta.data.encoders.encoding import encoding_of
from dpfedmeta.data.encoders.lite0_encoder import Lite0
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.weight_shapes import learned_part

pytest.importorskip("efficientnet_lite_pytorch", reason="the extra encoders is not installed")
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield importlib.import_module("tail_encoder")
    sys.modules.pop("tail_encoder")


def spec_of(name):
    return NetworkSpec(
        name=f"tail_encoder:{name}", channels=4800, image_size=1, ways=5, width=3, norm="none", learn="body",
        records="vectors",
    )  # fmt: skip


@pytest.mark.parametrize("name", ["low_rank", "whole"])
def test_it_begins_as_the_encoder_and_learns_its_own_part(module, name):
    images = torch.randn(4, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    network = getattr(module, name)(channels=4800, image_size=1, ways=5, width=3, norm="none")
    with torch.inference_mode():
        found = network.body(module.encoder().eval()(images))
        wanted = Lite0().network("", None).eval()(images)
    torch.testing.assert_close(found, 16 * torch.nn.functional.normalize(wanted), rtol=1e-3, atol=1e-4)
    weights = initial_weights(spec_of(name), 0)
    learned = {key: value.numel() for key, value in learned_part(spec_of(name), weights).items()}
    if name == "whole":
        block = (192 * 1152 + 1152) + (9 * 1152 + 1152) + (1152 * 320 + 320)
        assert sum(learned.values()) == block + 1
    else:
        assert all("residual" in key or key.endswith("exponent") for key in learned)
        assert sum(learned.values()) == 3 * (192 + 1152) + 3 * (1152 + 320) + 1


def test_all_that_learns_gets_a_gradient_once_a_residual_is_not_zero(module):
    network = module.low_rank(channels=4800, image_size=1, ways=5, width=3, norm="none")
    learned = {name: value for name, value in network.body.named_parameters() if value.requires_grad}
    maps = torch.rand(6, 4800, generator=torch.Generator().manual_seed(0))
    for value in learned.values():
        value.data += 0.01
    found = torch.autograd.grad(network.body(maps).square()[:, 0].sum(), list(learned.values()))
    assert all(bool(value.abs().sum() > 0) for value in found)


def test_its_card_is_that_of_lite0(module):
    card, own = encoding_of("tail_encoder:encoder", None, 160).card, Lite0().card("", None)
    for name in ("licence", "trained_on", "same_images", "same_classes", "mean", "deviation"):
        assert getattr(card, name) == getattr(own, name)
    assert card.features == 192 * 5 * 5
