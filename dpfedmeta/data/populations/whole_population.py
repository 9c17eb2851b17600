"""Whole clients: each uses all its records, so clients differ in classes and records."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.episodes.shape import WholeShape
from dpfedmeta.data.episodes.whole_episode import WholeChoice, choose_whole, is_enough, too_few
from dpfedmeta.data.populations.disjoint import groups_of
from dpfedmeta.data.populations.natural import held_by_name, name_of_client

# As in disjoint.py: keys beside the clients' own numbers, which stand alone.
_PARTITION, _SLOTS, _GROUPS = 1, 3, 5

Held = list[tuple[int, IntArray]]


@dataclass(frozen=True, kw_only=True)
class WholePopulation:
    """Clients that the data name, or drawers of one alphabet, each with all its records.

    Client number i is the same client as in `natural.RealPopulation`. One with too few records (`is_enough`) counts as
    zero in every round; how many these are is nobody's but the owner's (check_task says it).

    Attributes:
        pool: Classes with clients, or with groups, where image number k of every class has the same author.
        shape: Public limits of an episode.
        clients: N, at most `most_clients`.
        seed: Of the public generators.
        authors: Of a pool with groups: how many authors together are one client, which holds all classes of a group.
    """

    pool: ClassPool
    shape: WholeShape
    clients: int
    seed: int
    authors: int = 1

    def __post_init__(self) -> None:
        if not (self.pool.clients or self.pool.groups):
            raise InputError(
                "population.episodes = whole: this data set does not say whose which record is; name clients in the "
                "data, or use omniglot with --population.kind natural"
            )

    def most_clients(self) -> int:
        """Return the number of clients that the data name, or of groups of authors."""
        return len(held_by_name(self.pool)) if self.pool.clients else len(_groups(self.pool, self.authors))

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, a function of (seed, client) and of what it holds.

        Raises:
            IndexError: There is no such client.
            InputError: It holds too little.
        """
        return self.chosen(client).episode()

    def chosen(self, client: int) -> WholeChoice:
        """Choice of its records, before anybody looks at one."""
        return self._chosen(client, public_generator(self.seed, Purpose.CLIENT_DATA, client))

    def split_again(self, client: int, turn: int) -> WholeChoice:
        """Choose its records, and split them, in another way for each `turn`: for evaluation."""
        return self._chosen(client, public_generator(self.seed, Purpose.EVALUATION, client, turn))

    def _chosen(self, client: int, generator: np.random.Generator) -> WholeChoice:
        found = choose_whole(self.pool, generator, self.shape, self._held(client))
        if found is None:
            raise InputError(f"client {client} has {too_few(shared=self.pool.shared)}")
        return found

    def holdings(self, client: int) -> Mapping[str, int]:
        """SECRET: how many records it holds of each of its classes, whether an episode uses them or not."""
        return {self.pool.names[index]: len(slots) for index, slots in self._held(client)}

    def is_able(self, client: int) -> bool:
        """SECRET: whether a client has enough records to take part."""
        return is_enough([len(slots) for _, slots in self._held(client)], shared=self.pool.shared)

    def _held(self, client: int) -> Held:
        """All classes of a client, each with the numbers of its images inside it."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        if self.pool.clients:
            places = held_by_name(self.pool)[name_of_client(self.pool, self.seed, client)]
            return [(index, np.arange(self.pool.counts[index])) for index in places]
        groups = _groups(self.pool, self.authors)
        order = public_generator(self.seed, Purpose.CLIENT_DATA, _PARTITION, _GROUPS).permutation(len(groups))
        number, classes, part = groups[int(order[client])]
        of_authors = public_generator(self.seed, Purpose.CLIENT_DATA, _PARTITION, _SLOTS, number)
        slots = of_authors.permutation(min(self.pool.counts[index] for index in classes))
        return [(index, slots[part * self.authors : (part + 1) * self.authors]) for index in classes]


@lru_cache(maxsize=4)
def _groups(pool: ClassPool, authors: int) -> list[tuple[int, list[int], int]]:
    """(number of the group of classes, its classes, part of its authors) of every client."""
    return [
        (number, classes, part)
        for number, classes in enumerate(groups_of(pool).values())
        for part in range(min(pool.counts[index] for index in classes) // authors)
    ]


def everybody(pool: ClassPool, shape: WholeShape, seed: int, authors: int) -> WholePopulation:
    """All clients of a part of the data."""
    found = WholePopulation(pool=pool, shape=shape, clients=1, seed=seed, authors=authors)
    return replace(found, clients=found.most_clients())


@lru_cache(maxsize=8)
def able_numbers(population: WholePopulation) -> tuple[int, ...]:
    """SECRET of training clients: the numbers of those that have enough records to take part."""
    return tuple(client for client in range(population.clients) if population.is_able(client))


@dataclass(frozen=True, kw_only=True)
class AbleClients:
    """Those of public clients that have enough records to take part, as a population.

    Attributes:
        of: All of them.
    """

    of: WholePopulation

    @property
    def clients(self) -> int:
        """Number of them."""
        return len(able_numbers(self.of))

    def episode(self, client: int) -> Episode:
        """The data of one of them, by its number among them."""
        return self.of.episode(able_numbers(self.of)[client])


def check_whole(pool: ClassPool, shape: WholeShape, split: str, authors: int) -> None:
    """Refuse a part of the data in which no client has enough records; the others count as zero.

    Raises:
        InputError: There is none, or the data do not say whose which record is.
    """
    clients = everybody(pool, shape, 0, authors)
    if not able_numbers(clients):
        raise InputError(
            f"none of the {clients.clients} client(s) of the {split} split holds "
            f"{too_few(shared=pool.shared).removeprefix('no ')}, the least of a client with population.episodes = "
            "whole; put clients with more records into it"
        )


def open_whole(kind: str, pool: ClassPool, shape: WholeShape, clients: int, seed: int, authors: int) -> WholePopulation:
    """The whole clients of a simulation.

    Args:
        kind: population.kind.
        pool: The training classes.
        shape: Public limits of an episode.
        clients: N.
        seed: run.seed.
        authors: Of a pool with groups: how many authors together are one client.

    Raises:
        InputError: The kind has no whole clients, there are fewer, or none has enough records.
    """
    if kind != "natural":
        raise InputError(
            f"population.kind = {kind} with population.episodes = whole: simulated clients hold nothing beside their "
            "episode; use --population.kind natural (clients that the data name, or drawers of omniglot)"
        )
    check_whole(pool, shape, "train", authors)
    found = WholePopulation(pool=pool, shape=shape, clients=clients, seed=seed, authors=authors)
    most = found.most_clients()
    if clients > most:
        whose = "names" if pool.clients else f"has, with {authors} drawers (task.shots + task.queries) each,"
        raise InputError(
            f"population.clients = {clients:,}: the training part of the data {whose} {most:,} clients, and counting "
            f"clients that do not exist would make the guarantee wrong; use --clients {most}, or leave it out"
        )
    return found
