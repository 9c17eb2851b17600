"""Parameters of a network that can be trained: frozen weights stay as they are, and some networks have none."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import Params
from dpfedmeta.learning.models.functional import head_of
from dpfedmeta.learning.models.spec import HEAD


def frozen_names(network: nn.Module) -> frozenset[str]:
    """Parameters that the network's author froze (`requires_grad_(False)`): a public fact of its architecture.

    They are known to everybody, adapted by no client, and no part of a message.
    """
    return frozenset(name for name, value in network.named_parameters() if not value.requires_grad)


def adapting(network: nn.Module, weights: Mapping[str, Tensor], adapt: str) -> Params:
    """The weights that a client adapts, under their full names.

    Args:
        network: The module that they belong to.
        weights: All of them.
        adapt: "head", or "all" that are not frozen.
    """
    if adapt == "head":
        return head_of(weights)
    frozen = frozen_names(network)
    return {name: value for name, value in weights.items() if name not in frozen}


def check_parameters(network: nn.Module, name: str) -> None:
    """Refuse weights that cannot be learned, sent and kept, as far as the module itself tells.

    Raises:
        InputError: Names the first of them.
    """
    where = f"model.name = {name}"
    parameters = dict(network.named_parameters())
    if not parameters:
        raise InputError(f"{where}: has no parameters, so there is nothing to learn")
    for own, value in (*parameters.items(), *network.named_buffers()):
        if isinstance(value, UninitializedParameter | UninitializedBuffer):
            module = type(network.get_submodule(own.rpartition(".")[0])).__name__
            raise InputError(
                f"{where}: {own} ({module}) has no size before it sees images, but the initial weights must be known "
                "before that; give the layer its input size"
            )
    for own, value in parameters.items():
        if value.dtype == torch.float32:
            continue
        remedy = "end the factory with network.float()" if value.is_floating_point() else "make it a buffer"
        if value.is_complex():
            remedy = "keep its real and its imaginary part, which can be clipped and sent"
        raise InputError(f"{where}: {own} is {str(value.dtype).removeprefix('torch.')}, expected float32; {remedy}")


def check_head_is_free(network: nn.Module, name: str) -> None:
    """Refuse to adapt a head that is frozen.

    Raises:
        InputError: Names what is frozen.
    """
    frozen = sorted(own for own in frozen_names(network) if own.startswith(HEAD))
    if frozen:
        raise InputError(
            f"model.name = {name}: the head adapts, but it has frozen weights (requires_grad_(False)): "
            f"{', '.join(frozen)}; unfreeze them, or use --meta.adapt all, which adapts all weights that are not frozen"
        )
