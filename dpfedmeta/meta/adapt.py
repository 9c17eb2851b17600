"""The inner loop: K gradient steps on the support set, from the shared initialisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from dpfedmeta.data.episode import Episode
from dpfedmeta.models import apply, apply_body, apply_head, channels_last, head_of
from dpfedmeta.parameters import Params


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """How a client adapts.

    Attributes:
        adapt: All parameters, or the head only.
        steps: K.
        lr: Step size of the mean support loss.
    """

    adapt: Literal["all", "head"]
    steps: int
    lr: float


@dataclass(frozen=True, kw_only=True)
class InnerProblem:
    """An episode as functions of the adapted parameters alone.

    Attributes:
        initial: theta_0 of the adapted parameters.
        support_loss: Mean cross-entropy on the support set.
        query_logits: Logits [n_q, ways]; batch statistics, if any, come from the support set.
    """

    initial: Params
    support_loss: Callable[[Params], Tensor]
    query_logits: Callable[[Params], Tensor]


def inner_problem(
    network: nn.Module,
    params: Mapping[str, Tensor],
    episode: Episode,
    adapt: Literal["all", "head"],
    *,
    first_order: bool,
) -> InnerProblem:
    """Set up the inner loop. A head on a fixed body needs the body's features only once.

    Args:
        network: The module that `params` belong to.
        params: The initialisation; the problem is differentiable in it.
        episode: Support and query set.
        adapt: Which parameters adapt.
        first_order: Cut the path from the support features to the body (FOMAML).
    """
    support = episode.support_labels.shape[0]
    both = channels_last(torch.cat([episode.support_images, episode.query_images]))
    if adapt == "head":
        features = apply_body(network, params, both, support)
        support_features, query_features = features[:support], features[support:]
        if first_order:
            support_features = support_features.detach()
        return InnerProblem(
            initial=head_of(params),
            support_loss=lambda head: cross_entropy(
                apply_head(network, head, support_features), episode.support_labels
            ),
            query_logits=lambda head: apply_head(network, head, query_features),
        )
    return InnerProblem(
        initial=dict(params),
        support_loss=lambda theta: cross_entropy(
            apply(network, theta, both[:support], support), episode.support_labels
        ),
        query_logits=lambda theta: apply(network, theta, both, support)[support:],
    )


def descend(problem: InnerProblem, steps: int, lr: float, *, second_order: bool) -> Params:
    """theta_K. With `second_order` it stays differentiable in theta_0, else it is a fresh leaf."""
    theta = problem.initial
    for _ in range(steps):
        gradients = torch.autograd.grad(
            problem.support_loss(theta),
            tuple(theta.values()),
            create_graph=second_order,
            materialize_grads=True,
        )
        theta = {name: v - lr * g for (name, v), g in zip(theta.items(), gradients, strict=True)}
        if not second_order:
            theta = {name: value.detach().requires_grad_() for name, value in theta.items()}
    return theta


def as_leaves(params: Mapping[str, Tensor]) -> Params:
    """The same values as leaves that require a gradient."""
    return {name: value.detach().requires_grad_() for name, value in params.items()}


def adapted_logits(
    network: nn.Module, params: Mapping[str, Tensor], episode: Episode, adaptation: Adaptation
) -> Tensor:
    """Query logits after adaptation on the support set, for evaluation; no noise, nothing leaves the device.

    Inductive: the prediction for one query image does not depend on the others.
    """
    problem = inner_problem(network, as_leaves(params), episode, adaptation.adapt, first_order=True)
    theta = descend(problem, adaptation.steps, adaptation.lr, second_order=False)
    with torch.no_grad():
        return problem.query_logits(theta)
