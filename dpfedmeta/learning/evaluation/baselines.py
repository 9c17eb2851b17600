"""Baselines on the same episodes: adapted networks, and nearest-neighbour methods without adaptation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Arrays, tensors_of
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import logits_along
from dpfedmeta.learning.models.functional import apply_body, channels_last
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.models.text import TokenShares


class Learner(Protocol):
    """Anything that labels the query images of an episode; picklable."""

    def accuracies(self, episode: Episode, *, transductive: bool) -> list[float]:
        """In [0, 1]; several where it is asked after several numbers of steps."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Adapted:
    """A network after gradient steps on the support set.

    Attributes:
        network: What `weights` belong to.
        weights: The initialisation, as plain arrays for the way to a worker process.
        adaptation: What adapts, and its step size.
        at: Numbers of steps after which it is asked, ascending.
    """

    network: NetworkSpec
    weights: Arrays
    adaptation: Adaptation
    at: tuple[int, ...]

    def accuracies(self, episode: Episode, *, transductive: bool) -> list[float]:
        """After each number of steps."""
        params = tensors_of(self.weights)
        logits = logits_along(
            _network(self.network), params, episode, self.adaptation, self.at, transductive=transductive
        )
        return [_accuracy(each.argmax(1), episode) for each in logits]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeaturePrototype:
    """The nearest class mean in the features of a body; nothing adapts."""

    network: NetworkSpec
    weights: Arrays

    def accuracies(self, episode: Episode, *, transductive: bool) -> list[float]:
        """Return the accuracy on the query set, as a list of one value."""
        support = episode.support_labels.shape[0]
        both = channels_last(torch.cat([episode.support_images, episode.query_images]))
        with torch.no_grad():
            features = apply_body(
                _network(self.network), tensors_of(self.weights), both, None if transductive else support
            ).flatten(1)
        return [_accuracy(_nearest_mean(features[:support], features[support:], episode.support_labels), episode)]


@dataclass(frozen=True, kw_only=True)
class PixelPrototype:
    """The nearest class mean in pixels, or in the numbers of a vector: needs no learning at all.

    Attributes:
        vocabulary: Of tokens, the shares of which are compared, since an id is no quantity; None: no tokens.
    """

    vocabulary: int | None = None

    def accuracies(self, episode: Episode, *, transductive: bool) -> list[float]:
        """Return the accuracy on the query set, as a list of one value."""
        support, query = (_plain(images, self.vocabulary) for images in (episode.support_images, episode.query_images))
        return [_accuracy(_nearest_mean(support, query, episode.support_labels), episode)]


@dataclass(frozen=True, kw_only=True)
class PixelNeighbour:
    """The nearest support image in pixels, or as `PixelPrototype` compares.

    Attributes:
        vocabulary: As there.
    """

    vocabulary: int | None = None

    def accuracies(self, episode: Episode, *, transductive: bool) -> list[float]:
        """Return the accuracy on the query set, as a list of one value."""
        distance = torch.cdist(
            _plain(episode.query_images, self.vocabulary), _plain(episode.support_images, self.vocabulary)
        )
        return [_accuracy(episode.support_labels[distance.argmin(1)], episode)]


def _plain(records: Tensor, vocabulary: int | None) -> Tensor:
    """[n, d], without any network."""
    shares: Tensor = records.flatten(1) if vocabulary is None else TokenShares(vocabulary)(records)
    return shares


def _nearest_mean(support: Tensor, query: Tensor, labels: Tensor) -> Tensor:
    ways = int(labels.max()) + 1
    # Episodes come class by class with the same number of shots.
    means = support.reshape(ways, labels.shape[0] // ways, -1).mean(1)
    return torch.cdist(query, means).argmin(1)


def _accuracy(predicted: Tensor, episode: Episode) -> float:
    return float((predicted == episode.query_labels).double().mean())


@lru_cache(maxsize=4)
def _network(spec: NetworkSpec) -> nn.Module:
    return build_network(spec)
