"""Learners of one's own with a mistake each, and words of the line that refuses it before the first round."""

import random
from dataclasses import dataclass

import torch

from dpfedmeta.learning.algorithms.maml import Maml

SEEN = []
WRONG = {}


def wrong(words):
    """A learner whose gradient is this function of (its class, the right gradient, context, episode)."""

    def of(function):
        def gradient(self, context, episode):
            return function(Maml.gradient(self, context, episode), context, episode)

        name = "".join(word.capitalize() for word in function.__name__.split("_"))
        made = type(name, (Maml,), {"gradient": gradient, "__module__": __name__})
        globals()[name], WRONG[name] = dataclass(frozen=True, kw_only=True)(made), words
        return function

    return of


@wrong(r"its gradient returned shape \[\d+\] at body.*, expected \[\d+, 1, \d, \d\]")
def shorter(found, context, episode):
    return {name: value.flatten()[:-1] for name, value in found.items()}


@wrong(r"its gradient returned shape \[\] at body")
def one_number(found, context, episode):
    return {name: value.mean() for name, value in found.items()}


@wrong("its gradient left out body")
def lacking(found, context, episode):
    return dict(list(found.items())[1:])


@wrong("its gradient added mine, which is not learned")
def with_more(found, context, episode):
    return {**found, "mine": torch.ones(3)}


@wrong("gradient returned None, expected a mapping of names to tensors")
def nothing(found, context, episode):
    return None


@wrong("its gradient returned tuple, expected a mapping of names to tensors")
def without_names(found, context, episode):
    return tuple(found.values())


@wrong("its gradient returned ndarray at body.*, expected a tensor of float32 or float64")
def of_numpy(found, context, episode):
    return {name: value.numpy() for name, value in found.items()}


@wrong("its gradient returned torch.int64 at body")
def whole(found, context, episode):
    return {name: value.long() for name, value in found.items()}


@wrong("its gradient drew random numbers")
def noisy(found, context, episode):
    return {name: value + torch.randn_like(value) for name, value in found.items()}


@wrong("its gradient drew random numbers")
def scaled(found, context, episode):
    share = random.random()
    return {name: value * share for name, value in found.items()}


@wrong("its gradient returned another message for the same records the second time")
def remembering(found, context, episode):
    SEEN.append(found)
    return {name: sum(each[name] for each in SEEN if each[name].shape == found[name].shape) for name in found}


@wrong("its gradient wrote into context.learned: body")
def writing(found, context, episode):
    with torch.no_grad():
        for name in found:
            context.learned[name] -= 0.1 * found[name]
    return found


@wrong("its gradient wrote into episode 0: support_images")
def writing_data(found, context, episode):
    episode.support_images.mul_(0.5)
    return found


@wrong("its gradient returned NaN or infinity for every made-up client")
def no_number(found, context, episode):
    return {name: value * float("nan") for name, value in found.items()}


@dataclass(frozen=True, kw_only=True)
class Unlike(Maml):
    """Its two forms differ."""

    def gradient(self, context, episode):
        return super().gradient(context, episode)

    def gradients(self, context, episodes):
        return {name: -value for name, value in super().gradients(context, episodes).items()}


@dataclass(frozen=True, kw_only=True)
class Fewer(Maml):
    def messages(self, context, episodes, bound, noises):
        return list(super().messages(context, episodes, bound, noises))[:-1]


WRONG |= {
    "Unlike": "its gradient or gradients returned another message where several clients are computed at once",
    "Fewer": "its messages sent 1 message for 2 clients",
}
