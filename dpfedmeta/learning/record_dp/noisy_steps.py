"""DP-AGRLR on the client: every touch of a record is a noisy release (Algorithm 3, ACSAC 2022, first order)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from dpfedmeta.core.params import Params, difference, scaled
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.learning.meta.algorithm import ClientNoise
from dpfedmeta.learning.models.functional import apply_body, head_of, without_prefix
from dpfedmeta.learning.models.trainable import adapting
from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released, post_process
from dpfedmeta.privacy.per_example.clip_rows import clipped_record_sum
from dpfedmeta.privacy.units import RecordUnit

if TYPE_CHECKING:
    from dpfedmeta.learning.releases.steps import Steps


def private_messages(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Sequence[Episode],
    query_bound: float,
    noises: Sequence[ClientNoise],
    spec: Steps,
    per_record: PerRecordGradients,
) -> list[Released[RecordUnit, Params]]:
    """The whole round of several clients; what each returns may be seen by the server.

    Clients share only the arithmetic: every record is clipped on its own and every client draws its own noise.

    Args:
        network: A module without coupling between records.
        model: The released initialisation: what is learned.
        fixed: The rest of the weights, which everybody knows and nobody sends.
        episodes: The clients' data; support and query are disjoint and no record occurs twice.
        query_bound: C_q, from the clip policy.
        noises: The clients' own generators.
        spec: The record-level plan.
        per_record: The engine for per-record gradients; one client at a time unless it batches.

    Returns:
        One message per client.

    Guarantee:
        (record, server), zero-out adjacency: sqrt(K)/z_s-GDP for a support record, 1/z_q-GDP for a query
        record (K adaptively composed Gaussian mechanisms; one).
    """
    weights = {**fixed, **model}
    steps = _private_descents(network, weights, episodes, query_bound, noises, spec, per_record)
    start = adapting(network, weights, spec.adaptation.adapt)

    def adapted(*gradients: Params) -> Params:
        return reduce(lambda theta, g: _moved(theta, g, spec.adaptation.lr), gradients, start)

    if spec.sends_update:
        deviation = spec.adaptation.lr * math.sqrt(spec.adaptation.steps) * steps[0][0].noise_deviation
        return [
            post_process(lambda *gradients: _sent(model, difference(start, adapted(*gradients))), own, deviation)
            for own in steps
        ]
    query = GaussianMechanism(
        total_multiplier=spec.query_noise, charged_multiplier=spec.query_noise, denominator=spec.query_records
    )
    thetas = [adapted(*(step.value for step in own)) for own in steps]
    gradients = query_gradients(network, model, weights, thetas, episodes, per_record)
    messages = []
    for own, gradient, noise in zip(steps, gradients, noises, strict=True):
        released = query.release(clipped_record_sum(gradient, query_bound), noise.query)
        messages.append(post_process(lambda *values: values[-1], [*own, released], released.noise_deviation))
    return messages


def _private_descents(
    network: nn.Module,
    weights: Mapping[str, Tensor],
    episodes: Sequence[Episode],
    query_bound: float,
    noises: Sequence[ClientNoise],
    spec: Steps,
    per_record: PerRecordGradients,
) -> list[list[Released[RecordUnit, Params]]]:
    """The K released support gradients of each client; each is post-processed into the parameters of the next."""
    support = GaussianMechanism(
        total_multiplier=spec.support_noise,
        charged_multiplier=spec.support_noise,
        denominator=spec.support_records,
    )
    adaptation = spec.adaptation
    bound = spec.support_clip or spec.support_clip_ratio * query_bound
    phase = support_phase(network, weights, episodes, adaptation.adapt)
    thetas = [phase.start] * len(episodes)
    steps: list[list[Released[RecordUnit, Params]]] = [[] for _ in episodes]
    for _ in range(adaptation.steps):
        gradients = support_gradients(phase, thetas, per_record)
        for own, gradient, noise in zip(steps, gradients, noises, strict=True):
            own.append(support.release(clipped_record_sum(gradient, bound), noise.support))
        thetas = [_moved(t, own[-1].value, adaptation.lr) for t, own in zip(thetas, steps, strict=True)]
    return steps


@dataclass(frozen=True, kw_only=True, eq=False)
class SupportPhase:
    """SECRET: what the support steps of several clients differentiate.

    Attributes:
        module: The network, or its head.
        start: theta_0 of what adapts, by the module's own names.
        fixed: The module's other weights.
        inputs: Images, or the fixed body's features, client by client.
        labels: Of all clients' support records.
    """

    module: nn.Module
    start: Params
    fixed: Params
    inputs: Tensor
    labels: Tensor


def support_phase(
    network: nn.Module, weights: Mapping[str, Tensor], episodes: Sequence[Episode], adapt: Literal["all", "head"]
) -> SupportPhase:
    """The support records of several clients, side by side."""
    inputs = torch.cat([episode.support_images for episode in episodes])
    labels = torch.cat([episode.support_labels for episode in episodes])
    if adapt == "all":
        start = adapting(network, weights, adapt)
        fixed = {name: value for name, value in weights.items() if name not in start}
        return SupportPhase(module=network, start=start, fixed=fixed, inputs=inputs, labels=labels)
    # The body is fixed during adaptation, and each record has its own features: no coupling (independence_test).
    with torch.no_grad():
        features = apply_body(network, weights, inputs, None)
    start = without_prefix(head_of(weights))
    return SupportPhase(module=network.get_submodule("head"), start=start, fixed={}, inputs=features, labels=labels)


def support_gradients(phase: SupportPhase, thetas: Sequence[Params], per_record: PerRecordGradients) -> list[Params]:
    """SECRET: per-record gradients of each client's support set at its own parameters, each tensor [n_s, *shape]."""
    at, varying = _side_by_side(thetas, len(phase.labels) // len(thetas))
    return _by_client(per_record(phase.module, at, phase.fixed, varying, phase.inputs, phase.labels), len(thetas))


def query_gradients(
    network: nn.Module,
    model: Mapping[str, Tensor],
    weights: Mapping[str, Tensor],
    thetas: Sequence[Params],
    episodes: Sequence[Episode],
    per_record: PerRecordGradients,
) -> list[Params]:
    """SECRET: per-record gradients of each client's query set by what is learned, each tensor [n_q, *shape].

    Args:
        network: The module that the weights belong to.
        model: What is learned.
        weights: All weights before adaptation.
        thetas: What each client adapted, in its place.
        episodes: The clients' data.
        per_record: The engine; one client at a time unless it batches.
    """
    images = torch.cat([episode.query_images for episode in episodes])
    labels = torch.cat([episode.query_labels for episode in episodes])
    theta, varying = _side_by_side(thetas, len(labels) // len(thetas))
    at = {**weights, **theta}
    learned, rest = ({n: v for n, v in at.items() if (n in model) == wanted} for wanted in (True, False))
    return _by_client(per_record(network, learned, rest, varying, images, labels), len(thetas))


def _side_by_side(thetas: Sequence[Params], records: int) -> tuple[Params, frozenset[str]]:
    """Each client's parameters beside each of its records, and the names that vary; one client needs neither."""
    if len(thetas) == 1:
        return thetas[0], frozenset()
    stacked = {name: torch.stack([t[name] for t in thetas]).repeat_interleave(records, 0) for name in thetas[0]}
    return stacked, frozenset(stacked)


def _by_client(gradients: Params, clients: int) -> list[Params]:
    parts = {name: value.chunk(clients) for name, value in gradients.items()}
    return [{name: part[client] for name, part in parts.items()} for client in range(clients)]


def _sent(model: Mapping[str, Tensor], update: Params) -> Params:
    """The learned part of an update; 0 for what does not adapt."""
    return {name: update.get(name, torch.zeros_like(value)) for name, value in model.items()}


def _moved(theta: Params, gradient: Params, lr: float) -> Params:
    """Take one gradient step; the gradient may use the head's own parameter names, in the same order."""
    return difference(theta, scaled(dict(zip(theta, gradient.values(), strict=True)), lr))
