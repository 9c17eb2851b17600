"""Gradients of several units as rows, for the trial of a network."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.algorithm import ClientContext
from dpfedmeta.learning.models.functional import apply


def rows(units: Sequence[Params]) -> Tensor:
    """[units, d]; a value that is not finite counts as 0, as where gradients are clipped."""
    # A weight that is one number has no further axis that flatten could begin with.
    flat = ([value.reshape(len(value), -1) for value in own.values()] for own in units)
    found = torch.cat([torch.cat(parts, dim=1).detach() for parts in flat])
    return torch.where(found.isfinite(), found, 0.0)


def logit_rows(context: ClientContext, episodes: Sequence[Episode]) -> Tensor:
    """The logits of all support records in one call.

    Where records are mapped one by one a mixture of them does not show, but the network would be another one.
    """
    images = torch.cat([episode.support_images for episode in episodes])
    with torch.no_grad():
        return rows([{"": apply(context.module, {**context.fixed, **context.learned}, images, None)}])


def drawn(params: Params, seed: int) -> Params:
    """Random values around these, of the size that keeps activations in range; what is 0 is 0 no longer."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + _deviation(value) * torch.randn(value.shape, generator=generator).to(value.dtype)
        for name, value in params.items()
    }


def _deviation(value: Tensor) -> float:
    return 0.5 if value.ndim < 2 else float(max(value[0].numel(), 1) ** -0.5)
