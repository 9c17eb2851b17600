"""Meta-gradients of the parts of a client's records, each on its own, for one pass of the body."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import PLAIN, Adaptation, Divisions
from dpfedmeta.learning.meta.algorithm import ClientContext
from dpfedmeta.learning.meta.inner_loop import LinearSupport
from dpfedmeta.learning.meta.support_query_splits import adapted_heads, divided, division_slots, head_logits
from dpfedmeta.learning.models.functional import head_of
from dpfedmeta.learning.models.layers.per_example_layers import first_values, has_part_layers, part_features
from dpfedmeta.learning.record_dp.per_example_gradients import LayeredGradients

# Values that the first convolution makes of an image. With fewer (measured) what is done once a client costs more than
# the convolutions, and torch.func takes several clients at once.
LEAST_VALUES = 6000
# Parts of one client in one pass. A silo has hundreds: all at once took 6 GB, and longer.
MOST_PARTS = 32


def parts_share_a_pass(context: ClientContext, adaptation: Adaptation, episodes: Episode) -> bool:
    """Return whether `part_gradients` can replace torch.func and is faster.

    It needs a network of this package that is not too small, an adaptation of the head only, and a CPU. The answer
    depends on public values alone.
    """
    here = context.parts is not None and context.device.type == "cpu" and isinstance(context.engine, LayeredGradients)
    plain = adaptation.adapt == "head" and adaptation.rule == PLAIN
    if not (here and plain and has_part_layers(context.module)):
        return False
    height, width = episodes.support_images.shape[-2:]
    return first_values(context.module, (height, width)) >= LEAST_VALUES


def client_by_client(
    context: ClientContext, episodes: Episode, adaptation: Adaptation, order: int, divisions: Divisions | None = None
) -> Params:
    """`part_gradients` of one client after the other, so that no bit depends on who else is computed: [E, *shape]."""
    every = (episodes.support_images, episodes.support_labels, episodes.query_images, episodes.query_labels)
    found: list[Params] = []
    size = context.parts or len(episodes.support_labels)
    clients = zip(*(torch.split(value, size) for value in every), strict=True)
    for own in (piece for client in clients for piece in zip(*(v.split(MOST_PARTS) for v in client), strict=True)):
        episode = Episode(support_images=own[0], support_labels=own[1], query_images=own[2], query_labels=own[3])
        found.append(
            part_gradients(context.module, context.learned, context.fixed, episode, adaptation, order, divisions)
        )
    return {name: torch.cat([gradients[name] for gradients in found]) for name in context.learned}


def part_gradients(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Episode,
    adaptation: Adaptation,
    order: int,
    divisions: Divisions | None = None,
) -> Params:
    """SECRET: the gradient of each part's query loss at its own adapted head, each tensor [parts, *shape].

    The parts share one pass through the body and back. The head adapts on each part's features, and the body's layers
    return each part's own gradient (per_example_layers). Statistics, if any, are those of a part's support set; with
    divisions those of all its records.

    Args:
        network: `has_part_layers`.
        model: What to differentiate by.
        fixed: The rest of the weights.
        episodes: The parts: images [parts, n, channels, height, width] and labels [parts, n].
        adaptation: Of the head, by plain steps.
        order: 2 differentiates through the inner steps, 1 does not.
        divisions: Each part divides its own records so, and its gradient is the mean over them; the parts' labels are
            alike, with as many records of each class. None: as the parts do.

    Guarantee:
        None by itself: the values are secret until they are clipped and released. No record of a part enters the
        gradient of another part, so a record moves one of them only, however often the part divides its own.
    """
    parts = len(episodes.support_labels)
    leaves = {name: value.detach().expand(parts, *value.shape) for name, value in {**fixed, **model}.items()}
    for name in model:
        leaves[name].requires_grad_()
    images = torch.cat([episodes.support_images, episodes.query_images], dim=1)
    reference = images.shape[1] if divisions is not None else episodes.support_labels.shape[1]
    features = part_features(network, leaves, images, reference)
    # [parts * S, n, d] and [parts * S, n], part by part, with S = 1 where there are no divisions.
    support, query, support_labels, query_labels = _sets(features, episodes, divisions)
    if order == 1:
        support = support.detach()
    own = LinearSupport(features=support, labels=support_labels)
    repeats = len(support) // parts
    head_of_parts = {name: _repeated(value, repeats) for name, value in head_of(leaves).items()}
    heads = adapted_heads(head_of_parts, own, adaptation, order)
    logits = head_logits(heads, query)
    total = adaptation.targets.loss(logits.flatten(0, 1), query_labels.flatten(), "sum")
    at = {**leaves, **heads} if order == 1 else leaves
    # The mean over the queries of each part, and the sum over the parts: each has weights of its own.
    count = repeats * query.shape[1]
    gradients = torch.autograd.grad(total / count, tuple(at[name] for name in model), materialize_grads=True)
    found = dict(zip(model, gradients, strict=True))
    if order == 1 and divisions is not None:
        # Every division's own head stands for the one of its part.
        own_heads = {name: found[name] for name in heads if name in found}
        found.update({name: v.view(parts, repeats, *v.shape[1:]).sum(1) for name, v in own_heads.items()})
    return found


def _sets(features: Tensor, episodes: Episode, divisions: Divisions | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Support and query features, and their labels."""
    shots = episodes.support_labels.shape[1]
    if divisions is None:
        return features[:, :shots], features[:, shots:], episodes.support_labels, episodes.query_labels
    labels = torch.cat([episodes.support_labels[0], episodes.query_labels[0]])
    ways = int(labels.max()) + 1
    by_class = features[:, torch.argsort(labels, stable=True)]
    slots = (each.to(labels.device) for each in division_slots(divisions, len(labels) // ways))
    support, query = (divided(by_class, each, ways).flatten(0, 1) for each in slots)
    targets = (torch.arange(ways).repeat_interleave(each.shape[1] // ways).to(labels) for each in (support, query))
    own, other = (each.expand(len(support), -1) for each in targets)
    return support, query, own, other


def _repeated(value: Tensor, times: int) -> Tensor:
    """[parts, ...] -> [parts * times, ...]."""
    return value if times == 1 else value.repeat_interleave(times, 0)
