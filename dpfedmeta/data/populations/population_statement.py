"""The sentence that says of a population what a client and a record are: written here, and recognised here."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from dpfedmeta.data.episodes.shape import ASKED, OWN
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
# The sentences of each kind, those of private images last. Numbers stand in braces; of the words in capitals one choice
# stands there.
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
_PRIVATE = -1
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
_NUMBER = r"[\d,.]+(?:e[+-]?\d+)?"
_IN_BRACES = re.compile(r"\\\{(\w+)\\\}")  # after re.escape


@dataclass(frozen=True, kw_only=True)
class PopulationStatement:
    """Description of the clients of a simulation: their number and the images they are made from.

    Attributes:
        kind: population.kind of the settings, or "own".
        clients: N, the number of clients.
        records: Support and query records of all clients (expected number if sizes differ); 0: the data decide.
        images: Training images that clients are made from, without rotations and reflections; None: private.
        clients_per_image: Expected number of clients that hold an image, averaged over images; None: private.
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
    return _statement(ASKED, clients)


def population_statement(
    population: Population, own_test: float = 0.0, *, published: bool = False
) -> PopulationStatement:
    """Describe a client and a record, and how often an image recurs; the guarantees say which of them is protected.

    Args:
        population: The clients.
        own_test: population.own_test, the share of its records that each client keeps back.
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
        found = _statement(OWN, population.clients)
    return replace(found, text=f"{found.text}{kept_back(own_test)}")


def says_what_it_states(stated: Mapping[str, Any], own_test: float) -> bool:
    """Return whether the text of a stored statement is a sentence of its kind, with the numbers stored beside it.

    Numbers that stand in the text alone are not compared: they need the data.
    """
    text, kept = stated["text"], kept_back(own_test)
    beside = {name: stated[name] for name in ("clients", "records", "images")}
    counted = stated["images"] is not None
    # A sentence with a number that is not stated matches nothing.
    known = {name: "(?!)" if number is None else re.escape(f"{number:,}") for name, number in beside.items()}
    forms = (
        _IN_BRACES.sub(lambda found: known.get(found[1], _NUMBER), re.escape(form))
        for form in _forms(stated["kind"])
        if ("{images}" in form) == counted
    )
    return text.endswith(kept) and any(re.fullmatch(form, text.removesuffix(kept)) for form in forms)


def _forms(kind: str) -> Iterator[str]:
    """Every sentence of a kind with every choice of its words; its numbers stand in braces."""
    for sentence in _SENTENCES.get(kind, ()):
        names = [name for name in _CHOICES if f"{{{name}}}" in sentence]
        for places in product((0, 1), repeat=len(names)):
            yield _with_words(sentence, dict(zip(names, places, strict=True)))


def _with_words(sentence: str, places: Mapping[str, int]) -> str:
    for name, place in places.items():
        sentence = sentence.replace(f"{{{name}}}", _CHOICES[name][place])
    return sentence


def _statement(
    kind: str,
    clients: int,
    *,
    form: int = 0,
    choices: Mapping[str, int] | None = None,
    records: int = 0,
    images: int | None = None,
    recurrence: float | None = None,
    **numbers: str,
) -> PopulationStatement:
    """Fill in a sentence of a kind.

    Args:
        kind: Of the population.
        clients: N.
        form: Place of the sentence among those of its kind.
        choices: By the name of a word, 0 or 1.
        records: As in the statement.
        images: As in the statement.
        recurrence: As clients_per_image.
        numbers: Other numbers in the sentence, as they are written.
    """
    numbers |= {"clients": f"{clients:,}", "records": f"{records:,}", "images": f"{images or 0:,}"}
    numbers |= {} if recurrence is None else {"often": _rounded(recurrence)}
    text = _with_words(_SENTENCES[kind][form], choices or {}).format(**numbers)
    return PopulationStatement(
        kind=kind, clients=clients, records=records, images=images, clients_per_image=recurrence, text=text
    )


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
    choices: Mapping[str, int] | None = None,
) -> PopulationStatement:
    if not published:
        return _statement(kind, population.clients, form=_PRIVATE, records=records)
    images = population.pool.size
    recurrence = records / images
    return _statement(kind, population.clients, choices=choices, records=records, images=images, recurrence=recurrence)


def _of_real_clients(population: RealPopulation) -> PopulationStatement:
    """Nothing in it but public constants: not even how many records there are."""
    shape, most, most_shots = population.shape, population.most_clients(), population.most_shots
    targets = population.pool.targets
    return _statement(
        "natural",
        population.clients,
        form=_REAL if population.layout is None else _ROWS,
        choices={"CHOSEN": population.clients != most, "SHOTS": most_shots is not None, "OF": bool(targets)},
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
    return _statement(
        "natural",
        population.clients,
        form=_WHOLE,
        choices={"NAMED": not pool.clients, "CHOSEN": population.clients != most, "LEAST": pool.shared},
        authors=f"{population.authors}",
        most=f"{most:,}",
        share=f"{100 * shape.support_share:g}",
        ways=f"{shape.most_ways}",
        most_records=f"{shape.most_records:,}",
        megabytes=f"{megabytes:.3g}",
    )


def _of_shards(population: ShardPopulation, published: bool) -> PopulationStatement:
    shared = population.clients > population.clients_per_deal
    records = population.clients * population.records
    return _of_images("shards", population, records, published, choices={"WHERE": shared})


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
