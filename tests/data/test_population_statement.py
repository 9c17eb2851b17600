"""Every sentence that a run may state of its clients is made of the facts beside it, and of nothing else."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations import population_statement as statements
from dpfedmeta.data.populations.disjoint import ShardPopulation
from dpfedmeta.data.populations.own_test import kept_back
from dpfedmeta.data.populations.population import open_population
from dpfedmeta.data.populations.population_statement import PopulationStatement, population_statement
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task, task_names
from tests.data.own_data import read_back
from tests.seams.own_reader import StripesSource

KINDS = ["virtual", "disjoint", "natural", "shards", "own", "asked"]
NUMBERS = ("most", "shots", "most_shots", "queries", "ways", "authors", "share", "most_records", "megabytes")


def every_statement():
    """Each sentence of each kind, with every choice of its words."""
    for kind, sentences in statements._SENTENCES.items():
        for form, sentence in enumerate(sentences):
            names = [name for name in statements._CHOICES if f"{{{name}}}" in sentence]
            for places in product((0, 1), repeat=len(names)):
                made = PopulationStatement(
                    kind=kind,
                    clients=1200,
                    records=24_000 if "{records}" in sentence or "{images}" in sentence else 0,
                    images=345 if "{images}" in sentence else None,
                    form=form,
                    choices=dict(zip(names, places, strict=True)),
                )
                said = {name: f"{place + 61}" for place, name in enumerate(NUMBERS) if f"{{{name}}}" in made._sentence}
                yield replace(made, numbers=said)


STATEMENTS = [*every_statement()]


def test_every_kind_has_its_sentences_and_every_choice_is_made():
    assert sorted(KINDS) == sorted(statements._SENTENCES)
    # Two choices of three words of clients with data of their own, of those whose rows are placed by a hash, and of
    # three of whole ones; one each where images are private.
    assert [sum(each.kind == kind for each in STATEMENTS) for kind in KINDS] == [2, 2, 26, 3, 1, 1]
    assert len({each.text for each in STATEMENTS}) == len(STATEMENTS)


@pytest.mark.parametrize("own_test", [0.0, 0.25])
def test_every_sentence_is_made_anew_of_the_facts_beside_it(own_test):
    for each in STATEMENTS:
        stated = replace(each, own_test=own_test)
        assert read_back(stated) == stated
        assert stated.text == each.text + kept_back(own_test)


def test_whose_the_clients_are_follows_from_the_sentence():
    """Named by the data: clients of rows, of whole clients, of a layout; the drawers of an alphabet are nobody."""
    words = {"real": "asked by a server", "unknown": "caller's own", "named": "clients that the data name"}
    for each in STATEMENTS:
        said = [whose for whose, text in words.items() if text in each.text] or ["simulated"]
        drawers = "drawers of an alphabet each" in each.text
        assert each.whose == ("named" if drawers else said[0]), each.text


@pytest.mark.parametrize("name", ["clients", "records", "images"])
def test_a_number_of_the_facts_is_the_one_in_the_sentence(name):
    """Of images that recur also how often."""
    said = ("{often}", f"{{{name}}}")
    counted = [each for each in STATEMENTS if getattr(each, name) and any(word in each._sentence for word in said)]
    pairs = [(each.text, replace(each, **{name: 4800}).text) for each in counted]
    assert pairs
    assert all(before != after and ("4,800" in after or "in 14 clients on average" in after) for before, after in pairs)


SHAPE = EpisodeShape(ways=3, shots=2, queries=2)


def pool_of(counts, tmp_path, **given):
    """Classes of so many images, in a file of one image that stands for all."""
    first = tuple(int(each) for each in np.cumsum([0, *counts[:-1]]))
    path = tmp_path / "images.npy"
    np.save(path, np.zeros((sum(counts), 1, 8, 8), dtype=np.uint8))
    names = tuple(f"a{number % 2}/c{number}" for number in range(len(counts)))
    return ClassPool(path=path, names=names, first=first, counts=tuple(counts), **given)


def grouped(pool):
    return replace(pool, groups=tuple(name.split("/")[0] for name in pool.names))


POPULATIONS = {
    "virtual": lambda pool: open_population("virtual", pool, SHAPE, 50, 0),
    "virtual of unequal sizes": lambda pool: open_population("virtual", pool, SHAPE, 50, 0, 3),
    "disjoint": lambda pool: open_population("disjoint", pool, SHAPE, 3, 0),
    "natural": lambda pool: open_population("natural", grouped(pool), SHAPE, 2, 0),
    "shards": lambda pool: ShardPopulation(pool=pool, records=20, clients=6, seed=0),
}


@pytest.mark.parametrize("kind", POPULATIONS)
def test_a_statement_of_private_images_is_the_same_however_many_there_are(kind, tmp_path):
    """Statements leave without noise, before any round."""
    fewer, other = [12] * 11 + [11], [14] * 12 if kind == "natural" else [12] * 10
    stated = []
    for number, counts in enumerate(([12] * 12, fewer, other)):
        (tmp_path / str(number)).mkdir()
        population = POPULATIONS[kind](pool_of(counts, tmp_path / str(number)))
        counted = population_statement(population, published=True)
        assert counted.images == sum(counts)
        assert f"{sum(counts)}" in counted.text
        assert read_back(counted) == counted
        stated.append(population_statement(population))
        assert read_back(stated[-1]) == stated[-1]
    assert stated[0] == stated[1] == stated[2]
    assert (stated[0].images, stated[0].clients_per_image) == (None, None)
    assert "whose number is private" in stated[0].text


def test_only_benchmarks_are_counted():
    """Whatever a reader of one's own reads may be anybody's."""
    found = {name: load_task(name)[0].published for name in task_names()}
    assert all(found.values())
    task = load_task("strokes")[0]
    for reader in ("folder", "manifest", "vectors", "tokens"):
        assert not replace(task, source=OwnSource(reader=reader, path="x")).published
    assert not replace(task, source=StripesSource(reader="tests.seams.own_reader:Stripes", widths=7)).published
