"""Clients that the data name: each with classes and records of its own, few or many."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Chosen, Episode, choose_from
from dpfedmeta.data.episodes.row_layout import KEY_BYTES, Layout, RowChoice, chosen_rows, hashed_rows
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.capacity_checks import able_clients

# As in disjoint.py: keys beside the clients' own numbers, which stand alone.
_PARTITION, _NAMES, _ROWS = 1, 4, 6


@dataclass(frozen=True, kw_only=True)
class RealPopulation:
    """The clients that the data name. Client and record are those of the data, not of a simulation.

    A client holds one episode: `ways` of its classes that have enough records, and of each of them as many as the
    shape says, chosen once. What else it holds is not used. One that does not hold so much counts as zero in every
    round; how many these are is nobody's but the owner's (check_task says it).

    Attributes:
        pool: Classes with clients.
        shape: A client's episode.
        clients: N, at most `most_clients`.
        seed: Of the public generators.
        most_shots: A client holds up to this many support records of each class, if it has them; None: shape.shots.
        layout: Places of a client's rows by their hash, whatever it holds, where records are promised something.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    seed: int
    most_shots: int | None = None
    layout: Layout | None = None

    def most_clients(self) -> int:
        """Return the number of clients that the data name."""
        return len(set(self.pool.clients))

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, a function of (seed, client) and of what it holds.

        Raises:
            IndexError: There is no such client.
            InputError: It holds too little.
        """
        return self.chosen(client).episode()

    def chosen(self, client: int) -> Chosen | RowChoice:
        """Which records these are."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        if self.layout is not None:
            key = simulated_key(self.seed, client)
            return chosen_rows(self.pool, tuple(self.classes_of(client)), self.layout, key)
        assert not self.pool.own_test
        held = able_clients(self.pool, self.shape).get(self._name(client))
        if held is None:
            raise InputError(f"client {client} has too few records for {self.shape}")
        generator = public_generator(self.seed, Purpose.CLIENT_DATA, client)
        return choose_from(self.pool, generator, self._own_shape(held), held)

    def classes_of(self, client: int) -> list[int]:
        """The places in the pool of all its classes, also those that have too few records for an episode."""
        return held_by_name(self.pool)[self._name(client)]

    def holdings(self, client: int) -> Mapping[str, int]:
        """SECRET: how many records it may train on of each of its classes, whether an episode uses them or not."""
        if self.pool.own_test:
            rows = hashed_rows(self.pool, self.classes_of(client), simulated_key(self.seed, client))
            counts = Counter(rows.training(self.pool.own_test).classes.tolist())
            return {self.pool.names[index]: count for index, count in sorted(counts.items())}
        return {self.pool.names[index]: self.pool.counts[index] for index in self.classes_of(client)}

    def _name(self, client: int) -> str:
        return name_of_client(self.pool, self.seed, client)

    def _own_shape(self, held: list[int]) -> EpisodeShape:
        """More shots where every class that may be drawn has them: a support set has as many of each."""
        if self.most_shots is None:
            return self.shape
        fewest = min(self.pool.counts[index] for index in held)
        return replace(self.shape, shots=min(self.most_shots, fewest - self.shape.queries))


def simulated_key(seed: int, client: int) -> bytes:
    """The key of a simulated client's hashes; a real client draws one."""
    return public_generator(seed, Purpose.CLIENT_DATA, client, _ROWS).bytes(KEY_BYTES)


def name_of_client(pool: ClassPool, seed: int, client: int) -> str:
    """Return the name of client number `client`: names are dealt out by the public seed."""
    return names_in_order(pool, seed)[client]


@lru_cache(maxsize=4)
def names_in_order(pool: ClassPool, seed: int) -> tuple[str, ...]:
    """Clients by their numbers."""
    names = sorted(held_by_name(pool))
    order = public_generator(seed, Purpose.CLIENT_DATA, _PARTITION, _NAMES).permutation(len(names))
    return tuple(names[int(place)] for place in order)


@lru_cache(maxsize=4)
def held_by_name(pool: ClassPool) -> dict[str, list[int]]:
    """Return the places in the pool of each client's classes."""
    held: dict[str, list[int]] = {}
    for index, name in enumerate(pool.clients):
        held.setdefault(name, []).append(index)
    return held
