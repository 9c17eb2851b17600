"""Learners of one's own that all send a squashed meta-gradient, each by overriding something else. One file."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from dpfedmeta.learning.algorithms.fedavg import FedAvg
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.protonet import CosinePrototypes, ProtoNet
from dpfedmeta.learning.algorithms.reptile import Reptile
from dpfedmeta.learning.meta.adaptation import InnerRule, PlainRule
from dpfedmeta.learning.meta.meta_gradients import batched
from dpfedmeta.learning.targets.classification import Classification


def squashed(params):
    return {name: (20.0 * value).tanh() for name, value in params.items()}


@dataclass(frozen=True, kw_only=True)
class One(Maml):
    def gradient(self, context, episode):
        return squashed(super().gradient(context, episode))


@dataclass(frozen=True, kw_only=True)
class Several(Maml):
    def gradients(self, context, episodes):
        return squashed(super().gradients(context, episodes))


@dataclass(frozen=True, kw_only=True)
class Both(Maml):
    def gradient(self, context, episode):
        return squashed(super().gradient(context, episode))

    def gradients(self, context, episodes):
        return squashed(super().gradients(context, episodes))


@dataclass(frozen=True, kw_only=True)
class Reordered(Maml):
    """The names of its messages come in another order."""

    def gradient(self, context, episode):
        return dict(reversed(super().gradient(context, episode).items()))

    def gradients(self, context, episodes):
        return dict(reversed(super().gradients(context, episodes).items()))


class Signed:
    """Goes before a method, and is none itself."""

    def gradient(self, context, episode):
        return squashed(super().gradient(context, episode))


@dataclass(frozen=True, kw_only=True)
class Mixed(Signed, Maml):
    pass


@dataclass(frozen=True, kw_only=True)
class Sent(Maml):
    def messages(self, context, episodes, bound, noises):
        yield from map(squashed, super().messages(context, episodes, bound, noises))


@dataclass(frozen=True, kw_only=True)
class OneOfReptile(Reptile):
    def gradient(self, context, episode):
        return squashed(super().gradient(context, episode))


@dataclass(frozen=True, kw_only=True)
class SeveralOfReptile(Reptile):
    def gradients(self, context, episodes):
        return squashed(super().gradients(context, episodes))


@dataclass(frozen=True, kw_only=True)
class OneOfFedAvg(FedAvg):
    """Federated averaging calls no such function."""

    def gradient(self, context, episode):
        raise AssertionError


class Wrapper:
    """Everything is the inner method's, whose messages know nothing of this gradient."""

    plain_steps, sends, few_shot = True, "query", True

    def __init__(self, method):
        self._method = method

    @classmethod
    def planned(cls, settings, task):
        return cls(Maml.planned(settings, task))

    def gradient(self, context, episode):
        raise AssertionError

    def __getattr__(self, name):
        return getattr(self._method, name)


@dataclass(frozen=True)
class Further(PlainRule):
    """Twice the step."""

    def rates(self, weights, lr):
        return 2.0 * lr


@dataclass(frozen=True, kw_only=True)
class Faster(Maml):
    rule: ClassVar[InnerRule] = Further()


@dataclass(frozen=True)
class Signs(PlainRule):
    """The sign of each number of a gradient."""

    def direction(self, gradient):
        return {name: value.sign() for name, value in gradient.items()}


@dataclass(frozen=True, kw_only=True)
class Directed(Maml):
    rule: ClassVar[InnerRule] = Signs()


@dataclass(frozen=True)
class LearnedFactor(PlainRule):
    """The rate times a number that is learned."""

    def network(self, weights):
        return {name: value for name, value in weights.items() if name != "factor"}

    def rates(self, weights, lr):
        return lr * weights["factor"]


@dataclass(frozen=True, kw_only=True)
class Wider(Maml):
    """Learns one number more than the network has; its shapes are Maml's."""

    plain_steps: ClassVar[bool] = False
    rule: ClassVar[InnerRule] = LearnedFactor()

    def initial(self, network, seed):
        return {**super().initial(network, seed), "factor": torch.ones(())}

    def learned(self, network, weights):
        own = {"factor": weights["factor"]}
        return {**super().learned(network, self.rule.network(weights)), **own}


@dataclass(frozen=True)
class Halved(CosinePrototypes):
    def start(self, head, features, labels, ways):
        return {name: 0.5 * value for name, value in super().start(head, features, labels, ways).items()}


@dataclass(frozen=True, kw_only=True)
class Flat(ProtoNet):
    """Prototypes of half the length."""

    rule: ClassVar[InnerRule] = Halved()


@dataclass(frozen=True, kw_only=True)
class Learning(Maml):
    """Learns all but the first weight."""

    def learned(self, network, weights):
        found = super().learned(network, weights)
        return {name: found[name] for name in list(found)[1:]}


@dataclass(frozen=True, kw_only=True)
class Beginning(Maml):
    """Begins at half the weights."""

    def initial(self, network, seed):
        return {name: 0.5 * value for name, value in super().initial(network, seed).items()}


def half_steps(moments):
    """A step of the server."""
    return {name: 0.5 * value for name, value in moments.first.items()}


def late_steps(moments):
    if not all(bool((value == 1.0).all()) for value in moments.first.values()):
        raise ValueError("late")
    return moments.first


class Net(torch.nn.Module):
    """A network of one's own."""

    def __init__(self, inputs, ways, width):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(inputs, 4 * width), torch.nn.Tanh())
        self.head = torch.nn.Linear(4 * width, ways)

    def forward(self, images):
        return self.head(self.body(images))


def net(channels, image_size, ways, width, norm):
    return Net(channels * image_size**2, ways, width)


@dataclass(frozen=True, kw_only=True)
class Failing(Maml):
    def gradient(self, context, episode):
        return {"no such weight": super().gradient(context, episode)["no such weight"]}


@dataclass(frozen=True, kw_only=True)
class Late(Maml):
    """Fails at clients, whose ink is of one colour, and not in a trial."""

    def gradient(self, context, episode):
        images = episode.support_images
        if float(images.max()) > 0.0 and int((images == images.max()).sum()) > 1:
            raise ValueError(f"secret {float(images.sum())}")
        return super().gradient(context, episode)


def is_odd(episode):
    """Whether this is one of the clients, about a third of them, whose data a learner below does not like."""
    images = episode.support_images
    return float(images.max()) > 0.9 and int((images == images.max()).sum()) % 3 == 0


@dataclass(frozen=True, kw_only=True)
class Sometimes(Maml):
    """Fails at some clients alone."""

    def gradient(self, context, episode):
        if is_odd(episode):
            raise ValueError(f"secret {float(episode.support_images.sum())}")
        return super().gradient(context, episode)


@dataclass(frozen=True, kw_only=True)
class FailsAtLarge(Maml):
    """Fails at clients with many records."""

    def gradient(self, context, episode):
        if len(episode.support_labels) + len(episode.query_labels) > 50:
            raise ValueError("too large")
        return super().gradient(context, episode)


@dataclass(frozen=True, kw_only=True)
class NotFinite(Maml):
    """Sends what is not finite for the same clients."""

    def gradient(self, context, episode):
        found = super().gradient(context, episode)
        return {name: value * math.nan for name, value in found.items()} if is_odd(episode) else found


@dataclass(frozen=True, kw_only=True)
class Circular(Maml):
    """Each form by the other one."""

    def gradient(self, context, episode):
        return self.gradients(context, batched([episode]))


@dataclass(frozen=True, kw_only=True)
class HalfSaid(Classification):
    """Another loss, but the built-in one's derivative."""

    def loss(self, outputs, targets, reduction="mean"):
        each = super().loss(outputs, targets, "none") + 0.5 * outputs.square().sum(-1)
        return each if reduction == "none" else each.mean() if reduction == "mean" else each.sum()


@dataclass(frozen=True, kw_only=True)
class Said(HalfSaid):
    def residuals(self, outputs, targets):
        return super().residuals(outputs, targets) + outputs
