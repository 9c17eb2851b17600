"""Test before the first round that a GPU computes the gradients that a CPU computes."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.network_trial.synthetic_clients import Rehearsal, RehearsedClients

# A maximum of two nearly equal numbers tips over by rounding and moves a gradient by a tenth. That happens to few
# clients; a wrong kernel moves all of them by their own length.
_MOST = 0.05
_DRAWS = (1, 2)


def check_same_on(device: torch.device, rehearsal: Rehearsal) -> None:
    """Refuse a device whose gradients of synthetic clients are not those of the CPU, in float32.

    PyTorch 2.11 computes the backward pass of an average over overlapping windows wrongly on a GPU, where channels lie
    last in memory. Nothing else shows it: such a run releases the noise that was planned, and learns nothing.

    Args:
        device: Where clients are to be computed.
        rehearsal: What they compute.

    Raises:
        InputError: No unit of any trial agrees within a twentieth of its length.

    Guarantee:
        None, and none depends on it: clipping bounds a wrong gradient too.
    """
    exact = replace(rehearsal, network=replace(rehearsal.network, precision="float32"))
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        least = min(_least_share(exact, device, draw) for draw in _DRAWS)
    finally:
        torch.backends.cudnn.allow_tf32 = before
    if not least <= _MOST:
        raise InputError(
            f"run.device = {device.type}: PyTorch {torch.__version__} computes other gradients of model.name = "
            f"{rehearsal.network.name} there than on a CPU (apart by {least:.2g} of their length at least); use "
            "--device cpu, another network or another version of PyTorch"
        )


def _least_share(rehearsal: Rehearsal, device: torch.device, draw: int) -> float:
    weights, episodes = rehearsal.weights(draw), rehearsal.episodes(draw)
    here = RehearsedClients(rehearsal)(*weights, episodes)
    there = RehearsedClients(rehearsal, device)(*weights, episodes)
    return min(float(_shares(one, two.to(one.device)).min()) for one, two in zip(here, there, strict=True))


def _shares(one: Tensor, two: Tensor) -> Tensor:
    """Distance of each row over its length; one without length has to be the same."""
    lengths = torch.linalg.vector_norm(one.double(), dim=1)
    apart = torch.linalg.vector_norm(two.double() - one.double(), dim=1)
    return torch.where(apart == 0.0, 0.0, apart / lengths)
