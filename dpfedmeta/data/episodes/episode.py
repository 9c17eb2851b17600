"""N-way K-shot episodes: the data of one client."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from dpfedmeta.data.episodes import sampling_jit as drawing_kernels
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape, class_labels
from dpfedmeta.data.populations.capacity_checks import able_clients

if TYPE_CHECKING:
    # Populations are planned with, and counted, without PyTorch.
    import torch
    from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """SECRET where it belongs to a training client.

    Attributes:
        support_images: [n_s, channels, height, width], float32, class by class; in [0, 1], or
            standardised by the task's constants. Vectors and sequences of tokens are [n_s, numbers].
        support_labels: [n_s], int64 in range(ways), or places in the task's public list of labels; float32 where
            numbers are predicted, scaled.
        query_images: [n_q, channels, height, width], or [n_q, numbers].
        query_labels: [n_q].
    """

    support_images: Tensor
    support_labels: Tensor
    query_images: Tensor
    query_labels: Tensor

    def to(self, device: torch.device) -> Episode:
        """The same episode on another device."""
        from dpfedmeta.core.params import placed

        return Episode(
            support_images=placed(self.support_images, device),
            support_labels=placed(self.support_labels, device),
            query_images=placed(self.query_images, device),
            query_labels=placed(self.query_labels, device),
        )


def is_sound(
    episode: Episode,
    image: tuple[int, ...],
    ways: int,
    counts: tuple[int, int] | None,
    *,
    queries: bool = True,
    vocabulary: int | None = None,
    sound_labels: Callable[[Tensor, int], bool] | None = None,
) -> bool:
    """Return whether an episode has records and all of them have the form of the task.

    Args:
        episode: Data of a client.
        image: Shape of a record: (channels, height, width), or (numbers,).
        ways: Outputs of the network: labels are in range(ways).
        counts: (n_s, n_q) if they are public constants; None: any numbers above 0.
        queries: Whether a query set is required.
        vocabulary: Tokens are whole numbers below this; None if records are not tokens.
        sound_labels: Test of the labels; None: they are classes.
    """
    import torch

    sound_labels = sound_labels or _are_classes
    parts = [(episode.support_images, episode.support_labels), (episode.query_images, episode.query_labels)]
    if not queries and episode.query_labels.shape == (0,):
        parts = parts[:1]
    sizes = tuple(len(labels) if labels.dim() == 1 else 0 for _, labels in parts)
    if 0 in sizes or (counts is not None and sizes != counts):
        return False
    return all(
        images.shape == (len(labels), *image)
        and images.dtype == torch.float32
        and sound_labels(labels, ways)
        and (vocabulary is None or are_tokens(_without_nulls(images), vocabulary))
        for images, labels in parts
    )


def _are_classes(labels: Tensor, ways: int) -> bool:
    import torch

    return labels.dtype == torch.int64 and 0 <= int(labels.min()) <= int(labels.max()) < ways


def _without_nulls(records: Tensor) -> Tensor:
    return records[~records.isnan().all(1)]


def are_tokens(records: Any, vocabulary: int) -> bool:
    """Return whether all records are sequences of whole numbers in range(vocabulary), none only padding (0)."""
    whole = bool(((records >= 0) & (records < vocabulary) & (records % 1 == 0)).all())
    return whole and bool((records > 0).any(1).all())


def null_episode(image: tuple[int, ...], support: int, query: int, labels: Callable[[int], Tensor]) -> Episode:
    """Null records in the place of data that are not sound.

    Args:
        image: Shape of a record.
        support: n_s.
        query: n_q.
        labels: Makes labels of as many records.

    Guarantee:
        The gradient of a null record counts as 0, as everything that is not finite does (privacy.clipping), and here no
        number of a record is finite. So every clipped sum is 0, and what a client sends under promises for records is
        the noise of an honest message: by the same code, with the same guarantee.
    """
    import torch

    return Episode(
        support_images=torch.full((support, *image), math.nan),
        support_labels=labels(support),
        query_images=torch.full((query, *image), math.nan),
        query_labels=labels(query),
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Chosen:
    """SECRET where it belongs to a training client: which images are its records, before anybody looked at a pixel.

    Attributes:
        pool: Where they come from.
        shape: Support and query images per class.
        places: [ways, shots + queries], places in the pool's array.
        turns: [ways], rotations by 90 degrees.
        flips: [ways, shots + queries], which images are mirrored; None: none.
        shifts: [ways, shots + queries, 2], pixels by which images are then moved up and to the left, less than a side
            each; what comes in at a border is the reflection there. None: none is moved.
    """

    pool: ClassPool
    shape: EpisodeShape
    places: npt.NDArray[np.int64]
    turns: Sequence[int]
    flips: npt.NDArray[np.bool_] | None
    shifts: npt.NDArray[np.int64] | None

    def episode(self) -> Episode:
        """The records themselves."""
        shots = self.shape.shots
        return self.of_records(*(drawn_records(self._part(part)) for part in (slice(0, shots), slice(shots, None))))

    def of_images(self, images: Tensor) -> Episode:
        """The episode of images that are made already, [ways * images, ...] class by class."""
        by_class, shots = images.view(*self.places.shape, *images.shape[1:]), self.shape.shots
        return self.of_records(by_class[:, :shots].flatten(0, 1), by_class[:, shots:].flatten(0, 1))

    def _part(self, part: slice) -> Chosen:
        """The same of some images of each class."""
        return replace(
            self,
            places=self.places[:, part],
            flips=None if self.flips is None else self.flips[:, part],
            shifts=None if self.shifts is None else self.shifts[:, part],
        )

    def of_records(self, support: Tensor, query: Tensor) -> Episode:
        """The episode of records that are made already, each [ways * images, ...] class by class."""
        import torch

        pool = self.pool
        if pool.targets:
            # Numbers to predict stand behind the numbers of a vector.
            return Episode(
                support_images=support[:, :-1].contiguous(),
                support_labels=support[:, -1].contiguous(),
                query_images=query[:, :-1].contiguous(),
                query_labels=query[:, -1].contiguous(),
            )
        sizes = self.shape.shots, self.shape.queries
        if pool.labels:
            own = torch.from_numpy(pool.listed(self.places[:, 0]))
            labels = [own.repeat_interleave(each) for each in sizes]
        else:
            labels = [class_labels(self.shape.ways, each).clone() for each in sizes]
        return Episode(support_images=support, support_labels=labels[0], query_images=query, query_labels=labels[1])


def draw_episode(pool: ClassPool, generator: np.random.Generator, shape: EpisodeShape) -> Episode:
    """The records of `choose_episode`."""
    return choose_episode(pool, generator, shape).episode()


def choose_episode(pool: ClassPool, generator: np.random.Generator, shape: EpisodeShape) -> Chosen:
    """Draw classes without replacement, then disjoint support and query images of each.

    Rotations of one character are never two classes of one episode, so no record occurs twice. Everything
    is drawn by index, independently of content. Where the data name clients, all is of one of them.
    """
    if pool.clients:
        able = list(able_clients(pool, shape).values())
        return choose_from(pool, generator, shape, able[int(generator.integers(len(able)))])
    return choose_from(pool, generator, shape, range(pool.classes))


def choose_from(pool: ClassPool, generator: np.random.Generator, shape: EpisodeShape, held: Sequence[int]) -> Chosen:
    """Choose an episode like `choose_episode`, from the given classes of the pool only."""
    classes = drawn_classes(generator, shape, held)
    turns = generator.integers(pool.rotations, size=shape.ways).tolist()
    wanted = shape.shots + shape.queries
    slots = [generator.choice(pool.counts[index], size=wanted, replace=False) for index in classes]
    return chosen_of(pool, shape, classes, slots, turns, *drawn_changes(pool, generator, (shape.ways, wanted)))


def drawn_changes(
    pool: ClassPool, generator: np.random.Generator, images: tuple[int, int]
) -> tuple[npt.NDArray[np.bool_] | None, npt.NDArray[np.int64] | None]:
    """Which of [ways, images of each] are mirrored, and by how much they are moved, where a pool has that done."""
    flips = generator.random(images) < 0.5 if pool.flip else None
    shifts = generator.integers(-pool.shift, pool.shift, (*images, 2), endpoint=True) if pool.shift else None
    return flips, shifts


def drawn_classes(generator: np.random.Generator, shape: EpisodeShape, held: Sequence[int]) -> list[int]:
    """The classes of an episode, by its labels: what is drawn first."""
    chosen = generator.choice(len(held), size=shape.ways, replace=False).tolist()
    return [held[place] for place in chosen]


def chosen_of(
    pool: ClassPool,
    shape: EpisodeShape,
    classes: Sequence[int],
    slots: Sequence[npt.NDArray[np.int64]],
    turns: Sequence[int],
    flips: npt.NDArray[np.bool_] | None = None,
    shifts: npt.NDArray[np.int64] | None = None,
) -> Chosen:
    """The choice of images inside classes.

    Args:
        pool: Where they come from.
        shape: Support and query images per class.
        classes: [ways], one class for each label.
        slots: [ways][shots + queries], numbers of images inside their class.
        turns: [ways], rotations by 90 degrees.
        flips: [ways, shots + queries], which images are mirrored; None: none.
        shifts: [ways, shots + queries, 2], how far images are moved; None: none is.
    """
    places = np.stack([pool.first[index] + chosen for index, chosen in zip(classes, slots, strict=True)])
    if places.shape != (shape.ways, shape.shots + shape.queries):
        raise ValueError(f"{places.shape} images for {shape}")
    return Chosen(pool=pool, shape=shape, places=places, turns=turns, flips=flips, shifts=shifts)


class Choice(Protocol):
    """Images of a pool, and how they are turned, mirrored and moved: `Chosen`, or `whole_episode.WholeChoice`."""

    @property
    def pool(self) -> ClassPool:
        """Pool that the images come from."""
        ...

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """[rows, columns], places in the pool's array."""
        ...

    @property
    def turns(self) -> Sequence[int]:
        """[rows], rotations by 90 degrees."""
        ...

    @property
    def flips(self) -> npt.NDArray[np.bool_] | None:
        """[rows, columns], which images are mirrored; None: none."""
        ...

    @property
    def shifts(self) -> npt.NDArray[np.int64] | None:
        """[rows, columns, 2], pixels by which images are moved; None: none is."""
        ...

    def episode(self) -> Episode:
        """The records themselves."""
        ...

    def of_images(self, images: Tensor) -> Episode:
        """The episode of images that are made already, [rows * columns, ...]."""
        ...


def drawn_records(chosen: Choice) -> Tensor:
    """[rows * columns, channels, height, width]."""
    import torch

    pool, flips, shifts = chosen.pool, chosen.flips, chosen.shifts
    images, numbers = np.asarray(pool.images), np.ascontiguousarray(chosen.places).reshape(-1)
    if images.dtype == np.float32 and images.ndim == 2:
        further = pool.turned * np.repeat(np.asarray(chosen.turns, dtype=np.int64), chosen.places.shape[1])
        return torch.from_numpy(pool.numbers(numbers + further))
    mirrored = np.zeros(len(numbers), np.bool_) if flips is None else np.ascontiguousarray(flips).reshape(-1)
    each = np.repeat(np.asarray(chosen.turns) % 4, chosen.places.shape[1])
    moved = np.zeros((len(numbers), 2), np.int64) if shifts is None else np.ascontiguousarray(shifts).reshape(-1, 2)
    # Compiled loops look at no bounds.
    if images.dtype != np.uint8 or images.ndim != 4:
        raise ValueError(f"a pool holds uint8 images [n, channels, height, width], not {images.dtype} {images.shape}")
    if not len(each) == len(mirrored) == len(moved) == len(numbers):
        raise ValueError(f"{len(each)} turns, {len(mirrored)} flips and {len(moved)} shifts for {len(numbers)} images")
    if not (0 <= numbers.min(initial=0) <= numbers.max(initial=0) < len(images)):
        raise IndexError(f"images {numbers.min()} to {numbers.max()} of a pool of {len(images)}")
    if images.shape[2] != images.shape[3] and each.any():
        raise ValueError(f"images of {images.shape[2]} x {images.shape[3]} pixels cannot be turned")
    if (np.abs(moved) >= images.shape[2:]).any():
        raise ValueError(
            f"images of {images.shape[2]} x {images.shape[3]} pixels cannot be moved by {np.abs(moved).max()}"
        )
    records = np.empty((len(numbers), *images.shape[1:]), dtype=np.float32)
    drawing_kernels.draw_records(images, numbers, each, mirrored, moved, pool.byte_values(), records)
    return torch.from_numpy(records)
