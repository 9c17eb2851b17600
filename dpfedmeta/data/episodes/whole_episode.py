"""Whole episodes: all records of a client, split within its classes, up to public limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.random.random_sources import IntArray
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Episode, drawn_changes, drawn_records
from dpfedmeta.data.episodes.shape import LEAST_RECORDS, LEAST_WAYS, WholeShape

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeSplit:
    """SECRET where it belongs to a training client: which of its records are support and query, by number.

    Attributes:
        classes: Places in what was given, one for each label.
        support: Records of each class, by their numbers.
        query: Likewise; no record is in both.
    """

    classes: Sequence[int]
    support: Sequence[IntArray]
    query: Sequence[IntArray]


def split_whole(
    generator: np.random.Generator, held: Sequence[IntArray], shape: WholeShape, *, shared: bool = False
) -> WholeSplit | None:
    """Split the records of a client within classes.

    Classes that are too many are left out at random, but never all of those with two records. Of records that are too
    many, the largest classes lose first.

    Args:
        generator: Draws by number alone, whatever the records contain.
        held: The records of each class, by their numbers.
        shape: Public limits.
        shared: Whether labels are of one list for all clients (of numbers to predict: all records are one class). Then
            one class is enough, and the only record of a class is support.

    Returns:
        None where the client has too few records: see `is_enough`.
    """
    if not is_enough([len(own) for own in held], shared=shared):
        return None
    able = [place for place, own in enumerate(held) if len(own) >= (1 if shared else LEAST_RECORDS)]
    order = [able[place] for place in generator.permutation(len(able)).tolist()]
    classes = order[: shape.most_ways]
    if not any(len(held[place]) >= LEAST_RECORDS for place in classes):
        # Single records are all support: without a larger class nothing would be judged, and no message be a number.
        classes[-1] = next(place for place in order if len(held[place]) >= LEAST_RECORDS)
    support, query = list[IntArray](), list[IntArray]()
    for place, count in zip(classes, _limited([len(held[each]) for each in classes], shape.most_records), strict=True):
        chosen = held[place][generator.permutation(len(held[place]))[:count]]
        own = shape.support_of(count) if count > 1 else 1
        support.append(chosen[:own])
        query.append(chosen[own:])
    return WholeSplit(classes=classes, support=support, query=query)


def is_enough(counts: Sequence[int], *, shared: bool) -> bool:
    """Return whether a client with so many records of each class takes part.

    Args:
        counts: Of each class.
        shared: Whether labels are of one list for all clients: one class of two records is enough; else two are.
    """
    return sum(count >= LEAST_RECORDS for count in counts) >= (1 if shared else LEAST_WAYS)


def too_few(*, shared: bool) -> str:
    """Words for what a client with too little does not have."""
    if shared:
        return f"no {LEAST_RECORDS} records (of one class, where there are classes)"
    return f"no {LEAST_WAYS} classes with {LEAST_RECORDS} records each"


def _limited(counts: Sequence[int], most: int) -> list[int]:
    """Counts of classes under one common limit, the largest with which all of them are at most `most`."""
    if sum(counts) <= most:
        return list(counts)
    low, high = LEAST_RECORDS, max(counts)
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(count, middle) for count in counts) <= most:
            low = middle
        else:
            high = middle - 1
    return [min(count, low) for count in counts]


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeChoice:
    """SECRET where it belongs to a training client: which images of a pool are its records, like `episode.Chosen`.

    Attributes:
        pool: Where they come from.
        places: [n, 1], places in the pool's array, the support set first, each set class by class.
        turns: [n], rotations by 90 degrees.
        flips: [n, 1], which images are mirrored; None: none.
        shifts: [n, 1, 2], pixels by which images are then moved; None: none is moved.
        labels: [n], numbers of the client's classes, by its own count.
        support: How many of them are the support set.
    """

    pool: ClassPool
    places: npt.NDArray[np.int64]
    turns: Sequence[int]
    flips: npt.NDArray[np.bool_] | None
    shifts: npt.NDArray[np.int64] | None
    labels: IntArray
    support: int

    def episode(self) -> Episode:
        """The records themselves."""
        return self.of_images(drawn_records(self))

    def of_images(self, images: Tensor) -> Episode:
        """The episode of images that are made already, [n, ...]."""
        import torch

        pool, end = self.pool, self.support
        if pool.targets:
            # Numbers to predict stand behind the numbers of a vector.
            images, labels = images[:, :-1].contiguous(), images[:, -1].contiguous()
        else:
            labels = torch.from_numpy(pool.listed(self.places[:, 0]) if pool.labels else self.labels)
        return Episode(
            support_images=images[:end],
            support_labels=labels[:end],
            query_images=images[end:],
            query_labels=labels[end:],
        )


def choose_whole(
    pool: ClassPool, generator: np.random.Generator, shape: WholeShape, held: Sequence[tuple[int, IntArray]]
) -> WholeChoice | None:
    """Choose the records of a whole episode, in the order of `split_whole`.

    Args:
        pool: Where they come from.
        generator: For the split, then for rotations, reflections and shifts.
        shape: Public limits.
        held: The client's classes by their places in the pool, each with the numbers of the client's images inside it.

    Returns:
        None where the client has too few records: see `is_enough`.
    """
    split = split_whole(generator, [pool.first[index] + slots for index, slots in held], shape, shared=pool.shared)
    if split is None:
        return None
    sets = (split.support, split.query)
    labels = np.concatenate([np.repeat(np.arange(len(part)), [len(own) for own in part]) for part in sets])
    places = np.concatenate([own for part in sets for own in part])[:, None]
    turns = generator.integers(pool.rotations, size=len(split.classes))[labels].tolist()
    flips, shifts = drawn_changes(pool, generator, (len(places), 1))
    return WholeChoice(
        pool=pool,
        places=places,
        turns=turns,
        flips=flips,
        shifts=shifts,
        labels=labels,
        support=sum(len(own) for own in split.support),
    )
