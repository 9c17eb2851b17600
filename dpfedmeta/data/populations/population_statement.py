"""The sentence that says of a population what a client and a record are, made of facts that stand beside it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from dpfedmeta.data.episodes.shape import ASKED, OWN, Clients
from dpfedmeta.data.episodes.whole_episode import too_few
from dpfedmeta.data.populations.disjoint import DisjointPopulation, NaturalPopulation, ShardPopulation
from dpfedmeta.data.populations.natural import RealPopulation
from dpfedmeta.data.populations.own_test import kept_back
from dpfedmeta.data.populations.population import Population, VirtualPopulation
from dpfedmeta.data.populations.whole_population import WholePopulation

_DRAWN = "{clients} simulated clients hold {records} records made from {images} images; "
# Of data of one's own the number of records is private, and all that follows from it.
_DRAWN_OF_OWN = "{clients} simulated clients hold {records} records made from images whose number is private; "
_APART = "each image is in at most one client"
_MANY = "so a client is a simulated one, and a record is one slot of one client, not one image"
_IS_NAMED = "counts as zero: a client is one of them, a record is one of its records"
# The sentences of each kind; where images may be private, the one that says so is the last. Numbers stand in braces; of
# the words in capitals one choice stands there.
_SENTENCES = {
    "virtual": (
        f"{_DRAWN}an image recurs in {{often}} clients on average, {_MANY}",
        f"{_DRAWN_OF_OWN}an image may be in several clients, {_MANY}",
    ),
    "disjoint": (
        f"{_DRAWN}{_APART}: a client is a simulated one, a record is an image",
        f"{_DRAWN_OF_OWN}{_APART}: a client is a simulated one, a record is an image",
    ),
    "natural": (
        f"{_DRAWN}{_APART}, the drawings of characters of one alphabet by the same drawers: "
        "a client is a simulated one, a record is an image",
        "{clients} clients that the data name{CHOSEN}; each holds {SHOTS} + {queries} records {OF}, and one that has "
        f"fewer {_IS_NAMED}",
        "{clients} {NAMED}{CHOSEN}; each uses all its records, {share}% of a class as support, up to {ways} classes "
        f"and {{most_records}} records ({{megabytes}} MB in memory), and one that has {{LEAST}} {_IS_NAMED}",
        "{clients} clients that the data name{CHOSEN}; a keyed hash of each row alone says what it is used for, in an "
        "episode of {SHOTS} + {queries} records {OF}, and a place without a row is a null record: a client is one of "
        "them, a record is one of its rows",
        f"{_DRAWN_OF_OWN}{_APART}, the drawings of characters of one alphabet by the same drawers: a client is a "
        "simulated one, a record is an image",
    ),
    "shards": (
        "{clients} simulated clients hold two shards each of {images} sorted images; {WHERE}",
        "{clients} simulated clients hold two shards each of sorted images whose number is private; an image may be in "
        "several clients, so a client is a simulated one",
    ),
    OWN: ("{clients} clients of the caller's own; what a client and its records are, the caller says",),
    ASKED: (
        "{clients} clients that hold their data themselves and are asked by a server; a client is all that one of them "
        "holds, a record is one of its records",
    ),
}
_REAL, _WHOLE, _ROWS = 1, 2, 3
_CHOICES = {
    "CHOSEN": ("", ", chosen from {most} by run.seed"),
    "SHOTS": ("{shots}", "{shots} to {most_shots}"),
    "OF": ("of {ways} classes of its own", "with a number to predict"),
    "NAMED": ("clients that the data name", "clients, {authors} drawers of an alphabet each"),
    "LEAST": ("no two classes of two records", too_few(shared=True)),
    "WHERE": (
        _APART,
        "an image is in {often} clients on average, so a client is a simulated one",
    ),
}


@dataclass(frozen=True, kw_only=True)
class PopulationStatement:
    """Description of the clients of a simulation: their number and the images they are made from.

    Attributes:
        kind: population.kind of the settings, or "own".
        clients: N, the number of clients.
        records: Support and query records of all clients (expected number if sizes differ); 0: the data decide.
        images: Training images that clients are made from, without rotations and reflections; None: private.
        form: Place of its sentence among those of its kind.
        choices: By the name of a word in the sentence, which of the two stands there.
        numbers: Other numbers in the sentence, as they are written.
        own_test: population.own_test, the share of its records that each client keeps back.
    """

    kind: str
    clients: int
    records: int = 0
    images: int | None = None
    form: int = 0
    choices: Mapping[str, int] = field(default_factory=dict)
    numbers: Mapping[str, str] = field(default_factory=dict)
    own_test: float = 0.0

    @property
    def whose(self) -> Clients:
        """Whose the clients are."""
        if self.kind in (ASKED, OWN):
            return "real" if self.kind == ASKED else "unknown"
        return "named" if self.kind == "natural" and self.form in (_REAL, _WHOLE, _ROWS) else "simulated"

    @property
    def clients_per_image(self) -> float | None:
        """Expected number of clients that hold an image, averaged over images; None: private."""
        return None if self.images is None else self.records / self.images

    @property
    def text(self) -> str:
        """The description in one sentence."""
        # A number that is not stated stands in no sentence.
        counts = {name: getattr(self, name) for name in ("clients", "records", "images")}
        counted = {name: f"{count:,}" for name, count in counts.items() if count is not None}
        often = {} if self.clients_per_image is None else {"often": _rounded(self.clients_per_image)}
        return self._sentence.format(**self.numbers, **counted, **often) + kept_back(self.own_test)

    @property
    def _sentence(self) -> str:
        """Its words, with the names of numbers."""
        sentence = _SENTENCES[self.kind][self.form]
        for name, place in self.choices.items():
            sentence = sentence.replace(f"{{{name}}}", _CHOICES[name][place])
        return sentence

    def as_json(self) -> dict[str, Any]:
        """The facts, and what follows from them."""
        return {**asdict(self), "clients_per_image": self.clients_per_image, "text": self.text}


def asked_statement(clients: int) -> PopulationStatement:
    """Describe clients that hold their data themselves and are asked by a server."""
    return PopulationStatement(kind=ASKED, clients=clients)


def population_statement(
    population: Population, own_test: float = 0.0, *, published: bool = False
) -> PopulationStatement:
    """Describe a client and a record, and how often an image recurs; the guarantees say which of them is protected.

    Args:
        population: The clients.
        own_test: As in the statement.
        published: The images are those of a benchmark, so that it is public how many there are. A statement leaves
            without noise, before any round: the number of other images does not stand in it.
    """
    if isinstance(population, ShardPopulation):
        found = _of_shards(population, published)
    elif isinstance(population, RealPopulation):
        found = _of_real_clients(population)
    elif isinstance(population, WholePopulation):
        found = _of_whole_clients(population)
    elif isinstance(population, VirtualPopulation | DisjointPopulation | NaturalPopulation):
        found = _of_simulated_clients(population, published)
    else:
        found = PopulationStatement(kind=OWN, clients=population.clients, own_test=own_test)
    return replace(found, own_test=own_test)


def _of_simulated_clients(
    population: VirtualPopulation | DisjointPopulation | NaturalPopulation, published: bool
) -> PopulationStatement:
    shape, most = population.shape, None
    kind = "disjoint" if isinstance(population, DisjointPopulation) else "natural"
    if isinstance(population, VirtualPopulation):
        kind, most = "virtual", population.most_shots
    # Twice the mean number of shots is a whole number.
    records = population.clients * shape.ways * (shape.shots + (most or shape.shots) + 2 * shape.queries) // 2
    return _of_images(kind, population, records, published)


def _of_images(
    kind: str,
    population: VirtualPopulation | DisjointPopulation | NaturalPopulation | ShardPopulation,
    records: int,
    published: bool,
    where: Mapping[str, int] | None = None,
) -> PopulationStatement:
    if not published:
        form = len(_SENTENCES[kind]) - 1  # that of private images is the last
        return PopulationStatement(kind=kind, clients=population.clients, form=form, records=records)
    images = population.pool.size
    return PopulationStatement(
        kind=kind, clients=population.clients, records=records, images=images, choices=where or {}
    )


def _of_real_clients(population: RealPopulation) -> PopulationStatement:
    """Nothing in it but public constants: not even how many records there are."""
    shape, most, most_shots = population.shape, population.most_clients(), population.most_shots
    return _of_named_clients(
        _REAL if population.layout is None else _ROWS,
        population.clients,
        {"CHOSEN": population.clients != most, "SHOTS": most_shots is not None, "OF": bool(population.pool.targets)},
        most=f"{most:,}",
        shots=f"{shape.shots}",
        most_shots=f"{most_shots}",
        queries=f"{shape.queries}",
        ways=f"{shape.ways}",
    )


def _of_whole_clients(population: WholePopulation) -> PopulationStatement:
    """Nothing in it but public constants, as of real clients."""
    pool, shape, most = population.pool, population.shape, population.most_clients()
    megabytes = shape.most_records * int(np.prod(pool.images.shape[1:])) * 4 / 1e6
    return _of_named_clients(
        _WHOLE,
        population.clients,
        {"NAMED": not pool.clients, "CHOSEN": population.clients != most, "LEAST": pool.shared},
        authors=f"{population.authors}",
        most=f"{most:,}",
        share=f"{100 * shape.support_share:g}",
        ways=f"{shape.most_ways}",
        most_records=f"{shape.most_records:,}",
        megabytes=f"{megabytes:.3g}",
    )


def _of_named_clients(form: int, clients: int, second: Mapping[str, bool], **numbers: str) -> PopulationStatement:
    """The statement of a form, with those of the numbers that its words say."""
    choices = {name: int(chosen) for name, chosen in second.items()}
    found = PopulationStatement(kind="natural", clients=clients, form=form, choices=choices)
    said = {name: number for name, number in numbers.items() if f"{{{name}}}" in found._sentence}
    return replace(found, numbers=said)


def _of_shards(population: ShardPopulation, published: bool) -> PopulationStatement:
    shared = population.clients > population.clients_per_deal
    records = population.clients * population.records
    return _of_images("shards", population, records, published, {"WHERE": int(shared)})


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
