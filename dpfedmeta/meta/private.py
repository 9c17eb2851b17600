"""DP-AGRLR on the client: every touch of a record is a noisy release (Algorithm 3 of the paper, first order)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from dpfedmeta.data.episode import Episode
from dpfedmeta.meta.adapt import Adaptation
from dpfedmeta.models import apply_body, head_of, without_prefix
from dpfedmeta.parameters import Params, difference, scaled
from dpfedmeta.privacy.clipping import clipped_record_sum
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released, post_process
from dpfedmeta.privacy.per_record import PerRecordGradients
from dpfedmeta.privacy.units import Record
from dpfedmeta.randomness import SecretGenerator


@dataclass(frozen=True, kw_only=True)
class RecordSpec:
    """The record-level half of a client's round.

    Attributes:
        message: The noisy query gradient, or the noisy support update (Reptile).
        adaptation: The inner loop.
        support_noise: z_s.
        query_noise: z_q.
        support_clip: C_s, a constant of the plan; None: support_clip_ratio * C_q.
        support_clip_ratio: C_s/C_q, a constant of the plan.
        support_records: n_s, the public denominator of a support step.
        query_records: n_q.
    """

    message: Literal["query", "update"]
    adaptation: Adaptation
    support_noise: float
    query_noise: float
    support_clip: float | None
    support_clip_ratio: float
    support_records: int
    query_records: int


@dataclass(frozen=True, kw_only=True)
class ClientNoise:
    """The client's own secret randomness of one round."""

    support: SecretGenerator
    query: SecretGenerator


def private_contribution(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episode: Episode,
    query_bound: float,
    noise: ClientNoise,
    spec: RecordSpec,
    per_record: PerRecordGradients,
) -> Released[Record, Params]:
    """One client's whole round; what it returns may be seen by the server.

    Args:
        network: A module without coupling between records.
        model: The released initialisation: what is learned.
        fixed: The rest of the weights, which everybody knows and nobody sends.
        episode: The client's data; support and query are disjoint and no record occurs twice.
        query_bound: C_q, from the clip policy.
        noise: The client's own generators.
        spec: The record-level plan.
        per_record: The engine for per-record gradients.

    Guarantee:
        (record, server), zero-out adjacency: sqrt(K)/z_s-GDP for a support record, 1/z_q-GDP for a query
        record (K adaptively composed Gaussian mechanisms; one).
    """
    weights = {**fixed, **model}
    steps = _private_descent(network, weights, episode, query_bound, noise.support, spec, per_record)
    start = head_of(weights) if spec.adaptation.adapt == "head" else weights

    def adapted(*gradients: Params) -> Params:
        return reduce(lambda theta, g: _moved(theta, g, spec.adaptation.lr), gradients, start)

    if spec.message == "update":
        return post_process(
            lambda *gradients: _sent(model, difference(start, adapted(*gradients))),
            steps,
            spec.adaptation.lr * math.sqrt(len(steps)) * steps[0].noise_deviation,
        )
    query = GaussianMechanism(
        total_multiplier=spec.query_noise, charged_multiplier=spec.query_noise, denominator=spec.query_records
    )
    at = {**weights, **adapted(*(step.value for step in steps))}
    learned, rest = ({n: v for n, v in at.items() if (n in model) == wanted} for wanted in (True, False))
    gradients = per_record(network, learned, rest, episode.query_images, episode.query_labels)
    released = query.release(clipped_record_sum(gradients, query_bound), noise.query)
    return post_process(lambda *values: values[-1], [*steps, released], released.noise_deviation)


def _sent(model: Mapping[str, Tensor], update: Params) -> Params:
    """The learned part of an update; 0 for what does not adapt."""
    return {name: update.get(name, torch.zeros_like(value)) for name, value in model.items()}


def _moved(theta: Params, gradient: Params, lr: float) -> Params:
    """One step; the gradient may carry the head's own parameter names, in the same order."""
    return difference(theta, scaled(dict(zip(theta, gradient.values(), strict=True)), lr))


def _private_descent(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    episode: Episode,
    query_bound: float,
    generator: SecretGenerator,
    spec: RecordSpec,
    per_record: PerRecordGradients,
) -> list[Released[Record, Params]]:
    """The K released support gradients; each is post-processed into the parameters of the next."""
    support = GaussianMechanism(
        total_multiplier=spec.support_noise,
        charged_multiplier=spec.support_noise,
        denominator=spec.support_records,
    )
    adaptation = spec.adaptation
    bound = spec.support_clip or spec.support_clip_ratio * query_bound
    inputs, module = episode.support_images, network
    theta: Params = dict(weights)
    if adaptation.adapt == "head":
        # The body is fixed during adaptation, and each record has its own features: no coupling.
        with torch.no_grad():
            inputs = apply_body(network, weights, episode.support_images, None)
        module, theta = network.get_submodule("head"), head_of(weights)
    steps: list[Released[Record, Params]] = []
    for _ in range(adaptation.steps):
        at = without_prefix(theta) if adaptation.adapt == "head" else theta
        gradients = per_record(module, at, {}, inputs, episode.support_labels)
        steps.append(support.release(clipped_record_sum(gradients, bound), generator))
        theta = _moved(theta, steps[-1].value, adaptation.lr)
    return steps
