"""N-way K-shot episodes: the data of one client."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.data.pool import ClassPool
from dpfedmeta.errors import InputError


@dataclass(frozen=True, kw_only=True)
class EpisodeShape:
    """Size of an episode; n_s = ways * shots and n_q = ways * queries are public constants."""

    ways: int
    shots: int
    queries: int

    @property
    def support_records(self) -> int:
        """n_s."""
        return self.ways * self.shots

    @property
    def query_records(self) -> int:
        """n_q."""
        return self.ways * self.queries


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """SECRET where it belongs to a training client.

    Attributes:
        support_images: [n_s, channels, height, width], float32 in [0, 1], class by class.
        support_labels: [n_s], int64 in range(ways).
        query_images: [n_q, channels, height, width].
        query_labels: [n_q].
    """

    support_images: Tensor
    support_labels: Tensor
    query_images: Tensor
    query_labels: Tensor

    def to(self, device: torch.device) -> Episode:
        """The same episode on another device."""
        return Episode(
            support_images=self.support_images.to(device),
            support_labels=self.support_labels.to(device),
            query_images=self.query_images.to(device),
            query_labels=self.query_labels.to(device),
        )


def is_sound(episode: Episode, image: tuple[int, ...], ways: int, counts: tuple[int, int] | None) -> bool:
    """Whether an episode has records, and all have the form of the task.

    Args:
        episode: What a client holds.
        image: Channels, height and width.
        ways: Labels are in range(ways).
        counts: (n_s, n_q) where they are public constants; None: any number above 0.
    """
    parts = ((episode.support_images, episode.support_labels), (episode.query_images, episode.query_labels))
    sizes = tuple(len(labels) if labels.dim() == 1 else 0 for _, labels in parts)
    if 0 in sizes or (counts is not None and sizes != counts):
        return False
    return all(
        images.shape == (len(labels), *image)
        and images.dtype == torch.float32
        and labels.dtype == torch.int64
        and 0 <= int(labels.min()) <= int(labels.max()) < ways
        for images, labels in parts
    )


def blank_episode(image: tuple[int, ...], support: int, query: int) -> Episode:
    """Zeros in the place of an episode that is not sound."""
    return Episode(
        support_images=torch.zeros(support, *image),
        support_labels=torch.zeros(support, dtype=torch.int64),
        query_images=torch.zeros(query, *image),
        query_labels=torch.zeros(query, dtype=torch.int64),
    )


def check_shape(pool: ClassPool, shape: EpisodeShape, split: str) -> None:
    """Refuse an episode that the pool cannot fill without using a record twice."""
    if shape.ways > pool.classes:
        raise InputError(
            f"task.ways = {shape.ways}, but the {split} split holds {pool.classes} classes; lower task.ways"
        )
    wanted = shape.shots + shape.queries
    if wanted > pool.images_per_class:
        raise InputError(
            f"{shape.shots} shots + {shape.queries} queries = {wanted} images per class, but the {split} split "
            f"holds {pool.images_per_class}; lower task.shots, task.queries or evaluation.queries"
        )


def draw_episode(pool: ClassPool, generator: np.random.Generator, shape: EpisodeShape) -> Episode:
    """Draw classes without replacement, then disjoint support and query images of each.

    Rotations of one character are never two classes of one episode, so no record occurs twice. Everything
    is drawn by index, independently of content.
    """
    images = pool.images
    classes = generator.choice(pool.classes, size=shape.ways, replace=False)
    turns = generator.integers(pool.rotations, size=shape.ways)
    wanted = shape.shots + shape.queries
    drawn = np.empty((shape.ways, wanted, *images.shape[1:]), dtype=np.float32)
    for way, (index, turn) in enumerate(zip(classes.tolist(), turns.tolist(), strict=True)):
        slots = generator.choice(pool.images_per_class, size=wanted, replace=False)
        drawn[way] = np.rot90(images[pool.first[index] + slots], k=turn, axes=(2, 3))
    drawn /= 255.0
    support, query = drawn[:, : shape.shots], drawn[:, shape.shots :]
    labels = torch.arange(shape.ways)
    return Episode(
        support_images=torch.from_numpy(support.reshape(-1, *images.shape[1:])),
        support_labels=labels.repeat_interleave(shape.shots),
        query_images=torch.from_numpy(query.reshape(-1, *images.shape[1:])),
        query_labels=labels.repeat_interleave(shape.queries),
    )
