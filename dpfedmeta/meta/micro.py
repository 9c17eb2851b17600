"""Micro-episodes: the meta-gradients of small disjoint parts of a client's records, each clipped as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from dpfedmeta.data.episode import Episode
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.meta.inner_loop import Adaptation
from dpfedmeta.meta.side_by_side import stacked_query_gradients
from dpfedmeta.parameters import Params
from dpfedmeta.privacy.clipping import clipped_record_sum
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released
from dpfedmeta.privacy.units import Record
from dpfedmeta.randomness import SecretGenerator


@dataclass(frozen=True, kw_only=True)
class MicroSpec:
    """The record-level half of a client's round, with one release only.

    Attributes:
        client: What a client holds; public constants.
        shape: A micro-episode.
        order: As in MetaSpec; no step inside a micro-episode is released, so 2 is as private as 1.
        adaptation: The inner loop of a micro-episode.
        noise: z_q.
    """

    client: EpisodeShape
    shape: EpisodeShape
    order: Literal[1, 2]
    adaptation: Adaptation
    noise: float

    @property
    def counts(self) -> tuple[int, int]:
        """(n_s, n_q) of a client."""
        return self.client.support_records, self.client.query_records

    def fits(self, episode: Episode) -> bool:
        """Whether records lie class by class, as many of each as the plan says: micro-episodes are cut by number."""
        ways = torch.arange(self.client.ways, device=episode.support_labels.device)
        return torch.equal(episode.support_labels, ways.repeat_interleave(self.client.shots)) and torch.equal(
            episode.query_labels, ways.repeat_interleave(self.client.queries)
        )

    @property
    def message_deviation(self) -> float:
        """Deviation of a message's own noise over C_q."""
        return self.noise / len(micro_slots(self.client, self.shape))


def micro_slots(client: EpisodeShape, shape: EpisodeShape) -> Tensor:
    """Which records form which micro-episode: a function of sizes alone, so no record decides where another one goes.

    Args:
        client: The episode of a client; its records are numbered support first, each part class by class.
        shape: Of a micro-episode.

    Returns:
        [M, ways, shots + queries] numbers of records, no number twice. A few records may be left over.
    """
    each = shape.shots + shape.queries
    ways, held = torch.arange(client.ways), client.shots + client.queries
    support = ways[:, None] * client.shots + torch.arange(client.shots)
    query = client.support_records + ways[:, None] * client.queries + torch.arange(client.queries)
    records = torch.cat([support, query], dim=1)
    used = [0] * client.ways
    found = []
    while shape.ways <= client.ways:
        # The classes with the most records left; among equals the first.
        chosen = sorted(range(client.ways), key=used.__getitem__)[: shape.ways]
        if used[chosen[-1]] + each > held:
            break
        found.append(torch.stack([records[way, used[way] : used[way] + each] for way in chosen]))
        for way in chosen:
            used[way] += each
    return torch.stack(found) if found else records.new_empty(0, shape.ways, each)


def micro_contributions(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Sequence[Episode],
    query_bound: float,
    generators: Sequence[SecretGenerator],
    spec: MicroSpec,
) -> list[Released[Record, Params]]:
    """The whole round of several clients; what each returns may be seen by the server.

    Args:
        network: A module for the ways of a micro-episode, without state of its own.
        model: The released initialisation: what is learned.
        fixed: The rest of the weights, which everybody knows and nobody sends.
        episodes: The clients' data; no record occurs twice.
        query_bound: C_q, from the clip policy.
        generators: The clients' own, for the noise.
        spec: The record-level plan.

    Returns:
        One message per client: the sum of its clipped meta-gradients with noise, over M.

    Guarantee:
        (record, server), zero-out adjacency: 1/z_q-GDP for every record. A record is in at most one micro-episode, and
        one that misses a record counts as 0, so a record moves the sum by at most C_q, whatever happens inside.
    """
    slots = micro_slots(spec.client, spec.shape)
    gradients = meta_gradients(network, model, fixed, episodes, slots, spec)
    mechanism = GaussianMechanism(total_multiplier=spec.noise, charged_multiplier=spec.noise, denominator=len(slots))
    own = {name: value.chunk(len(episodes)) for name, value in gradients.items()}
    return [
        mechanism.release(clipped_record_sum({n: part[client] for n, part in own.items()}, query_bound), noise)
        for client, noise in enumerate(generators)
    ]


def meta_gradients(
    network: nn.Module,
    model: Mapping[str, Tensor],
    fixed: Mapping[str, Tensor],
    episodes: Sequence[Episode],
    slots: Tensor,
    spec: MicroSpec,
) -> Params:
    """SECRET: each tensor [clients * M, *shape], client by client."""
    shape = spec.shape
    # [clients * M, ways, shots + queries, channels, height, width]
    images = torch.cat([torch.cat([held.support_images, held.query_images])[slots] for held in episodes])
    labels = torch.arange(shape.ways, device=images.device).expand(len(images), shape.ways)
    parts = Episode(
        support_images=images[:, :, : shape.shots].flatten(1, 2),
        support_labels=labels.repeat_interleave(shape.shots, 1),
        query_images=images[:, :, shape.shots :].flatten(1, 2),
        query_labels=labels.repeat_interleave(shape.queries, 1),
    )
    return stacked_query_gradients(network, model, fixed, parts, spec.adaptation, spec.order)
