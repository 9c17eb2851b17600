"""Populations in which every image belongs to at most one client; also clients of two shards each.

Shards are those of a sorted benchmark (McMahan et al. 2017, https://arxiv.org/abs/1602.05629): a client holds two,
hence mostly two classes.
"""

import heapq
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Chosen, Episode, chosen_of, drawn_changes
from dpfedmeta.data.episodes.shape import EpisodeShape

# Keys beside the clients' own numbers, which are not negative and stand alone.
_PARTITION, _CLASSES, _SLOTS = 1, 2, 3
SHARDS_PER_CLIENT = 2


@dataclass(frozen=True, kw_only=True)
class DisjointPopulation:
    """Simulated clients that share no image: the images of each class are dealt out once.

    Attributes:
        pool: Whose images they hold.
        shape: A client's episode.
        clients: N, at most `most_clients`.
        seed: Of the public generators.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    seed: int

    def most_clients(self) -> int:
        """The largest N: clients take one block of images from each of `ways` classes."""
        blocks = _blocks(self.pool, self.shape)
        low, high = 0, int(blocks.sum()) // self.shape.ways
        while low < high:
            middle = (low + high + 1) // 2
            # A class can serve a client once.
            if int(np.minimum(blocks, middle).sum()) >= self.shape.ways * middle:
                low = middle
            else:
                high = middle - 1
        return low

    def episode(self, client: int) -> Episode:
        """The data of client number `client`.

        Raises:
            IndexError: There is no such client.
        """
        return self.chosen(client).episode()

    def chosen(self, client: int) -> Chosen:
        """Which images these are."""
        _check_client(client, self.clients)
        classes, blocks = _deal(self.pool, self.shape, self.clients, self.seed)
        chosen = classes[client].tolist()
        wanted = self.shape.shots + self.shape.queries
        slots = []
        for index, block in zip(chosen, blocks[client].tolist(), strict=True):
            generator = public_generator(self.seed, Purpose.CLIENT_DATA, _PARTITION, _SLOTS, index)
            slots.append(generator.permutation(self.pool.counts[index])[block * wanted : (block + 1) * wanted])
        return _chosen(self.pool, self.shape, self.seed, client, chosen, slots)


@dataclass(frozen=True, kw_only=True)
class NaturalPopulation:
    """Clients that share no image and whose images belong together: one alphabet, the same drawers.

    A drawer drew every character of an alphabet once, so a client of K shots and Q queries is K + Q drawers of an
    alphabet with `ways` of its characters.

    Attributes:
        pool: Classes with groups, of equal size inside a group.
        shape: A client's episode.
        clients: N, at most `most_clients`.
        seed: Of the public generators.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    seed: int

    def __post_init__(self) -> None:
        if not self.pool.groups:
            raise InputError(
                "population.kind = natural: this data set does not say who made which image; it needs omniglot"
            )

    def most_clients(self) -> int:
        """The largest N: over alphabets, groups of drawers times groups of characters."""
        return sum(drawers * characters for _, drawers, characters in _alphabets(self.pool, self.shape))

    def episode(self, client: int) -> Episode:
        """The data of client number `client`.

        Raises:
            IndexError: There is no such client.
        """
        return self.chosen(client).episode()

    def chosen(self, client: int) -> Chosen:
        """Which images these are."""
        _check_client(client, self.clients)
        # Numbers are dealt over all alphabets, so that a small population is not one alphabet.
        most = self.most_clients()
        place = int(public_generator(self.seed, Purpose.CLIENT_DATA, _PARTITION).permutation(most)[client])
        number, group, part = _located(place, _alphabets(self.pool, self.shape))
        members = _alphabets(self.pool, self.shape)[number][0]
        wanted, ways = self.shape.shots + self.shape.queries, self.shape.ways
        of_drawers = public_generator(self.seed, Purpose.CLIENT_DATA, _PARTITION, _SLOTS, number)
        of_characters = public_generator(self.seed, Purpose.CLIENT_DATA, _PARTITION, _CLASSES, number, group)
        slots = of_drawers.permutation(self.pool.counts[members[0]])[group * wanted : (group + 1) * wanted]
        classes = of_characters.permutation(members)[part * ways : (part + 1) * ways].tolist()
        return _chosen(self.pool, self.shape, self.seed, client, classes, [slots] * ways)


def _check_client(client: int, clients: int) -> None:
    if not 0 <= client < clients:
        raise IndexError(f"client {client} of a population of {clients}")


def _chosen(
    pool: ClassPool, shape: EpisodeShape, seed: int, client: int, classes: list[int], slots: list[IntArray]
) -> Chosen:
    """Complete a client's choice of images with rotations, reflections and shifts drawn for this client."""
    generator = public_generator(seed, Purpose.CLIENT_DATA, client)
    turns = generator.integers(pool.rotations, size=shape.ways).tolist()
    wanted = shape.shots + shape.queries
    return chosen_of(pool, shape, classes, slots, turns, *drawn_changes(pool, generator, (shape.ways, wanted)))


def _blocks(pool: ClassPool, shape: EpisodeShape) -> IntArray:
    """Return the number of clients for which the images of each class suffice."""
    return np.asarray(pool.counts, dtype=np.int64) // (shape.shots + shape.queries)


@lru_cache(maxsize=4)
def _deal(pool: ClassPool, shape: EpisodeShape, clients: int, seed: int) -> tuple[IntArray, IntArray]:
    """Classes and blocks of all clients, each int64 [clients, ways].

    Every client takes the `ways` classes with the most blocks left, ties broken at random: that never gets stuck before
    `most_clients`, and mixes classes that are equally large. Memory grows with the number of images at most.
    """
    generator = public_generator(seed, Purpose.CLIENT_DATA, _PARTITION, _CLASSES)
    left = _blocks(pool, shape)
    total = left.copy()
    ties = generator.random
    heap = [(-int(count), float(ties()), index) for index, count in enumerate(left) if count]
    heapq.heapify(heap)
    classes = np.empty((clients, shape.ways), dtype=np.int64)
    blocks = np.empty_like(classes)
    for client in range(clients):
        taken = [heapq.heappop(heap)[2] for _ in range(shape.ways)]
        classes[client] = generator.permutation(taken)
        blocks[client] = (total - left)[classes[client]]
        left[taken] -= 1
        for index in taken:
            if left[index]:
                heapq.heappush(heap, (-int(left[index]), float(ties()), index))
    return classes, blocks


@lru_cache(maxsize=4)
def _alphabets(pool: ClassPool, shape: EpisodeShape) -> tuple[tuple[list[int], int, int], ...]:
    """(classes, groups of drawers, groups of characters) of each alphabet."""
    wanted = shape.shots + shape.queries
    return tuple(
        (indices, min(pool.counts[index] for index in indices) // wanted, len(indices) // shape.ways)
        for indices in groups_of(pool).values()
    )


def groups_of(pool: ClassPool) -> dict[str, list[int]]:
    """Return the classes of each group, as alphabets are groups of characters."""
    members: dict[str, list[int]] = {}
    for index, group in enumerate(pool.groups):
        members.setdefault(group, []).append(index)
    return members


def _located(place: int, alphabets: tuple[tuple[list[int], int, int], ...]) -> tuple[int, int, int]:
    """(number of the alphabet, group of drawers, group of characters) of a place in their sequence."""
    ends = np.cumsum([drawers * characters for _, drawers, characters in alphabets])
    number = int(np.searchsorted(ends, place, side="right"))
    characters = alphabets[number][2]
    group, part = divmod(place - int(ends[number] - alphabets[number][1] * characters), characters)
    return number, group, part


@dataclass(frozen=True, kw_only=True)
class ShardPopulation:
    """All images of a split sorted by class, cut into shards, and two shards dealt to each client.

    One deal uses every shard once; where there are more clients than that, the shards are shuffled and dealt again
    (as in Geyer et al. 2017, https://arxiv.org/abs/1712.07557), so an image then belongs to several clients.

    Attributes:
        pool: The images; label k is the k-th class of the pool.
        records: Records of a client.
        clients: N.
        seed: Of the deals.
    """

    pool: ClassPool
    records: int
    clients: int
    seed: int

    def __post_init__(self) -> None:
        if self.records % SHARDS_PER_CLIENT or self.shards < SHARDS_PER_CLIENT:
            raise InputError(
                f"population.records = {self.records}: a client holds {SHARDS_PER_CLIENT} shards of equal size out of "
                f"{self.pool.size:,} images; give an even number of at most {self.pool.size}"
            )

    @property
    def shards(self) -> int:
        """Shards of one deal."""
        return self.pool.size // (self.records // SHARDS_PER_CLIENT)

    @property
    def clients_per_deal(self) -> int:
        """Clients after whom the shards are dealt again."""
        return self.shards // SHARDS_PER_CLIENT

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, all of it as support; a function of (seed, client) alone.

        Raises:
            IndexError: There is no such client.
        """
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        import torch

        images, labels = self.pool.records_at(self._rows(client))
        return Episode(
            support_images=torch.from_numpy(images),
            support_labels=torch.from_numpy(labels),
            query_images=torch.zeros(0, *images.shape[1:]),
            query_labels=torch.zeros(0, dtype=torch.int64),
        )

    def _rows(self, client: int) -> IntArray:
        deal, place = divmod(client, self.clients_per_deal)
        order = public_generator(self.seed, Purpose.CLIENT_DATA, deal).permutation(self.shards)
        mine = order[SHARDS_PER_CLIENT * place : SHARDS_PER_CLIENT * (place + 1)]
        size = self.records // SHARDS_PER_CLIENT
        return np.concatenate([np.arange(shard * size, (shard + 1) * size) for shard in mine])
