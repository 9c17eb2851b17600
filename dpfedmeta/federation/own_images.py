"""A client's own folder of images, as the data of one numbered client of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dpfedmeta.data.cache import cached
from dpfedmeta.data.contents import ClassEntry, Contents
from dpfedmeta.data.enough import able_clients
from dpfedmeta.data.episode import Episode, choose_from
from dpfedmeta.data.pool import ClassPool, ImageArray
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.data.sources.image_folder import decoded_all, listed_key
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError
from dpfedmeta.federation.own_files import chosen_files
from dpfedmeta.randomness import IntArray, Purpose, public_generator

_OWN = "own"
# As in data.dataset: how pixels are read.
_PIXELS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnImages:
    """A population of which this machine holds one client (data.population.Population).

    That client holds one episode, drawn as data.real_clients.RealPopulation draws it: `ways` of its classes that have
    enough images, and of each of them as many as the shape says, chosen once, by the plan's public seed.

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
            raise InputError(f"fewer than {self.shape.ways} classes with {wanted} images each")
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

    def labelled(self) -> tuple[ImageArray, IntArray]:
        """SECRET: all images of all classes, uint8 [n, channels, height, width], and the places of their classes."""
        labels = np.repeat(np.arange(self.pool.classes), self.pool.counts)
        return np.array(self.pool.images), labels


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
