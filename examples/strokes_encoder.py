"""The making of the built-in encoder `strokes`: an example of `model.encoder module:factory` of one's own.

Its network is the built-in body `strokes`, which learned from procedural pen strokes. The features are the outputs of
its three layers, means over an image and its four neighbours that are a pixel away, whitened by how drawings of one
procedural character differ. In this folder:

    dpfedmeta train --algo dp-agr --dataset omniglot --model.encoder strokes_encoder:encoder --model.encoder_size 28 \
        --model.width 64 --task.ways 20 --task.shots 1 --task.queries 2 --server.lr 0.01 \
        --rounds 40 --cohort 1000

docs/encoders.md has what it brings.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.kernels.normalisation_jit import VARIANCE_FLOOR
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

_BODY = NetworkSpec(name="conv3-blur", channels=1, image_size=28, ways=2, width=16, norm="batch", initial="strokes")
_FEATURES = 256
# Of the mean variance within a class, added to that of each direction: directions of little variance are noise.
_SHRINKAGE = 0.3
# Pixels by which an image is moved, down and to the right.
_MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


class StrokesEncoder(nn.Module):
    """Grey images [n, 3, 28, 28] to features [n, 256]."""

    blocks: Any

    def __init__(self) -> None:
        super().__init__()
        network: Any = build_network(_BODY)
        network.load_state_dict(initial_weights(_BODY, 0))
        self.blocks: Any = network.body.layers
        drawings = _drawings(open_dataset("strokes").train)
        # Constants in place of batch statistics: an image's features then do not depend on other images.
        self.constants: list[tuple[Tensor, Tensor]] = []
        with torch.no_grad():
            hidden = self.blocks[0](drawings.flatten(0, 1))
            for place, block in enumerate(self.blocks[1:]):
                found = block.convolution(hidden)
                self.constants.append((found.mean((0, 2, 3)), found.var((0, 2, 3))))
                hidden = self._block(place, hidden)
            outputs = [self._moved_outputs(own) for own in drawings]
        self.centre, self.whitening = _whitening(torch.stack(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """Whitened outputs of all layers."""
        return (self._moved_outputs(images.mean(1, keepdim=True)) - self.centre) @ self.whitening

    def _moved_outputs(self, images: Tensor) -> Tensor:
        """Means of outputs over the moves. What leaves an image comes in at the other side: characters have margins."""
        return torch.stack([self._outputs(images.roll(move, (2, 3))) for move in _MOVES]).mean(0)

    def _block(self, place: int, hidden: Tensor) -> Tensor:
        block, (mean, variance) = self.blocks[1 + place], self.constants[place]
        gain, shift, hidden = block.norm.weight, block.norm.bias, block.convolution(hidden)
        found = functional.batch_norm(hidden, mean, variance, gain, shift, eps=VARIANCE_FLOOR)
        return cast(Tensor, block.shrink(block.nonlinearity(found)))

    def _outputs(self, images: Tensor) -> Tensor:
        hidden, found = self.blocks[0](images), list[Tensor]()
        for place in range(len(self.constants)):
            hidden = self._block(place, hidden)
            found.append(functional.normalize(functional.adaptive_avg_pool2d(hidden, 4).flatten(1)))
        return torch.cat(found, 1)


def _drawings(pool: ClassPool) -> Tensor:
    """Procedural characters, [classes, drawings, 1, 28, 28], each class turned by 0, 90, 180 or 270 degrees."""
    classes = zip(pool.first, pool.counts, strict=True)
    found = [
        np.rot90(pool.images[start : start + count], turn % 4, (2, 3)) for turn, (start, count) in enumerate(classes)
    ]
    return torch.from_numpy(np.stack(found)).float() / 255


def _whitening(features: Tensor) -> tuple[Tensor, Tensor]:
    """The mean; and the directions in which classes differ most, where their drawings differ equally in all."""
    means = features.mean(1)
    centre, size = means.mean(0), features.shape[-1]
    within = (features - means[:, None]).flatten(0, 1)
    scatter = within.T @ within / len(within)
    values, vectors = torch.linalg.eigh(scatter + _SHRINKAGE * scatter.trace() / size * torch.eye(size))
    white = vectors @ torch.diag(values.rsqrt()) @ vectors.T
    between = (means - centre) @ white
    _, directions = torch.linalg.eigh(between.T @ between)
    return centre, white @ directions.flip(1)[:, :_FEATURES]


def encoder(*, weights: str | None = None) -> StrokesEncoder:
    """Build the encoder; it takes no file of weights."""
    return StrokesEncoder()


encoder.features = _FEATURES  # type: ignore[attr-defined]
encoder.licence = "Apache-2.0"  # type: ignore[attr-defined]
encoder.trained_on = "procedural pen strokes"  # type: ignore[attr-defined]
encoder.same_images = ("strokes",)  # type: ignore[attr-defined]
