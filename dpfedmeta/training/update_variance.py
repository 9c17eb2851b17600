"""Similarity of clients' updates, measured on clients that are made of public data."""

from dataclasses import dataclass

import torch

from dpfedmeta.core.params import Params, flatten
from dpfedmeta.simulation.client_runner import ClientRunner


@dataclass(frozen=True, kw_only=True)
class UpdateSpread:
    """V_c and U_s of Geyer et al. (2017, https://arxiv.org/abs/1712.07557, section 4), per parameter.

    Attributes:
        between_client_variance: V_c, mean over parameters of the variance of the clients' messages.
        update_scale: U_s, mean over parameters of the squared mean of the clients' messages.
    """

    between_client_variance: float
    update_scale: float


def update_spread(public: ClientRunner, model: Params, round_: int, count: int) -> UpdateSpread:
    """V_c and U_s of the exact messages of the first `count` public clients.

    The published code takes them from the private clients, where they would have to leave a mechanism first. Here
    `public` must hold public data alone: the result is logged as it is.
    """
    placed = {name: value.to(public.device) for name, value in model.items()}
    messages = public.exact_messages(placed, round_, range(count))
    updates = torch.stack([flatten(message).double() for message in messages if message is not None])
    return UpdateSpread(
        between_client_variance=float(updates.var(0, correction=0).mean()),
        update_scale=float(updates.mean(0).square().mean()),
    )
