"""A client's own images or table, as the data of one numbered client of a plan; or nothing, where they do not fit."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins.user_code import raised
from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.encoders.features import encoded_pools
from dpfedmeta.data.episodes.class_pool import ClassPool, ImageArray
from dpfedmeta.data.episodes.episode import Episode, choose_from, null_episode
from dpfedmeta.data.episodes.row_layout import Layout, chosen_rows
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.capacity_checks import able_clients
from dpfedmeta.data.storage.decoded_cache import cached
from dpfedmeta.data.task import Task
from dpfedmeta.data.user_sources.readers import columns_in, reader_of
from dpfedmeta.data.user_sources.sound_rows import sound_rows, unsound_words

_OWN = "own"
# As in data.dataset: how pixels are read.
_PIXELS = 2


@dataclass(frozen=True, kw_only=True, eq=False)
class OwnRecords:
    """A population of which this machine holds one client (population.Population).

    That client holds one episode, chosen as data.populations.natural.RealPopulation chooses it: where records are
    promised something, each row in the place that its hash says; else `ways` of its classes that have enough records,
    and of each of them as many as the shape says, chosen once, by the plan's public seed.

    Attributes:
        pool: The client's own classes.
        shape: A client's episode.
        clients: N.
        number: Its own.
        seed: run.seed.
        layout: Of the plan, where relations of rows are promised.
        key: The client's, of its rows' hashes.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    number: int
    seed: int
    layout: Layout | None = None
    key: bytes = b""

    def episode(self, client: int) -> Episode:
        """SECRET: the client's data.

        Raises:
            IndexError: It is another client.
            InputError: It holds too little.
        """
        if client != self.number:
            raise IndexError(f"client {client}: this machine holds client {self.number} of {self.clients}")
        if self.layout is not None:
            return chosen_rows(self.pool, tuple(range(self.pool.classes)), self.layout, self.key).episode()
        held = able_clients(self.pool, self.shape).get(_OWN)
        if held is None:
            wanted = self.shape.shots + self.shape.queries
            raise InputError(f"fewer than {self.shape.ways} classes with {wanted} records each")
        generator = public_generator(self.seed, Purpose.CLIENT_DATA, client)
        return choose_from(self.pool, generator, self.shape, held).episode()

    def holdings(self, client: int) -> Mapping[str, int]:
        """SECRET: how many records it holds of each of its classes, whether an episode uses them or not.

        Raises:
            IndexError: It is another client.
        """
        if client != self.number:
            raise IndexError(f"client {client}: this machine holds client {self.number} of {self.clients}")
        return dict(zip(self.pool.names, self.pool.counts, strict=True))

    def labelled(self) -> tuple[ImageArray, IntArray, tuple[str, ...]]:
        """SECRET: all records (images: uint8 [n, channels, height, width]; or features), places of labels, names."""
        pool = self.pool
        # Of features, those of the images as they are come first, and then each rotation's.
        images = np.array(pool.images[: sum(pool.counts)])
        if pool.labels:
            return images, pool.listed(np.arange(len(images))), pool.labels
        return images, np.repeat(np.arange(pool.classes), pool.counts), pool.names


@dataclass(frozen=True, kw_only=True)
class NoRecords:
    """A population of which this machine holds one client that has nothing to answer with (population.Population).

    Attributes:
        clients: N.
        number: Its own.
        why: SECRET: why its data cannot be read, for their owner; None: they can.
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
class NullRecords(NoRecords):
    """The same, where a message has to be computed all the same: an episode of null records.

    Attributes:
        form: Of a record.
        shape: Of the episode.
        blank_labels: Makes labels of as many records, where they are no classes of its own.

    Guarantee:
        As of `null_episode`.
    """

    form: tuple[int, ...]
    shape: EpisodeShape
    blank_labels: Callable[[int], torch.Tensor] | None = None

    def episode(self, client: int) -> Episode:
        """Return as many records as the plan counts with, all of them NaN.

        Raises:
            IndexError: It is another client.
        """
        self._check(client)
        ways = self.shape.ways
        labels = self.blank_labels or (lambda count: torch.arange(ways).repeat_interleave(count // ways))
        return null_episode(self.form, self.shape.support_records, self.shape.query_records, labels)


def opened_or_why(opened: Callable[[], ClassPool], claimed: Callable[[], object]) -> ClassPool | str:
    """SECRET: a client's own records, or what is wrong with them.

    Args:
        opened: Reads them.
        claimed: Refuses them where they belong to another home (client_home.claim).

    Guarantee:
        Whatever they are, and whatever form a plan asks for, there is no exception: a client that declines
        would tell the server of its records, as often as it is offered a plan of another form.
    """
    try:
        found = opened()
        claimed()
        return found
    except InputError as error:
        return str(error)
    except Exception as error:
        return f"records that cannot be read ({raised(error)})"


def open_records(
    path: Path, task: Task, columns: Sequence[str], decoded: Path, told: Callable[[str], object] = lambda words: None
) -> ClassPool:
    """The client's own records, brought to the form of the task; its images are encoded once, if there is an encoder.

    Those that are wrong are left out, one by one (user_sources.sound_rows).

    Args:
        path: A folder CLASS/IMAGE, or train/CLASS/IMAGE beside val and test, of which train alone is used; a list of
            images; or a table.
        task: Form of the records, from the plan.
        columns: Names of a vector's numbers in their order, from the plan; empty: their order is trusted.
        decoded: The client's own folder for decoded records.
        told: Called with what is wrong with them, in words for their owner alone.

    Raises:
        InputError: No sound records, other columns, or a file that cannot be read.
    """
    if task.encoding is not None:
        plain = open_records(path, replace(task, encoding=None), columns, decoded, told)
        # In this process: whatever runs a client need not let it start others.
        return encoded_pools({"train": plain}, task.encoding, decoded, workers=1)["train"]
    found = sound_rows(path, reader_of(path, task.form), task, columns)
    key: list[object] = ["client", str(path.resolve()), *found.digests()]
    key += [*task.form.shape, *columns, _PIXELS, task.pixel_range]
    if task.targets is not None:
        key.append(repr(task.targets))
    if task.missing is not None:
        key.append(repr(task.missing))
    if task.form.kind == "vectors":
        # The digests above follow the order of the file; this says which number is which column.
        key.append(columns_in("vectors", path))
    held = cached(decoded, task.form.kind, key, task.form.stored, lambda: found.contents(task))
    counts = tuple(entry.images for entry in held.classes)
    if (words := unsound_words(found, len(found.rows) - sum(counts))) is not None:
        told(words)
    return ClassPool(
        path=held.path,
        names=tuple(entry.name for entry in held.classes),
        first=tuple(np.cumsum([0, *counts])[:-1].tolist()),
        counts=counts,
        rotations=task.train_rotations,
        flip=task.train_flip,
        mean=task.constants[0],
        deviation=task.constants[1],
        clients=(_OWN,) * len(counts),
        labels=task.labels,
        targets=task.form.targets,
    )
