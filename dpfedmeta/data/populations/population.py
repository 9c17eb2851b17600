"""Populations: from a client's number to its data, lazily."""

import hashlib
from dataclasses import dataclass, fields, replace
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Chosen, Episode, choose_episode, drawn_classes
from dpfedmeta.data.episodes.shape import ASKED, OWN, EpisodeShape
from dpfedmeta.data.episodes.whole_episode import too_few
from dpfedmeta.data.populations.capacity_checks import check_shape
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation, ShardPopulation
from dpfedmeta.data.populations.natural import RealPopulation
from dpfedmeta.data.populations.whole_population import WholePopulation

Kind = Literal["virtual", "disjoint", "natural"]


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
    kind: Kind, pool: ClassPool, shape: EpisodeShape, clients: int, seed: int, most_shots: int | None = None
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

    Raises:
        InputError: The images do not suffice for so many clients, or for this kind.
    """
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
        check_shape(pool, shape, "train")
        return _real(RealPopulation(pool=pool, shape=shape, clients=clients, seed=seed, most_shots=most_shots))
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


@dataclass(frozen=True, kw_only=True)
class PopulationStatement:
    """Description of the clients of a simulation: their number and the images they are made from.

    Attributes:
        kind: population.kind of the settings, or "own".
        clients: N, the number of clients.
        records: Support and query records of all clients (expected number if sizes differ); 0: the data decide.
        images: Training images that clients are made from, without rotations and reflections; None if unknown.
        clients_per_image: Expected number of clients that hold an image, averaged over images; None if unknown.
        text: The description in one sentence.
    """

    kind: str
    clients: int
    records: int
    images: int | None
    clients_per_image: float | None
    text: str


def asked_statement(clients: int) -> PopulationStatement:
    """Describe clients that hold their data themselves and are asked by a server."""
    text = (
        f"{clients:,} clients that hold their data themselves and are asked by a server; a client is all that one of "
        "them holds, a record is one of its records"
    )
    return PopulationStatement(kind=ASKED, clients=clients, records=0, images=None, clients_per_image=None, text=text)


def population_statement(population: Population) -> PopulationStatement:
    """Describe a client and a record, and how often an image recurs; the guarantees say which of them is protected."""
    clients = population.clients
    if isinstance(population, ShardPopulation):
        return _shard_statement(population)
    if isinstance(population, RealPopulation):
        return _real_statement(population)
    if isinstance(population, WholePopulation):
        return _whole_statement(population)
    if not isinstance(population, VirtualPopulation | DisjointPopulation | NaturalPopulation):
        text = f"{clients:,} clients of the caller's own; what a client and its records are, the caller says"
        return PopulationStatement(kind=OWN, clients=clients, records=0, images=None, clients_per_image=None, text=text)
    shape, images = population.shape, population.pool.size
    most = population.most_shots if isinstance(population, VirtualPopulation) else None
    # Twice the mean number of shots is a whole number.
    records = clients * shape.ways * (shape.shots + (most or shape.shots) + 2 * shape.queries) // 2
    recurrence = records / images
    many = f"{clients:,} simulated clients hold {records:,} records made from {images:,} images; "
    if isinstance(population, VirtualPopulation):
        kind: Kind = "virtual"
        text = (
            f"{many}an image recurs in {_rounded(recurrence)} clients on average, so a client is a simulated one, "
            "and a record is one slot of one client, not one image"
        )
    else:
        kind = "disjoint" if isinstance(population, DisjointPopulation) else "natural"
        how = ", the drawings of characters of one alphabet by the same drawers" if kind == "natural" else ""
        text = f"{many}each image is in at most one client{how}: a client is a simulated one, a record is an image"
    return PopulationStatement(
        kind=kind, clients=clients, records=records, images=images, clients_per_image=recurrence, text=text
    )


def _real_statement(population: RealPopulation) -> PopulationStatement:
    """Nothing in it but public constants: not even how many records there are."""
    shape, most = population.shape, population.most_clients()
    shots = f"{shape.shots}" if population.most_shots is None else f"{shape.shots} to {population.most_shots}"
    chosen = "" if population.clients == most else f", chosen from {most:,} by run.seed"
    of = "with a number to predict" if population.pool.targets else f"of {shape.ways} classes of its own"
    text = (
        f"{population.clients:,} clients that the data name{chosen}; each holds {shots} + {shape.queries} records "
        f"{of}, and one that has fewer counts as zero: a client is one of them, a record is one of its records"
    )
    return PopulationStatement(
        kind="natural", clients=population.clients, records=0, images=None, clients_per_image=None, text=text
    )


def _whole_statement(population: WholePopulation) -> PopulationStatement:
    """Nothing in it but public constants, as of real clients."""
    pool, shape, most = population.pool, population.shape, population.most_clients()
    what = (
        "clients that the data name" if pool.clients else f"clients, {population.authors} drawers of an alphabet each"
    )
    chosen = "" if population.clients == most else f", chosen from {most:,} by run.seed"
    least = too_few(shared=True) if pool.shared else "no two classes of two records"
    megabytes = shape.most_records * int(np.prod(pool.images.shape[1:])) * 4 / 1e6
    text = (
        f"{population.clients:,} {what}{chosen}; each uses all its records, {100 * shape.support_share:g}% of a class "
        f"as support, up to {shape.most_ways} classes and {shape.most_records:,} records ({megabytes:.3g} MB in "
        f"memory), and one that has {least} counts as zero: a client is one of them, a record is one of "
        "its records"
    )
    return PopulationStatement(
        kind="natural", clients=population.clients, records=0, images=None, clients_per_image=None, text=text
    )


def _shard_statement(population: ShardPopulation) -> PopulationStatement:
    records, images = population.clients * population.records, population.pool.size
    where = (
        "each image is in at most one client"
        if population.clients <= population.clients_per_deal
        else f"an image is in {_rounded(records / images)} clients on average, so a client is a simulated one"
    )
    text = f"{population.clients:,} simulated clients hold two shards each of {images:,} sorted images; {where}"
    return PopulationStatement(
        kind="shards",
        clients=population.clients,
        records=records,
        images=images,
        clients_per_image=records / images,
        text=text,
    )


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
