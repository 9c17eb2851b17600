"""Meta-gradients of prototypes over an encoder's adapter in closed form: a fraction of autograd's time on a CPU."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.target_kind import Balance, record_weights
from dpfedmeta.learning.models.layers.adapters import (
    Affine,
    LowRank,
    Metric,
    Sharpened,
    UnitLength,
)
from dpfedmeta.learning.models.layers.stateless_layers import FewShotNetwork
from dpfedmeta.learning.models.spec import BODY
from dpfedmeta.learning.models.weight_shapes import FLOOR, SHARPNESS

_ADAPTER, _EXPONENT = f"{BODY}layers.1.", f"{BODY}layers.3.exponent"


def has_closed_form(network: nn.Module) -> bool:
    """Return whether a network is one of `adapter_layers` and nothing else."""
    # Of a subclass nothing is known.
    if type(network) is not FewShotNetwork or type(network.body.scale) is not nn.Identity:
        return False
    kinds = tuple(type(layer) for layer in network.body.layers)
    return kinds in {(UnitLength, kind, UnitLength, Sharpened) for kind in (Affine, LowRank, Metric, nn.Identity)}


def prototype_gradients(
    weights: Mapping[str, Tensor],
    learned: Mapping[str, Tensor],
    episodes: Episode,
    balance: Balance = "records",
) -> Params:
    """The gradient of each episode's mean query loss, with the directions of its class means as the head.

    The same value as `meta_gradient` with `CosinePrototypes` in second order, but for the order of additions.

    Args:
        weights: All weights of a network that `has_closed_form`.
        learned: What to differentiate by.
        episodes: One, images [n, d] and labels [n]; or E of one form, [E, n, d] and [E, n].
        balance: Whether the query loss is a mean over records, or over classes (of one episode).

    Returns:
        By the names of `learned`: [*shape], or [E, *shape].

    Guarantee:
        None by itself: the values are secret until they are clipped and released. No record of an episode enters the
        gradient of another one.
    """
    shots, ways = episodes.support_labels.shape[-1], weights["head.weight"].shape[-2]
    records, lengths = _directions(torch.cat([episodes.support_images, episodes.query_images], dim=-2))
    adapted = _adapted(weights, records)
    directions, lengths = _directions(adapted)
    factor = SHARPNESS * torch.exp(weights[_EXPONENT])
    members, targets = (
        (labels.unsqueeze(-1) == torch.arange(ways)).to(records.dtype)
        for labels in (episodes.support_labels, episodes.query_labels)
    )
    support, query = directions[..., :shots, :], directions[..., shots:, :]
    prototypes, sums = _directions(factor * (members.mT @ support))
    logits = factor * (query @ prototypes.mT)
    # Backwards: by the logits, the directions, what the adapter returned.
    residuals = (torch.softmax(logits, -1) - targets) / targets.shape[-2]
    if balance == "classes":
        residuals = record_weights(episodes.query_labels, ways).unsqueeze(-1) * residuals
    of_query = factor * (residuals @ prototypes)
    of_sums = _through_directions(factor * (residuals.mT @ query), prototypes, sums)
    of_support = factor * (members @ of_sums)
    by_direction = torch.cat([of_support, of_query], dim=-2)
    by_adapted = _through_directions(by_direction, directions, lengths)
    found = _by_adapter(weights, records, by_adapted)
    # The exponent scales all directions: the derivative by it is that by them, along them.
    found[_EXPONENT] = (by_direction * directions).sum((-2, -1)).unsqueeze(-1)
    return {name: found[name] if name in found else _nothing(value, records) for name, value in learned.items()}


def _directions(values: Tensor) -> tuple[Tensor, Tensor]:
    """Vectors at length 1 as `UnitLength` makes them, and the lengths that they had."""
    lengths = (values.square().sum(-1, keepdim=True) + FLOOR).sqrt()
    return values / lengths, lengths


def _through_directions(gradient: Tensor, directions: Tensor, lengths: Tensor) -> Tensor:
    """The gradient by vectors, from that by their directions."""
    along = (gradient * directions).sum(-1, keepdim=True)
    return torch.addcmul(gradient, directions, along, value=-1).div_(lengths)


def _adapted(weights: Mapping[str, Tensor], records: Tensor) -> Tensor:
    """Records behind the adapter."""
    if f"{_ADAPTER}up.weight" in weights:
        return records + _hidden(weights, records).mT @ weights[f"{_ADAPTER}up.weight"].mT
    if f"{_ADAPTER}gain" in weights:
        return records * (1 + weights[f"{_ADAPTER}gain"]) + weights[f"{_ADAPTER}shift"]
    if f"{_ADAPTER}matrix" in weights:
        return (records - weights[f"{_ADAPTER}centre"]) @ weights[f"{_ADAPTER}matrix"]
    return records


def _by_adapter(weights: Mapping[str, Tensor], records: Tensor, gradient: Tensor) -> Params:
    """The gradient by the adapter's weights, from that by what it returned."""
    if f"{_ADAPTER}up.weight" in weights:
        by_hidden = weights[f"{_ADAPTER}up.weight"].mT @ gradient.mT
        return {
            f"{_ADAPTER}down.weight": by_hidden @ records,
            f"{_ADAPTER}up.weight": (_hidden(weights, records) @ gradient).mT,
        }
    if f"{_ADAPTER}gain" in weights:
        return {f"{_ADAPTER}gain": (gradient * records).sum(-2), f"{_ADAPTER}shift": gradient.sum(-2)}
    if f"{_ADAPTER}matrix" in weights:
        centre, matrix = weights[f"{_ADAPTER}centre"], weights[f"{_ADAPTER}matrix"]
        return {
            f"{_ADAPTER}centre": -(gradient.sum(-2) @ matrix.mT),
            f"{_ADAPTER}matrix": (records - centre).mT @ gradient,
        }
    return {}


def _hidden(weights: Mapping[str, Tensor], records: Tensor) -> Tensor:
    """A x of a low-rank adapter, [..., r, n]: products with n at the end take a half to a sixth of the time."""
    return weights[f"{_ADAPTER}down.weight"] @ records.mT


def _nothing(value: Tensor, records: Tensor) -> Tensor:
    """Zeros for a weight that no loss depends on."""
    return value.new_zeros(*records.shape[:-2], *value.shape)
