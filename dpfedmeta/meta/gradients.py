"""Exact meta-gradients of one client: MAML, first-order MAML, ANIL, Reptile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfedmeta.data.episode import Episode
from dpfedmeta.meta.divisions import Divisions, divided_contribution
from dpfedmeta.meta.inner_loop import Adaptation, as_leaves, descend, inner_problem
from dpfedmeta.meta.local_training import LocalSteps
from dpfedmeta.parameters import Params, detached, difference, zeros_like

Message = Literal["query", "update", "local"]
"""The gradient of the query loss at theta_K (MAML family), theta_0 - theta_K of the inner loop on the support set
(Reptile), or that of local training on all records (federated averaging)."""


@dataclass(frozen=True, kw_only=True)
class MetaSpec:
    """What a client sends.

    Attributes:
        message: Which.
        order: 2 differentiates through the inner steps (Finn et al. 2017, eq. 1), 1 does not (FOMAML).
        adaptation: The inner loop; `adapt: head` makes it ANIL (Raghu et al. 2020).
        batch: B of local training; None: all records.
        divisions: How a client divides its records again and again; None: as its episode does, once.
    """

    message: Message
    order: Literal[1, 2]
    adaptation: Adaptation
    batch: int | None = None
    divisions: Divisions | None = None

    @property
    def stackable(self) -> bool:
        """Whether several clients can be computed at once (meta.stacked)."""
        return self.message == "query" and self.divisions is None

    def stacks(self, device: str, chunk: int | None) -> bool:
        """Whether they are: on a GPU, or where run.chunk asks for it."""
        return self.stackable and (device == "cuda" or (chunk or 1) > 1)

    @property
    def local(self) -> LocalSteps:
        """Local training."""
        return LocalSteps(steps=self.adaptation.steps, batch=self.batch, lr=self.adaptation.lr)


def contribution(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    spec: MetaSpec,
) -> Params:
    """One client's whole round, without record-level noise.

    Args:
        network: The module that `model` and `fixed` belong to.
        model: The released initialisation: what is learned.
        fixed: The rest of the weights, which everybody knows and nobody sends.
        episode: The client's data.
        spec: Method and inner loop; local training is in meta.local.

    Returns:
        A gradient for the server's optimizer, of the names and shapes of `model`.

    Guarantee:
        None by itself: the value is secret and unbounded until it is clipped, summed and released.
    """
    adaptation = spec.adaptation
    if spec.divisions is not None:
        return divided_contribution(network, model, fixed, episode, adaptation, spec.order, spec.divisions)
    leaves = as_leaves({**fixed, **model})
    first_order = spec.order == 1
    problem = inner_problem(network, leaves, episode, adaptation.adapt, first_order=first_order)
    if spec.message == "update":
        theta = descend(problem, adaptation.steps, adaptation.lr, second_order=False)
        moved = difference(detached(problem.initial), detached(theta))
        return {**zeros_like(model), **{name: moved[name] for name in moved if name in model}}
    theta = descend(problem, adaptation.steps, adaptation.lr, second_order=not first_order)
    loss = cross_entropy(problem.query_logits(theta), episode.query_labels)
    at = {**leaves, **theta} if first_order else leaves
    gradients = torch.autograd.grad(loss, tuple(at[name] for name in model), materialize_grads=True)
    return dict(zip(model, gradients, strict=True))
