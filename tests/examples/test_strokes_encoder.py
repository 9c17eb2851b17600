"""examples/strokes_encoder.py: features of one image each, by constants that procedural drawings fixed."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

from dpfedmeta.data.encoders.encoding import encoding_of

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def module(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    strokes_encoder = importlib.import_module("strokes_encoder")
    few = torch.rand(24, 20, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(strokes_encoder, "_drawings", lambda _: few)
    monkeypatch.setattr(strokes_encoder, "open_dataset", lambda _: type("Strokes", (), {"train": None}))
    yield strokes_encoder
    sys.modules.pop("strokes_encoder")


def test_features_are_white_within_classes_and_do_not_depend_on_the_batch(module):
    network = module.encoder().eval()
    images = module._drawings(None).flatten(0, 1).expand(-1, 3, -1, -1)
    with torch.inference_mode():
        found = network(images)
        torch.testing.assert_close(found[:3], torch.cat([network(images[[place]]) for place in range(3)]))
    assert found.shape == (480, 256)
    of_class = found.unflatten(0, (24, 20))
    within = (of_class - of_class.mean(1, keepdim=True)).flatten(0, 1)
    scatter = within.T @ within / len(within)
    # The shrinkage adds to the variance of each direction, so whitened ones have less than 1.
    assert scatter.diagonal().max() < 1
    torch.testing.assert_close(found.mean(0), torch.zeros(256), atol=1e-3, rtol=0)


def test_its_card_says_where_it_comes_from_and_that_strokes_are_its_own(module):
    card = encoding_of("strokes_encoder:encoder", None, 28).card
    assert (card.features, card.licence, card.trained_on) == (256, "Apache-2.0", "procedural pen strokes")
    assert card.same_images == ("strokes",)
