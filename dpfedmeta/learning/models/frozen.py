"""Networks whose normalisation no longer looks at other images: what an adapted client keeps and exports."""

from collections.abc import Iterator, Mapping
from copy import deepcopy

import torch
from torch import Tensor, nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.models.functional import channels_last
from dpfedmeta.learning.models.kernels.normalisation_jit import VARIANCE_FLOOR
from dpfedmeta.learning.models.layers.normalisation import ReferenceBatchNorm
from dpfedmeta.learning.models.layers.stateless_layers import LENGTH_FLOOR, SupportScale

_BatchNorm = nn.modules.batchnorm._BatchNorm
_PARTS = ("centre", "scale", "shift")


class Fixed(nn.Module):
    """Normalisation by constants: (x - centre) * scale + shift, each [channels]."""

    centre: Tensor
    scale: Tensor
    shift: Tensor

    def __init__(self, centre: Tensor, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        for name, value in zip(_PARTS, (centre, scale, shift), strict=True):
            self.register_buffer(name, value.detach().clone())

    def forward(self, values: Tensor) -> Tensor:
        """[n, channels, ...] -> the same shape."""
        shape = (1, -1) + (1,) * (values.ndim - 2)
        return (values - self.centre.view(shape)) * self.scale.view(shape) + self.shift.view(shape)


def mixes_queries(network: nn.Module) -> bool:
    """Return whether the user's own network normalises over the whole batch, query images included.

    Support and query images pass through a network together. PyTorch's batch normalisation cannot be told which of
    them count; ReferenceBatchNorm can.
    """
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def frozen_network(network: nn.Module, params: Mapping[str, Tensor], support_images: Tensor) -> nn.Module:
    """A plain module from images to logits whose statistics are those of the support images, as constants.

    Equal, up to float rounding, to the network under `params` with the support images as reference; the images
    themselves are not kept, and the prediction for one image does not depend on any other.

    Args:
        network: The module that `params` belong to; left as it is.
        params: The adapted parameters.
        support_images: [n, channels, height, width].

    Raises:
        InputError: A normalisation of the user's own network runs twice, or not at all.
    """
    made = deepcopy(network).eval()
    with torch.no_grad():
        own = dict(made.named_parameters())
        for name, value in params.items():  # a weight that has two names is one
            own[name].copy_(value)
    seen: dict[str, list[Tensor]] = {name: [] for name, _ in _coupled(made)}
    for name, module in _coupled(made):
        module.train()  # batch normalisation of the user's own: by this batch, not by running statistics
        module.register_forward_pre_hook(lambda _, inputs, seen=seen[name]: seen.append(inputs[0]))
    with torch.no_grad():
        made(channels_last(support_images))
    for name, module in list(_coupled(made)):
        if len(seen[name]) != 1:
            raise InputError(f"{name} runs {len(seen[name])} times per image, so its statistics cannot be frozen")
        _put(made, name, _fixed(module, seen[name][0]))
    return made.eval().requires_grad_(False)


def restored_network(network: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """A frozen network from the tensors of its state_dict.

    Args:
        network: As its specification builds it; left as it is.
        tensors: By name.

    Raises:
        InputError: Tensors are missing, of another shape, or left over.
    """
    made = deepcopy(network).eval()
    for name, _ in list(_coupled(made)):
        parts = [tensors.get(f"{name}.{part}") for part in _PARTS]
        if any(part is None or part.ndim != 1 for part in parts):
            raise InputError(f"the statistics of {name} are missing")
        _put(made, name, Fixed(*(part for part in parts if part is not None)))
    try:
        made.load_state_dict(dict(tensors))
    except RuntimeError as error:
        raise InputError(" ".join(str(error).split())) from error
    return made.eval().requires_grad_(False)


def _coupled(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, module in network.named_modules():
        if isinstance(module, (ReferenceBatchNorm, SupportScale, _BatchNorm)):
            yield name, module


def _put(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)


def _fixed(module: nn.Module, seen: Tensor) -> Fixed:
    if isinstance(module, SupportScale):
        centre = seen.mean(0)
        length = module.length * torch.rsqrt((seen - centre).square().sum(1).mean() + LENGTH_FLOOR)
        return Fixed(centre, length.expand_as(centre), torch.zeros_like(centre))
    if isinstance(module, ReferenceBatchNorm) and module.pooled and (signs := module.signs()) is not None:
        seen = seen * signs.view(-1, 1, 1)
    others = [axis for axis in range(seen.ndim) if axis != 1]
    floor = module.eps if isinstance(module, _BatchNorm) else VARIANCE_FLOOR
    scale = torch.rsqrt(seen.var(others, correction=0) + floor)
    centre = seen.mean(others)
    weight, bias = module.weight, module.bias
    return Fixed(
        centre,
        scale * weight if isinstance(weight, Tensor) else scale,
        bias if isinstance(bias, Tensor) else torch.zeros_like(centre),
    )
