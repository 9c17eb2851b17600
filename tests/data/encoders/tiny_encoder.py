"""A small public encoder with fixed random weights, as a user would write one."""

import torch
from torch import nn


def tiny(*, weights=None):
    """[n, 3, 16, 16] -> [n, 64]."""
    generator = torch.Generator().manual_seed(0)
    made = nn.Sequential(nn.Conv2d(3, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(0.3 * torch.randn(value.shape, generator=generator))
    return made


tiny.features = 64  # type: ignore[attr-defined]
tiny.licence = "CC0"  # type: ignore[attr-defined]
tiny.trained_on = "nothing"  # type: ignore[attr-defined]


def wrong_length(*, weights=None):
    """Returns fewer features than it states."""
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


wrong_length.features = 64  # type: ignore[attr-defined]


def not_finite(*, weights=None):
    """Returns NaN."""

    class Nan(nn.Module):
        def forward(self, images):
            return images.flatten(1)[:, :64] * float("nan")

    return Nan()


not_finite.features = 64  # type: ignore[attr-defined]


def moves(*, weights=None):
    """An encoder whose features depend on the rest of a batch, unless it is in evaluation mode, which it ignores."""

    class Centred(nn.Module):
        def forward(self, images):
            found = images.flatten(1)[:, 100:164]
            return found - found.mean(0)

    return Centred()


moves.features = 64  # type: ignore[attr-defined]


def unstated(*, weights=None):
    """Says nothing of itself."""
    return tiny()
