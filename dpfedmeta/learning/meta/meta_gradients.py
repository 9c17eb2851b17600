"""Meta-gradients of one client, exactly, and of several episodes of one form at once, by torch.func."""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params, added, detached, difference, placed, zeros_like
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation, Divisions
from dpfedmeta.learning.meta.algorithm import ClientContext
from dpfedmeta.learning.meta.inner_loop import (
    InnerProblem,
    LinearSupport,
    as_leaves,
    descend,
    descended_head,
    inner_problem,
)
from dpfedmeta.learning.meta.support_query_splits import divided, divided_gradient, division_slots, head_logits
from dpfedmeta.learning.meta.target_kind import mean_loss
from dpfedmeta.learning.models.functional import apply, apply_body, head_of
from dpfedmeta.learning.models.torch_func import grad, vmap


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
        order: 2 differentiates through the inner steps; 1 takes the derivative of theta_K by theta_0 for 1. In both the
            gradient flows through what a rule makes theta_0 of.
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
    loss = mean_loss(problem.query_logits(theta), episode.query_labels, adaptation.balance, adaptation.targets)
    if first_order:
        return _first_order_gradient(loss, leaves, problem.initial, theta, model)
    gradients = torch.autograd.grad(loss, tuple(leaves[name] for name in model), materialize_grads=True)
    return dict(zip(model, gradients, strict=True))


def _first_order_gradient(
    loss: Tensor, leaves: Params, initial: Params, theta: Params, model: Mapping[str, Tensor]
) -> Params:
    """The derivative of the loss at theta_K, taken for that by theta_0, and on through what made theta_0."""
    made = [name for name, value in initial.items() if value is not leaves.get(name)]
    at = {**leaves, **theta}
    names = [*model, *(name for name in made if name not in model)]
    values = torch.autograd.grad(
        loss, tuple(at[name] for name in names), materialize_grads=True, retain_graph=bool(made)
    )
    found = dict(zip(names, values, strict=True))
    # A rule may have made a part of theta_0 of what is not learned.
    behind = [name for name in made if initial[name].requires_grad]
    through: Params = {}
    if behind:
        back = torch.autograd.grad(
            [initial[name] for name in behind],
            tuple(leaves[name] for name in model),
            [found[name] for name in behind],
            materialize_grads=True,
        )
        through = dict(zip(model, back, strict=True))
    own = {name: torch.zeros_like(found[name]) if name in made else found[name] for name in model}
    return {name: value + through[name] if through else value for name, value in own.items()}


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


def batched_query_gradients(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Episode,
    adaptation: Adaptation,
    order: Literal[1, 2],
) -> Params:
    """SECRET: the gradient of each episode's query loss at its theta_K, each tensor [E, *shape].

    Args:
        network: A module without state of its own.
        model: What to differentiate by.
        fixed: The rest of the weights.
        episodes: E of them: images [E, n, channels, height, width] and labels [E, n].
        adaptation: The inner loop.
        order: 2 differentiates through the inner steps, 1 does not.
    """

    def query_loss(theta: Params, own: tuple[Tensor, Tensor, Tensor, Tensor]) -> Tensor:
        episode = Episode(support_images=own[0], support_labels=own[1], query_images=own[2], query_labels=own[3])
        problem = inner_problem(
            network,
            {**fixed, **theta},
            episode,
            adaptation,
            first_order=order == 1,
            layout=lambda images: images,
        )
        adapted = _adapted(problem, adaptation, order)
        return mean_loss(problem.query_logits(adapted), episode.query_labels, adaptation.balance, adaptation.targets)

    parts = (episodes.support_images, episodes.support_labels, episodes.query_images, episodes.query_labels)
    gradients: Params = vmap(grad(query_loss), in_dims=(None, 0))(dict(model), parts)
    return gradients


def batched_divided_gradients(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Episode,
    adaptation: Adaptation,
    order: Literal[1, 2],
    divisions: Divisions,
) -> Params:
    """SECRET: `support_query_splits.divided_gradient` of each of E episodes, all at once: each tensor [E, *shape].

    Args:
        network: A body followed by one linear layer, the head.
        model: What to differentiate by.
        fixed: The rest of the weights.
        episodes: E of one form, with the same number of classes and as many records of each; labels best lie with the
            host, which reads them.
        adaptation: Of the head.
        order: 2 differentiates through the inner steps, 1 does not.
        divisions: How many, and how they are cut.
    """
    labels = torch.cat([episodes.support_labels, episodes.query_labels], dim=1)
    ways = int(labels.max()) + 1
    images = torch.cat([episodes.support_images, episodes.query_images], dim=1)
    device = images.device
    by_class = placed(torch.argsort(labels, dim=1, stable=True), device)
    images = images[torch.arange(len(images), device=device)[:, None], by_class]
    slots = [placed(part, device) for part in division_slots(divisions, labels.shape[1] // ways)]
    every = torch.arange(ways, device=device)
    targets = [every.repeat_interleave(part.shape[1]) for part in slots]

    def query_loss(theta: Params, own: Tensor) -> Tensor:
        params = {**fixed, **theta}
        features = apply_body(network, params, own, None)
        support, query = (divided(features, part, ways) for part in slots)
        initial = {name: value.expand(divisions.count, *value.shape) for name, value in head_of(params).items()}
        found = descended_head(
            initial,
            LinearSupport(features=support, labels=targets[0]),
            adaptation.steps,
            adaptation.lr,
            adaptation.targets,
        )
        heads = found if order == 2 else _first_order(initial, found)
        return adaptation.targets.loss(head_logits(heads, query).flatten(0, 1), targets[1].repeat(divisions.count))

    gradients: Params = vmap(grad(query_loss), in_dims=(None, 0))(dict(model), images)
    return gradients


def batched(episodes: Sequence[Episode]) -> Episode:
    """Episodes of one form with a leading dimension."""
    return Episode(
        support_images=torch.stack([episode.support_images for episode in episodes]),
        support_labels=torch.stack([episode.support_labels for episode in episodes]),
        query_images=torch.stack([episode.query_images for episode in episodes]),
        query_labels=torch.stack([episode.query_labels for episode in episodes]),
    )


def _adapted(problem: InnerProblem, adaptation: Adaptation, order: Literal[1, 2]) -> Params:
    """theta_K under torch.func, where autograd's own calls do not work.

    First order: the derivative of theta_K by theta_0 is 1.
    """
    theta, rates = problem.initial, problem.rates
    if problem.linear is not None and not isinstance(rates, dict):
        found = descended_head(theta, problem.linear, adaptation.steps, rates, problem.targets)
        return found if order == 2 else _first_order(theta, found)
    for _ in range(adaptation.steps):
        step: Params = grad(problem.support_loss)(theta)
        theta = problem.step(theta, step if order == 2 else detached(step))
    return theta


def _first_order(start: Params, found: Params) -> Params:
    """The value of `found`, with the derivative of `start`."""
    return added([start, detached(difference(found, start))])


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
        name: value + _deviation(value) * torch.randn(value.shape, generator=generator).to(value)
        for name, value in params.items()
    }


def _deviation(value: Tensor) -> float:
    return 0.5 if value.ndim < 2 else float(max(value[0].numel(), 1) ** -0.5)
