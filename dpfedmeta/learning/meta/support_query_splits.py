"""A meta-gradient over several divisions of records into support and query, for one pass of the body.

The records are those of a client, or of a part of them (a micro-episode), which divides its own.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation, Divisions
from dpfedmeta.learning.meta.inner_loop import LinearSupport, as_leaves, descended_head
from dpfedmeta.learning.models.functional import apply_body, channels_last, head_of
from dpfedmeta.learning.record_dp.local_training import records


def division_slots(divisions: Divisions, held: int) -> tuple[Tensor, Tensor]:
    """Which of the `held` records of each class are support and which query: a window that moves round.

    Returns:
        [S, shots] and [S, held - shots] numbers.
    """
    starts = torch.arange(divisions.count) * held // divisions.count
    turned = (starts[:, None] + torch.arange(held)) % held
    return turned[:, : divisions.shots], turned[:, divisions.shots :]


def divided_gradient(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    adaptation: Adaptation,
    order: int,
    divisions: Divisions,
) -> Params:
    """The mean over the divisions of the gradient of the query loss at the adapted head.

    All divisions share one pass through the body, so batch statistics, if any, are those of all records of the episode.
    That is for training alone, where all of them are the client's own.

    Args:
        network: A body followed by one linear layer, the head.
        model: The released initialisation: what is learned.
        fixed: The rest of the weights.
        episode: The client's data, or a part of them; as many records of each class.
        adaptation: Of the head.
        order: 2 differentiates through the inner steps, 1 does not.
        divisions: How many, and how they are cut.

    Guarantee:
        None by itself, as of `meta_gradient`: a function of one client's data, secret until it is clipped and released.
    """
    leaves = as_leaves({**fixed, **model})
    images, labels = records(episode)
    by_class = torch.argsort(labels, stable=True)
    ways = int(labels.max()) + 1
    features = apply_body(network, leaves, channels_last(images[by_class]), None)
    slots = (part.to(labels.device) for part in division_slots(divisions, len(labels) // ways))
    support, query = (divided(features, part, ways) for part in slots)
    if order == 1:
        support = support.detach()
    initial = {name: value.expand(divisions.count, *value.shape) for name, value in head_of(leaves).items()}
    own = LinearSupport(features=support, labels=torch.arange(ways).repeat_interleave(divisions.shots).to(labels))
    heads = adapted_heads(initial, own, adaptation, order)
    logits = head_logits(heads, query)
    targets = torch.arange(ways).repeat_interleave(logits.shape[1] // ways).repeat(divisions.count)
    loss = adaptation.targets.loss(logits.flatten(0, 1), targets.to(labels))
    at = {**leaves, **heads} if order == 1 else leaves
    gradients = torch.autograd.grad(loss, tuple(at[name] for name in model), materialize_grads=True)
    found = dict(zip(model, gradients, strict=True))
    # First order: every division's own head stands for the common one.
    return {name: value.sum(0) if order == 1 and name in heads else value for name, value in found.items()}


def divided_gradients(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Episode,
    adaptation: Adaptation,
    order: int,
    divisions: Divisions,
) -> Params:
    """SECRET: `divided_gradient` of E episodes, one after the other: each tensor [E, *shape]."""
    every = (episodes.support_images, episodes.support_labels, episodes.query_images, episodes.query_labels)
    found = []
    for own in zip(*every, strict=True):
        episode = Episode(support_images=own[0], support_labels=own[1], query_images=own[2], query_labels=own[3])
        found.append(divided_gradient(network, model, fixed, episode, adaptation, order, divisions))
    return {name: torch.stack([gradient[name] for gradient in found]) for name in model}


def adapted_heads(initial: Params, support: LinearSupport, adaptation: Adaptation, order: int) -> Params:
    """theta_K of heads side by side, [S, *shape] each; in first order fresh leaves."""
    with torch.set_grad_enabled(order == 2):
        heads = descended_head(initial, support, adaptation.steps, adaptation.lr, adaptation.targets)
    return heads if order == 2 else as_leaves(heads)


def divided(features: Tensor, slots: Tensor, ways: int) -> Tensor:
    """[..., ways * held, d] -> [..., S, ways * k, d], class by class."""
    by_class = features.view(*features.shape[:-2], ways, -1, features.shape[-1])[..., slots, :]
    return by_class.transpose(-4, -3).flatten(-3, -2)


def head_logits(heads: Mapping[str, Tensor], features: Tensor) -> Tensor:
    """[S, n, ways] of heads side by side, each on its own features [S, n, d]."""
    weight, bias = heads["head.weight"], heads["head.bias"]
    return torch.baddbmm(bias.unsqueeze(1), features, weight.transpose(1, 2))
