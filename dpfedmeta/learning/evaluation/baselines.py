"""Baselines on the same episodes: adapted networks, and nearest-neighbour methods without adaptation."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol, Self

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Arrays, tensors_of
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import BIAS, WEIGHT, LinearSupport, descended_head, logits_along
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.models.functional import apply_body, channels_last
from dpfedmeta.learning.models.layers.stateless_layers import TokenShares
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.targets.classification import OWN_CLASSES


class Learner(Protocol):
    """Anything that labels the query images of an episode; picklable."""

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Labels [n_q]; several where it is asked after several numbers of steps."""
        ...


class Scorer(Protocol):
    """Anything that gives every query record outputs that can be ranked; picklable."""

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """Return [n_q, outputs], the larger the likelier; or [n_q, 1], numbers that are predicted."""
        ...


def accuracies(learner: Learner, episode: Episode, *, transductive: bool) -> list[float]:
    """Accuracies in [0, 1] on the query set, one for each of the learner's predictions."""
    return scores(learner, episode, OWN_CLASSES, transductive=transductive)


def scores(learner: Learner, episode: Episode, targets: TargetKind, *, transductive: bool) -> list[float]:
    """Scores on the query set, one for each of the learner's predictions."""
    predictions = learner.predictions(episode, transductive=transductive)
    return [targets.score(predicted, episode.query_labels) for predicted in predictions]


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

    @property
    def before(self) -> Self:
        """The same model before adaptation."""
        return replace(self, adaptation=self.adaptation.unadapted, at=(0,))

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """After each number of steps."""
        params = tensors_of(self.weights)
        logits = logits_along(
            _network(self.network), params, episode, self.adaptation, self.at, transductive=transductive
        )
        return [self.adaptation.targets.predicted(each) for each in logits]

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """After the last number of steps."""
        params, network = tensors_of(self.weights), _network(self.network)
        return logits_along(network, params, episode, self.adaptation, self.at)[-1]


@dataclass(frozen=True, kw_only=True, eq=False)
class FeaturePrototype:
    """The nearest class mean in the features of a body; nothing adapts."""

    network: NetworkSpec
    weights: Arrays

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the labels of the query set, as a list of one tensor."""
        support = episode.support_labels.shape[0]
        both = channels_last(torch.cat([episode.support_images, episode.query_images]))
        with torch.no_grad():
            features = apply_body(
                _network(self.network), tensors_of(self.weights), both, None if transductive else support
            ).flatten(1)
        return [_nearest_mean(features[:support], features[support:], episode.support_labels)]


@dataclass(frozen=True, kw_only=True)
class PixelPrototype:
    """The nearest class mean in pixels, or in the numbers of a vector: needs no learning at all.

    Attributes:
        vocabulary: Of tokens, the shares of which are compared, since an id is no quantity; None: no tokens.
    """

    vocabulary: int | None = None

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the labels of the query set, as a list of one tensor."""
        support, query = (_plain(images, self.vocabulary) for images in (episode.support_images, episode.query_images))
        return [_nearest_mean(support, query, episode.support_labels)]

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """Less the distance from each class mean; from a class without a support record it is infinite."""
        support, query = (_plain(each, self.vocabulary) for each in (episode.support_images, episode.query_images))
        found = query.new_full((len(query), outputs), -torch.inf)
        for label in torch.unique(episode.support_labels).tolist():
            mean = support[episode.support_labels == label].double().mean(0)
            found[:, label] = -_distances(query, mean[None])[:, 0]
        return found


@dataclass(frozen=True, kw_only=True)
class PixelNeighbour:
    """The nearest support image in pixels, or as `PixelPrototype` compares.

    Attributes:
        vocabulary: As there.
    """

    vocabulary: int | None = None

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the labels of the query set, as a list of one tensor."""
        distance = _distances(
            _plain(episode.query_images, self.vocabulary), _plain(episode.support_images, self.vocabulary)
        )
        return [episode.support_labels[distance.argmin(1)]]


@dataclass(frozen=True, kw_only=True)
class Majority:
    """One class, whatever is asked.

    Attributes:
        label: The most frequent class of a client, which an episode with as many shots of each does not tell.
    """

    label: int

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the labels of the query set, as a list of one tensor."""
        return [torch.full_like(episode.query_labels, self.label)]

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """Return 1 for that class."""
        found = torch.zeros(len(episode.query_labels), outputs)
        found[:, self.label] = 1.0
        return found


@dataclass(frozen=True, kw_only=True)
class OwnMajority:
    """The most frequent class of a client's own support set, whatever is asked."""

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the labels of the query set, as a list of one tensor."""
        return Majority(label=int(episode.support_labels.bincount().argmax())).predictions(
            episode, transductive=transductive
        )


@dataclass(frozen=True, kw_only=True)
class OwnMean:
    """The mean of a client's own support targets, whatever is asked."""

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the numbers of the query set, as a list of one tensor."""
        return [torch.full_like(episode.query_labels, float(episode.support_labels.mean()))]

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """Return the same number for all."""
        return self.predictions(episode, transductive=False)[0].unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class OwnRidge:
    """Ridge regression on a client's own support set, and nothing of anybody else.

    Numbers are standardised by the support set, and what is penalised is the distance from its mean target.

    Attributes:
        penalty: Of the mean squared error.
    """

    penalty: float = 1.0

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """Return [n_q, 1]."""
        support, query = episode.support_images.flatten(1).double(), episode.query_images.flatten(1).double()
        centre, deviation = support.mean(0), support.std(0, correction=0)
        deviation = torch.where(deviation > 0, deviation, 1.0)
        support, query = (support - centre) / deviation, (query - centre) / deviation
        mean = episode.support_labels.double().mean()
        # The dual form: fewer records than numbers are usual.
        products = support @ support.T + self.penalty * len(support) * torch.eye(len(support), dtype=torch.float64)
        weights = torch.linalg.solve(products, episode.support_labels.double() - mean)
        predicted: Tensor = mean + query @ (support.T @ weights)
        return predicted.float().unsqueeze(1)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Softmax regression on a client's own support set, and nothing of anybody else.

    Plain numbers are standardised by the support set, and the step size is the inverse of a bound of the curvature, so
    that steps descend.

    Attributes:
        steps: Gradient steps from zero.
        vocabulary: As `PixelPrototype` has it.
    """

    steps: int = 500
    vocabulary: int | None = None

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """Return the labels of the query set, as a list of one tensor."""
        return [self.outputs(episode, int(episode.support_labels.max()) + 1).argmax(1)]

    def outputs(self, episode: Episode, outputs: int) -> Tensor:
        """Return the logits."""
        support, query = (_plain(each, self.vocabulary) for each in (episode.support_images, episode.query_images))
        centre, deviation = support.mean(0), support.std(0, correction=0)
        deviation, ways = torch.where(deviation > 0, deviation, 1.0), outputs
        support, query = ((each - centre) / deviation for each in (support, query))
        # The Hessian of the mean cross-entropy is at most half the mean of x x^T (Boehning 1992).
        rate = 2.0 / (float(support.square().sum(1).mean()) + 1.0)
        zero = {WEIGHT: support.new_zeros(ways, support.shape[1]), BIAS: support.new_zeros(ways)}
        own = LinearSupport(features=support, labels=episode.support_labels)
        head = descended_head(zero, own, self.steps, rate)
        logits: Tensor = query @ head[WEIGHT].mT + head[BIAS]
        return logits


def _plain(records: Tensor, vocabulary: int | None) -> Tensor:
    """[n, d], without any network."""
    shares: Tensor = records.flatten(1) if vocabulary is None else TokenShares(vocabulary)(records)
    return shares


def _nearest_mean(support: Tensor, query: Tensor, labels: Tensor) -> Tensor:
    # Of a public list of labels a client may hold a few.
    held, support = torch.unique(labels), support.double()
    means = torch.stack([support[labels == label].mean(0) for label in held])
    nearest: Tensor = held[_distances(query, means).argmin(1)]
    return nearest


def _distances(query: Tensor, others: Tensor) -> Tensor:
    """[n_q, n] in float64, by differences: PyTorch's products of more than 25 rows lose the digits behind an offset."""
    return torch.cdist(query.double(), others.double(), compute_mode="donot_use_mm_for_euclid_dist")


@lru_cache(maxsize=4)
def _network(spec: NetworkSpec) -> nn.Module:
    return build_network(spec)
