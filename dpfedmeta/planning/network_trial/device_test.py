"""Test before the first round that a GPU computes the gradients that a CPU computes."""

from dataclasses import replace

import torch
from torch import Tensor

from dpfedmeta.core.errors import InputError
from dpfedmeta.planning.network_trial.synthetic_clients import Rehearsal, RehearsedClients

# A maximum of two nearly equal numbers tips over by rounding and moves a gradient by a tenth. That happens to few
# clients; a wrong kernel moves all of them by their own length.
_MOST = 0.05
_DRAWS = (1, 2, 3)


def check_same_on(device: torch.device, rehearsal: Rehearsal) -> None:
    """Refuse a device whose gradients of synthetic clients are not those of the CPU, in float32.

    PyTorch 2.11 computes the backward pass of an average over overlapping windows wrongly on a GPU, where channels lie
    last in memory. Nothing else shows it: such a run releases the noise that was planned, and learns nothing.

    Args:
        device: Where clients are to be computed.
        rehearsal: What they compute.

    Raises:
        InputError: Half or more of the units that have a gradient are apart by over a twentieth of its length, or no
            unit has one.

    Guarantee:
        None, and none depends on it: clipping bounds a wrong gradient too.
    """
    exact = replace(rehearsal, network=replace(rehearsal.network, precision="float32"))
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        shares = torch.cat([_shares(exact, device, draw) for draw in _DRAWS])
    finally:
        torch.backends.cudnn.allow_tf32 = before
    if not len(shares):
        raise InputError(
            f"run.device = {device.type}: model.name = {rehearsal.network.name} has no gradient on synthetic records, "
            "so nothing shows that it is computed rightly there; use --device cpu, or another network"
        )
    apart = float(shares.median())
    if not apart <= _MOST:
        raise InputError(
            f"run.device = {device.type}: PyTorch {torch.__version__} computes other gradients of model.name = "
            f"{rehearsal.network.name} there than on a CPU (apart by {apart:.2g} of their length); use --device cpu, "
            "another network or another version of PyTorch"
        )


def _shares(rehearsal: Rehearsal, device: torch.device, draw: int) -> Tensor:
    """Distance of each unit's gradient over its length, of the units that have one; NaN counts as far apart."""
    weights, episodes = rehearsal.weights(draw), rehearsal.episodes(draw)
    here = [phase.double() for phase in RehearsedClients(rehearsal)(*weights, episodes)]
    there = [phase.cpu().double() for phase in RehearsedClients(rehearsal, device)(*weights, episodes)]
    differences = [two - one for one, two in zip(here, there, strict=True)]
    lengths, apart = (
        torch.cat([torch.linalg.vector_norm(rows, dim=1) for rows in phases]) for phases in (here, differences)
    )
    # Where both are 0, as behind dead units, nothing is compared.
    seen = (lengths > 0) | (apart != 0)
    shares: Tensor = (apart[seen] / lengths[seen]).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return shares
