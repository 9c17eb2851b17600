"""What a test gives an algorithm to compute with, and its answers one at a time."""

import torch

from dpfedmeta.learning.meta.algorithm import ClientContext, ClientNoise
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.record_dp.per_example_gradients import VmapGradients
from dpfedmeta.learning.releases.steps import Steps


def context_of(module, learned, fixed=None, *, network=None, engine=None, side_by_side=False):
    """One machine; `network` where an algorithm asks for another module of it."""
    return ClientContext(
        network=network,
        module=module,
        learned=learned,
        fixed=fixed or {},
        device=torch.device("cpu"),
        engine=engine or VmapGradients(),
        built=build_network,
        pieces=lambda function, items: list(function(items)),
        side_by_side=side_by_side,
    )


def gradient_of(module, learned, fixed, episode, method):
    """The exact message of one client."""
    silent = [noise_of(None)]
    (message,) = method.messages(context_of(module, learned, fixed), [episode], float("inf"), silent)
    return message


def noise_of(support, query=None):
    """The randomness of a client without mini-batches."""
    return ClientNoise(support=support, query=query or support, batches=None)


def steps_of(method, *, noise, records, ratio=1.0, clip=None):
    """The noisy steps, with as many records in either role and the same noise multiplier."""
    return Steps(
        method=method,
        support_noise=noise,
        query_noise=noise,
        support_clip=clip,
        support_clip_ratio=ratio,
        support_records=records,
        query_records=records,
    )
