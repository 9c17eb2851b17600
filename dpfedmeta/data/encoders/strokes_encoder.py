"""Encoder of characters that procedural pen strokes taught, nobody's data: built in, 0.5 MB, 0.5 ms an image."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.encoders.encoding import EncoderCard, weights_digest

if TYPE_CHECKING:
    from torch import Tensor, nn

_FEATURES, _BLOCKS, _SIDE = 256, 3, 4
# Pixels by which an image is moved, down and to the right.
_MOVES = ((0, 0), (1, 0), (-1, 0), (0, 1), (0, -1))


class StrokesEncoder:
    """The three layers of the built-in body `strokes`, whitened by how drawings of one procedural character differ.

    Features are in the order in which procedural characters differ most. examples/strokes_encoder.py makes the file.
    """

    def card(self, name: str, weights: str | None, /) -> EncoderCard:
        """Return the facts; the digest is that of the file of weights.

        Raises:
            InputError: The file cannot be read.
        """
        return EncoderCard(
            licence="Apache-2.0",
            trained_on="procedural pen strokes",
            same_images=("strokes",),
            features=_FEATURES,
            mean=(0.0,) * 3,
            deviation=(1.0,) * 3,
            digest=weights_digest("model.encoder_weights", _file(weights)),
        )

    def network(self, name: str, weights: str | None, /) -> nn.Module:
        """Build the network.

        Raises:
            InputError: The file does not hold the weights of this network.
        """
        import torch
        from safetensors import SafetensorError
        from safetensors.torch import load_file
        from torch import nn
        from torch.nn import functional

        class Moved(nn.Module):
            """Grey images [n, 3, height, width] to features [n, 256]."""

            def __init__(self, tensors: dict[str, Tensor]) -> None:
                super().__init__()
                for key, value in tensors.items():
                    self.register_buffer(key, value.float())

            def forward(self, images: Tensor) -> Tensor:
                grey = images.mean(1, keepdim=True)
                # What leaves an image comes in at the other side: characters have margins.
                moved = torch.stack([self._outputs(grey.roll(move, (2, 3))) for move in _MOVES]).mean(0)
                whitened: Tensor = (moved - self.get_buffer("centre")) @ self.get_buffer("whitening")
                return whitened

            def _outputs(self, images: Tensor) -> Tensor:
                hidden, found = functional.avg_pool2d(images, 2), []
                for place in range(_BLOCKS):
                    kernel, bias = self.get_buffer(f"kernel{place}"), self.get_buffer(f"bias{place}")
                    hidden = functional.conv2d(hidden, kernel, bias, padding=kernel.shape[-1] // 2)
                    last = place == _BLOCKS - 1
                    hidden = hidden if last else functional.relu(hidden)
                    hidden = hidden if place == 1 else functional.avg_pool2d(hidden, 3, stride=2, padding=1)
                    found.append(functional.normalize(functional.adaptive_avg_pool2d(hidden, _SIDE).flatten(1)))
                return torch.cat(found, 1)

        path = _file(weights)
        try:
            tensors = load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"model.encoder_weights = {path}: is not a safetensors file ({error})") from error
        expected = {
            "centre",
            "whitening",
            *(f"{part}{place}" for part in ("kernel", "bias") for place in range(_BLOCKS)),
        }
        if {*tensors} != expected:
            raise InputError(
                f"model.encoder_weights = {path}: no weights of strokes (has {', '.join(sorted(tensors))})"
            )
        return Moved(tensors)


def _file(weights: str | None) -> Path:
    return (
        Path(str(resources.files("dpfedmeta.data.encoders") / "strokes.safetensors"))
        if weights is None
        else Path(weights)
    )


MEMBER = StrokesEncoder()
