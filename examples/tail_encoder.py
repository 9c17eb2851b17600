"""Fine-tuning of a public encoder's last block: an example of `model.encoder` and `model.name` with code of one's own.

The encoder is EfficientNet-Lite0 before its last block: a map of 192 channels, 5 x 5 places of an image at 160 pixels.
The network is the last block with its public weights, so before any client it is Lite0 with prototypes. In this folder:

    dpfedmeta train --algo dp-agr --dataset cifar-fs --model.encoder tail_encoder:encoder \
        --model.name tail_encoder:low_rank --model.width 4 --rounds 20 --cohort 500

trains a low-rank residual of the block's two dense layers. `--model.name tail_encoder:whole` trains all of its weights.
docs/encoders.md has what it brings.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from dpfedmeta.data.encoders.lite0_encoder import Lite0
from dpfedmeta.learning.models.layers.adapters import Sharpened, UnitLength

_CHANNELS, _SIDE, _FEATURES = 192, 5, 320
# Of the first weights of a residual, as in the adapters of the package.
_SPREAD = 0.1


class BeforeLastBlock(nn.Module):
    """Images [n, 3, 160, 160] to the map before Lite0's last block, [n, 192 * 5 * 5]; channels vary fastest."""

    def __init__(self, weights: str | None) -> None:
        super().__init__()
        lite0: Any = Lite0().network("", weights)
        self.inner = lite0.inner

    def forward(self, images: Tensor) -> Tensor:
        """Maps as vectors."""
        maps: Tensor = self.inner._swish(self.inner._conv_stem(images))
        for block in self.inner._blocks[:-1]:
            maps = block(maps)
        return maps.permute(0, 2, 3, 1).flatten(1)


class Dense(nn.Module):
    """A layer of public weights, with a residual of low rank that begins at zero; without one the weights learn.

    Args:
        public: Convolution of one place.
        rank: Columns of the residual; 0: none.
    """

    def __init__(self, public: nn.Conv2d, rank: int) -> None:
        super().__init__()
        assert public.bias is not None  # normalisation was folded into it
        self.weight = nn.Parameter(public.weight.detach().flatten(1).clone(), requires_grad=not rank)
        self.bias = nn.Parameter(public.bias.detach().clone(), requires_grad=not rank)
        self.residual: nn.Sequential | None = None
        if rank:
            down, up = nn.Linear(public.in_channels, rank, bias=False), nn.Linear(rank, public.out_channels, bias=False)
            nn.init.normal_(down.weight, std=_SPREAD)
            nn.init.zeros_(up.weight)
            self.residual = nn.Sequential(down, up)

    def forward(self, places: Tensor) -> Tensor:
        """[..., inputs] -> [..., outputs]."""
        found = functional.linear(places, self.weight, self.bias)
        return found if self.residual is None else found + self.residual(places)


class LastBlock(nn.Module):
    """Lite0's last block and the mean over places, then unit length and one learned factor, as adapters have them."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        lite0: Any = Lite0().network("", None)
        block = lite0.inner._blocks[-1]
        self.expand, self.project = Dense(block._expand_conv, rank), Dense(block._project_conv, rank)
        self.kernel = nn.Parameter(block._depthwise_conv.weight.detach().clone(), requires_grad=not rank)
        self.shift = nn.Parameter(block._depthwise_conv.bias.detach().clone(), requires_grad=not rank)
        self.last = nn.Sequential(UnitLength(), Sharpened())

    def forward(self, maps: Tensor) -> Tensor:
        """[n, 192 * 5 * 5] -> [n, 320]."""
        hidden = functional.relu6(self.expand(maps.reshape(-1, _SIDE, _SIDE, _CHANNELS)))
        wide = functional.conv2d(
            hidden.permute(0, 3, 1, 2), self.kernel, self.shift, padding=1, groups=len(self.kernel)
        )
        # The last layer is linear, so the mean over places may come before it.
        mean = functional.relu6(wide).mean((2, 3))
        found: Tensor = self.last(self.project(mean))
        return found


class TailNetwork(nn.Module):
    """The block, and the head that prototypes set."""

    def __init__(self, ways: int, rank: int) -> None:
        super().__init__()
        self.body, self.head = LastBlock(rank), nn.Linear(_FEATURES, ways)

    def forward(self, maps: Tensor) -> Tensor:
        """[n, 192 * 5 * 5] -> [n, ways]."""
        found: Tensor = self.head(self.body(maps))
        return found


def encoder(*, weights: str | None = None) -> BeforeLastBlock:
    """Build the encoder."""
    return BeforeLastBlock(weights)


encoder.features = _CHANNELS * _SIDE**2  # type: ignore[attr-defined]
encoder.licence, encoder.trained_on = "Apache-2.0", "ImageNet"  # type: ignore[attr-defined]
# As those of lite0.
encoder.mean, encoder.deviation = (127 / 255,) * 3, (128 / 255,) * 3  # type: ignore[attr-defined]
encoder.same_images, encoder.same_classes = ("mini-imagenet",), ("cifar-fs",)  # type: ignore[attr-defined]


def low_rank(*, channels: int, image_size: int, ways: int, width: int, norm: str) -> TailNetwork:
    """Build the block with residuals of `width` columns."""
    return TailNetwork(ways, width)


def whole(*, channels: int, image_size: int, ways: int, width: int, norm: str) -> TailNetwork:
    """Build the block, all of whose weights learn."""
    return TailNetwork(ways, 0)
