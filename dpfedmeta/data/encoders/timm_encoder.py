"""Networks of the package timm by name, with weights from a file: `timm:NAME`."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.encoders.encoding import EncoderCard, weights_digest

if TYPE_CHECKING:
    from torch import nn


class Timm:
    """A network of timm without its classifier (https://github.com/huggingface/pytorch-image-models)."""

    def card(self, name: str, weights: str | None, /) -> EncoderCard:
        """Return what timm states of the network.

        Raises:
            InputError: timm is not installed, knows no such network, or no weights are named.
        """
        made = _created(name)
        held: dict[str, Any] = dict(made.pretrained_cfg)
        if weights is None:
            raise InputError(
                f"model.encoder = timm:{name}: nothing is downloaded; name a file with --model.encoder_weights "
                "(safetensors of this network, from its page on the Hugging Face hub)"
            )
        return EncoderCard(
            licence=str(held.get("license") or "licence not stated by timm"),
            trained_on="ImageNet" if "in1k" in str(held.get("tag")) else "the data that its weights name",
            # Almost all public weights of timm learned from ImageNet.
            same_images=("mini-imagenet",),
            same_classes=("cifar-fs",),
            features=int(made.num_features),
            mean=tuple(held.get("mean") or (0.5,) * 3),
            deviation=tuple(held.get("std") or (0.5,) * 3),
            digest=hashlib.sha256(
                f"{name} {weights_digest('model.encoder_weights', Path(weights))}".encode()
            ).hexdigest(),
        )

    def network(self, name: str, weights: str | None, /) -> nn.Module:
        """Build the network with the weights of the file.

        Raises:
            InputError: The weights do not fit.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        made: nn.Module = _created(name)
        try:
            found = load_file(str(weights))
            own = made.state_dict()
            made.load_state_dict({key: value for key, value in found.items() if key in own})
        except (OSError, SafetensorError, RuntimeError) as error:
            said = " ".join(str(error).split())[:200]
            raise InputError(f"model.encoder_weights = {weights}: not the weights of timm:{name} ({said})") from error
        return made


def _created(name: str) -> Any:
    if not name:
        raise InputError("model.encoder = timm: which network? give timm:NAME, as timm:resnet18")
    try:
        import timm
    except ImportError as error:
        raise InputError(
            f"model.encoder = timm:{name}: the package timm is not installed; type: pip install 'dpfedmeta[timm]'"
        ) from error
    try:
        return timm.create_model(name, pretrained=False, num_classes=0)
    except RuntimeError as error:
        raise InputError(f"model.encoder = timm:{name}: timm knows no such network") from error


MEMBER = Timm()
