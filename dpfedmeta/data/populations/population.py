"""Populations: from a client's number to its data, lazily."""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Chosen, Episode, choose_episode, drawn_classes
from dpfedmeta.data.episodes.row_layout import Layout
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.capacity_checks import check_shape
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation, ShardPopulation
from dpfedmeta.data.populations.natural import RealPopulation
from dpfedmeta.data.populations.whole_population import WholePopulation

Kind = Literal["virtual", "disjoint", "natural", "real"]


class Population(Protocol):
    """Numbered clients; each always holds the same episode. Picklable where worker processes run the clients.

    A population may say which records it holds: `image`, their channels, height and width. That is public, so it is
    compared with the task before round 0, and no client's data are looked at for it.

    A population may also say what its clients hold: `digest() -> str` (`Digested`). Then --resume does a round again
    with the same noise, uncharged, and refuses other data. Without it every round that is done again is charged again.
    """

    @property
    def clients(self) -> int:
        """Number of clients."""
        ...

    def episode(self, client: int) -> Episode:
        """The data of client number `client`."""
        ...


@dataclass(frozen=True, kw_only=True)
class VirtualPopulation:
    """`clients` simulated clients; each always holds the same episode, and none is stored.

    Images are shared between clients: a client is the privacy unit of the simulation, and a record is one
    slot of one client, not one image.

    Attributes:
        pool: Whose images they hold.
        shape: A client's episode.
        clients: N; neither memory nor time grows with it.
        seed: Of the public generators.
        most_shots: A client holds shape.shots to this many support images of each class, uniformly; None: shape.shots.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    seed: int
    most_shots: int | None = None

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, a function of (seed, client) alone.

        Raises:
            IndexError: There is no such client.
        """
        return self.chosen(client).episode()

    def chosen(self, client: int) -> Chosen:
        """Which images these are."""
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        generator, shape = self._begun(client)
        return choose_episode(self.pool, generator, shape)

    def classes_of(self, client: int) -> list[int]:
        """Its classes' places in the pool, by the labels of its episode."""
        generator, shape = self._begun(client)
        return drawn_classes(generator, shape, range(self.pool.classes))

    def _begun(self, client: int) -> tuple[np.random.Generator, EpisodeShape]:
        generator, shape = public_generator(self.seed, Purpose.CLIENT_DATA, client), self.shape
        if self.most_shots is not None:
            shape = replace(shape, shots=int(generator.integers(shape.shots, self.most_shots, endpoint=True)))
        return generator, shape


# Those that can say which images a client holds before anybody looks at a pixel.
Choosing = VirtualPopulation | DisjointPopulation | NaturalPopulation | RealPopulation | WholePopulation
Made = Choosing | ShardPopulation


@runtime_checkable
class Digested(Protocol):
    """A population that can say whether it is the one that a run began with."""

    def digest(self) -> str | None:
        """SECRET: another one where any client holds other data; None: it cannot say."""
        ...


@runtime_checkable
class HoldsRows(Protocol):
    """A population of clients that hold rows of their own, placed by their hash where a layout says so."""

    layout: Layout | None


def laid_out(population: Population, layout: Layout | None) -> Population:
    """The same population with the layout of a plan, where its clients hold rows of their own."""
    if layout is None or not isinstance(population, HoldsRows):
        return population
    changed: Population = replace(population, layout=layout)  # type: ignore[type-var]
    return changed


def clients_digest(population: Population) -> str | None:
    """SECRET: digest of what all clients hold; None: the population cannot say."""
    # Not those that inherit from them, which may hold anything.
    if type(population) in get_args(Made):
        assert isinstance(population, Made)
        own = {field.name: getattr(population, field.name) for field in fields(population) if field.name != "pool"}
        text = f"{type(population).__name__} {population.pool.digest()} {own!r}"
        return hashlib.sha256(text.encode()).hexdigest()
    if not isinstance(population, Digested):
        return None
    found = population.digest()
    if found is not None and not (isinstance(found, str) and found):
        raise InputError(f"{type(population).__name__}.digest(): gave {found!r}, expected text or None")
    return found


def open_population(
    kind: Kind,
    pool: ClassPool,
    shape: EpisodeShape,
    clients: int,
    seed: int,
    most_shots: int | None = None,
    layout: Layout | None = None,
) -> Population:
    """The clients of a simulation.

    Args:
        kind: Images shared between clients (virtual), each in one client (disjoint), or in one client that holds
            characters of one alphabet by the same drawers (natural); natural, too, are clients that the data name.
        pool: The training classes.
        shape: A client's episode.
        clients: N.
        seed: run.seed.
        most_shots: Clients of unequal size; see VirtualPopulation.
        layout: Of clients that the data name; see RealPopulation.

    Raises:
        InputError: The images do not suffice for so many clients, or for this kind.
    """
    if kind == "real":
        raise InputError(
            "population.kind = real: clients of a federation hold their data themselves; use natural (clients that "
            "your data name), virtual or disjoint to simulate them"
        )
    if pool.clients and kind != "natural":
        raise InputError(
            f"population.kind = {kind}: the data name their clients; use --population.kind natural, or leave it out"
        )
    if most_shots is not None:
        if kind != "virtual" and not pool.clients:
            raise InputError(f"population.most_shots needs population.kind = virtual, not {kind}")
        if most_shots < shape.shots:
            raise InputError(f"population.most_shots = {most_shots} is less than task.shots = {shape.shots}")
    if pool.clients:
        if layout is None:
            check_shape(pool, shape, "train")
        return _real(
            RealPopulation(pool=pool, shape=shape, clients=clients, seed=seed, most_shots=most_shots, layout=layout)
        )
    check_shape(pool, shape if most_shots is None else replace(shape, shots=most_shots), "train")
    if kind == "virtual":
        return VirtualPopulation(pool=pool, shape=shape, clients=clients, seed=seed, most_shots=most_shots)
    found = (DisjointPopulation if kind == "disjoint" else NaturalPopulation)(
        pool=pool, shape=shape, clients=clients, seed=seed
    )
    most = found.most_clients()
    if clients > most:
        per_class = shape.shots + shape.queries
        raise InputError(
            f"population.clients = {clients:,} with population.kind = {kind}: the {pool.size:,} images make at most "
            f"{most:,} clients of {shape.ways} classes with {per_class} images; use --clients {most}, or fewer shots"
        )
    return found


def _real(population: RealPopulation) -> RealPopulation:
    most = population.most_clients()
    if population.clients > most:
        raise InputError(
            f"population.clients = {population.clients:,}: the training part of the data names {most:,} "
            f"clients, and counting clients that do not exist would make the guarantee wrong; use --clients {most}, or "
            "leave it out"
        )
    return population
