"""Micro-episodes: the meta-gradients of small disjoint parts of a client's records, each clipped as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from dpfedmeta.core.params import Params, placed
from dpfedmeta.core.random.random_sources import SecretGenerator
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Released
from dpfedmeta.privacy.per_example.clip_rows import clipped_record_sum
from dpfedmeta.privacy.units import RecordUnit

if TYPE_CHECKING:
    from dpfedmeta.learning.releases.micro_episodes import MicroEpisodes


def micro_messages(
    gradients_of: Callable[[Episode], Params],
    episodes: Sequence[Episode],
    query_bound: float,
    generators: Sequence[SecretGenerator],
    spec: MicroEpisodes,
) -> list[Released[RecordUnit, Params]]:
    """The whole round of several clients; what each returns may be seen by the server.

    Args:
        gradients_of: Meta-gradients of episodes of one form, each on its own.
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
    gradients = gradients_of(micro_episodes(episodes, spec))
    assert spec.noise is not None
    mechanism = GaussianMechanism(
        total_multiplier=spec.noise, charged_multiplier=spec.noise, denominator=len(spec.slots())
    )
    own = {name: value.chunk(len(episodes)) for name, value in gradients.items()}
    return [
        mechanism.release(clipped_record_sum({n: part[client] for n, part in own.items()}, query_bound), noise)
        for client, noise in enumerate(generators)
    ]


def micro_episodes(episodes: Sequence[Episode], spec: MicroEpisodes) -> Episode:
    """SECRET: [clients * M, ...], client by client."""
    shape, records = spec.shape, torch.stack([torch.cat([e.support_images, e.query_images]) for e in episodes])
    # [clients * M, ways, shots + queries, channels, height, width]
    images = records[:, placed(torch.tensor(spec.slots()), records.device)].flatten(0, 1)
    if spec.labelled:
        held = torch.stack([torch.cat([e.support_labels, e.query_labels]) for e in episodes])
        own = held[:, placed(torch.tensor(spec.slots()), held.device)].flatten(0, 1)
        if spec.adaptation.targets.masked:
            own = _numbered(own)
        return Episode(
            support_images=images[:, :, : shape.shots].flatten(1, 2),
            support_labels=own[:, :, : shape.shots].flatten(1, 2),
            query_images=images[:, :, shape.shots :].flatten(1, 2),
            query_labels=own[:, :, shape.shots :].flatten(1, 2),
        )
    labels = torch.arange(shape.ways, device=images.device).expand(len(images), shape.ways)
    return Episode(
        support_images=images[:, :, : shape.shots].flatten(1, 2),
        support_labels=labels.repeat_interleave(shape.shots, 1),
        query_images=images[:, :, shape.shots :].flatten(1, 2),
        query_labels=labels.repeat_interleave(shape.queries, 1),
    )


def _numbered(labels: torch.Tensor) -> torch.Tensor:
    """Classes numbered inside their micro-episode: [E, ways, records], where each way holds records of one class."""
    ordered, places = labels[:, :, 0].sort(dim=1)
    further = torch.zeros_like(ordered)
    further[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).cumsum(dim=1)
    numbers = torch.empty_like(ordered).scatter(1, places, further)
    return numbers[:, :, None].expand_as(labels)
