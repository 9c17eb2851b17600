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


def fails(*, weights=None):
    """Raises, in two lines."""
    raise ValueError("no weights\nhere")


fails.features = 64  # type: ignore[attr-defined]


def takes_none():
    """Does not take weights."""
    return nn.Flatten()


takes_none.features = 64  # type: ignore[attr-defined]


def returns_none(*, weights=None):
    """Returns no network."""


returns_none.features = 64  # type: ignore[attr-defined]
NUMBER = 3


class _Calling(nn.Module):
    """Computes what a function says."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, images):
        """Features of images."""
        return self.function(images)


def a_dictionary(*, weights=None):
    """Returns features by name, as encoders of other packages do."""
    return _Calling(lambda images: {"features": images.flatten(1)[:, :64]})


a_dictionary.features = 64  # type: ignore[attr-defined]


def larger_images(*, weights=None):
    """Takes images of 32 pixels and nothing else."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 64))


larger_images.features = 64  # type: ignore[attr-defined]


def the_same(*, weights=None):
    """Gives every image the same features."""
    return _Calling(lambda images: torch.ones(len(images), 64))


the_same.features = 64  # type: ignore[attr-defined]


def _of_colours(**constants):
    def made(*, weights=None):
        return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten())

    made.features = 48  # type: ignore[attr-defined]
    for name, value in constants.items():
        setattr(made, name, value)
    return made


one_mean = _of_colours(mean=[0.5])
no_deviation = _of_colours(deviation=(0.2, 0.0, 0.2))
named_mean = _of_colours(mean="imagenet")
