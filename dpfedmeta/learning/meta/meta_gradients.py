"""Exact meta-gradients of one client, and the update of its inner loop."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfedmeta.core.params import Params, detached, difference, zeros_like
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.client_divisions import Divisions
from dpfedmeta.learning.meta.inner_loop import as_leaves, descend, inner_problem
from dpfedmeta.learning.meta.support_query_splits import divided_gradient


def meta_gradient(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    adaptation: Adaptation,
    order: Literal[1, 2],
    divisions: Divisions | None = None,
) -> Params:
    """The gradient of the query loss at theta_K by what is learned.

    Finn et al. 2017 (https://arxiv.org/abs/1703.03400), equation 1.

    Args:
        network: The module that the weights belong to.
        model: The released initialisation: what is learned.
        fixed: The rest of the weights, which everybody knows and nobody sends.
        episode: The client's data.
        adaptation: The inner loop.
        order: 2 differentiates through the inner steps, 1 does not.
        divisions: How a client divides its records again and again; None: as the episode does.

    Returns:
        A gradient for the server's optimizer, of the names and shapes of `model`.

    Guarantee:
        None by itself: the value is secret and unbounded until it is clipped, summed and released.
    """
    if divisions is not None:
        return divided_gradient(network, model, fixed, episode, adaptation, order, divisions)
    leaves, first_order = as_leaves({**fixed, **model}), order == 1
    problem = inner_problem(network, leaves, episode, adaptation, first_order=first_order)
    theta = descend(problem, adaptation.steps, second_order=not first_order)
    loss = cross_entropy(problem.query_logits(theta), episode.query_labels)
    at = {**leaves, **theta} if first_order else leaves
    gradients = torch.autograd.grad(loss, tuple(at[name] for name in model), materialize_grads=True)
    return dict(zip(model, gradients, strict=True))


def inner_update(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    adaptation: Adaptation,
) -> Params:
    """theta_0 - theta_K of the inner loop on the support set; 0 for what does not adapt.

    Nichol et al. 2018 (https://arxiv.org/abs/1803.02999).

    Guarantee:
        None by itself, as of `meta_gradient`.
    """
    leaves = as_leaves({**fixed, **model})
    problem = inner_problem(network, leaves, episode, adaptation, first_order=True)
    theta = descend(problem, adaptation.steps, second_order=False)
    moved = difference(detached(problem.initial), detached(theta))
    return {**zeros_like(model), **{name: moved[name] for name in moved if name in model}}
