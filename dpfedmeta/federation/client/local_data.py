"""A client's own folder of images, as the data of one numbered client of a plan; or nothing, where it does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.episodes.episode import Episode, choose_from
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.capacity_checks import able_clients
from dpfedmeta.data.storage.decoded_cache import ClassEntry, Contents, cached
from dpfedmeta.data.task import Task
from dpfedmeta.data.user_sources.image_folder import decoded_all, listed_key
from dpfedmeta.federation.local_files import chosen_files

_OWN = "own"
# As in data.dataset: how pixels are read.
_PIXELS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnImages:
    """A population of which this machine holds one client (population.Population).

    That client holds one episode, drawn as data.populations.natural.RealPopulation draws it: `ways` of its classes
    that have enough images, and of each of them as many as the shape says, chosen once, by the plan's public seed.

    Attributes:
        pool: The client's own classes.
        shape: A client's episode.
        clients: N.
        number: Its own.
        seed: run.seed.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    number: int
    seed: int

    def episode(self, client: int) -> Episode:
        """SECRET: the client's data.

        Raises:
            IndexError: It is another client.
            InputError: It holds too little.
        """
        if client != self.number:
            raise IndexError(f"client {client}: this machine holds client {self.number} of {self.clients}")
        held = able_clients(self.pool, self.shape).get(_OWN)
        if held is None:
            wanted = self.shape.shots + self.shape.queries
            raise InputError(f"the folder has fewer than {self.shape.ways} classes with {wanted} images each")
        generator = public_generator(self.seed, Purpose.CLIENT_DATA, client)
        return choose_from(self.pool, generator, self.shape, held).episode()

    def holdings(self, client: int) -> Mapping[str, int]:
        """SECRET: how many images it holds of each of its classes, whether an episode uses them or not.

        Raises:
            IndexError: It is another client.
        """
        if client != self.number:
            raise IndexError(f"client {client}: this machine holds client {self.number} of {self.clients}")
        return dict(zip(self.pool.names, self.pool.counts, strict=True))

    def labelled(self) -> tuple[ImageArray, IntArray, tuple[str, ...]]:
        """SECRET: all images, uint8 [n, channels, height, width], the places of their classes, and their names."""
        labels = np.repeat(np.arange(self.pool.classes), self.pool.counts)
        return np.array(self.pool.images), labels, self.pool.names


@dataclass(frozen=True, kw_only=True)
class NoImages:
    """A population of which this machine holds one client that has nothing to answer with (population.Population).

    Attributes:
        clients: N.
        number: Its own.
        why: SECRET: why its folder cannot be read, for its owner; None: it can.
    """

    clients: int
    number: int
    why: str | None

    def episode(self, client: int) -> Episode:
        """None.

        Raises:
            IndexError: It is another client.
            InputError: It is this one.
        """
        self._check(client)
        raise InputError(self.why or "nothing")

    def holdings(self, client: int) -> Mapping[str, int]:
        """No class.

        Raises:
            IndexError: It is another client.
        """
        self._check(client)
        return {}

    def labelled(self) -> tuple[ImageArray, IntArray, tuple[str, ...]]:
        """None.

        Raises:
            InputError: Always.
        """
        raise InputError(self.why or "nothing")

    def _check(self, client: int) -> None:
        if client != self.number:
            raise IndexError(f"client {client}: this machine holds client {self.number} of {self.clients}")


@dataclass(frozen=True, kw_only=True)
class NullImages(NoImages):
    """The same, where a message has to be computed all the same: an episode of null records.

    Attributes:
        form: Of a record.
        shape: Of the episode.

    Guarantee:
        The gradient of a null record counts as 0, as everything that is not finite does (privacy.clipping), and here no
        number of a record is finite. So every clipped sum is 0, and what the client sends is the noise of an honest
        message: by the same code, with the same guarantee.
    """

    form: tuple[int, ...]
    shape: EpisodeShape

    def episode(self, client: int) -> Episode:
        """Return as many records as the plan counts with, all of them NaN.

        Raises:
            IndexError: It is another client.
        """
        self._check(client)
        labels = torch.arange(self.shape.ways)
        return Episode(
            support_images=torch.full((self.shape.support_records, *self.form), math.nan),
            support_labels=labels.repeat_interleave(self.shape.shots),
            query_images=torch.full((self.shape.query_records, *self.form), math.nan),
            query_labels=labels.repeat_interleave(self.shape.queries),
        )


def opened_or_why(opened: Callable[[], ClassPool]) -> ClassPool | str:
    """SECRET: the images of a folder, or what is wrong with them.

    Guarantee:
        Whatever the folder holds, and whatever form a plan asks for, there is no exception: a client that declines
        would tell the server of its images, as often as it is offered a plan of another form.
    """
    try:
        return opened()
    except InputError as error:
        return str(error)
    except Exception as error:
        return f"images that cannot be read ({raised(error)})"


def open_images(folder: Path, task: Task, decoded: Path) -> ClassPool:
    """The images of a folder, brought to the form of the task.

    Args:
        folder: CLASS/IMAGE; or train/CLASS/IMAGE beside val and test, of which train alone is used.
        task: What the plan says of the records.
        decoded: The client's own folder for decoded images.

    Raises:
        InputError: No folder, no classes, or images that do not decode.
    """
    chosen = chosen_files(folder)
    files = [file for _, own in chosen for file in own]
    channels, size, _ = task.form.shape
    classes = tuple(ClassEntry(name=inside.name, split="train", images=len(own)) for inside, own in chosen)

    def decode() -> Iterator[ImageArray]:
        yield from decoded_all(str(folder), files, channels, size, task.pixel_range)

    key = ["client", *listed_key(folder, files), *task.form.shape, _PIXELS, task.pixel_range]
    held = cached(decoded, "images", key, task.form.shape, lambda: Contents(classes=classes, decode=decode))
    counts = tuple(entry.images for entry in held.classes)
    return ClassPool(
        path=held.path,
        names=tuple(entry.name for entry in held.classes),
        first=tuple(np.cumsum([0, *counts])[:-1].tolist()),
        counts=counts,
        rotations=task.train_rotations,
        flip=task.train_flip,
        mean=task.mean,
        deviation=task.deviation,
        clients=(_OWN,) * len(counts),
    )
