"""Every sentence that a run may state of its clients is recognised, and none with another word or number."""

import re
from dataclasses import replace

import numpy as np
import pytest
from own_data import is_due

from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations import population_statement as statements
from dpfedmeta.data.populations.disjoint import ShardPopulation
from dpfedmeta.data.populations.own_test import kept_back
from dpfedmeta.data.populations.population import open_population
from dpfedmeta.data.populations.population_statement import population_statement, says_what_it_states
from dpfedmeta.data.task import OwnSource
from dpfedmeta.data.task_file import load_task, task_names
from tests.seams.own_reader import StripesSource

BESIDE = {"clients": 1200, "records": 24_000, "images": 345}


def beside(form):
    """Numbers stored beside a sentence: of private images none."""
    return BESIDE | {"images": 345 if "{images}" in form else None}


NUMBERS = ("7", "12,345", "0.0012", "1.2e-05", "33.3333", "1e+03")
KINDS = ["virtual", "disjoint", "natural", "shards", "own", "asked"]
FORMS = [(kind, form) for kind in KINDS for form in statements._forms(kind)]


def filled(form, number="7", **beside):
    shown = {name: f"{value:,}" for name, value in (BESIDE | beside).items()}
    return re.sub(r"\{(\w+)\}", lambda found: shown.get(found[1], number), form)


def test_every_kind_has_its_sentences_and_every_choice_is_made():
    assert sorted(KINDS) == sorted(statements._SENTENCES)
    # Two choices of three words of clients with data of their own, of those whose rows are placed by a hash, and of
    # three of whole ones; one each where images are private.
    assert [len([*statements._forms(kind)]) for kind in KINDS] == [2, 2, 26, 3, 1, 1]
    assert not [form for _, form in FORMS if re.search("[A-Z]{2,}}", form)]


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("own_test", [0.0, 0.25])
def test_every_sentence_is_recognised_with_whatever_numbers(number, own_test):
    for kind, form in FORMS:
        text = filled(form, number) + kept_back(own_test)
        assert says_what_it_states({"kind": kind, "text": text, **beside(form)}, own_test), text


@pytest.mark.parametrize(("kind", "form"), FORMS)
def test_no_other_word_number_kind_or_end_is(kind, form):
    text = filled(form)
    said = {"kind": kind, "text": text, **beside(form)}
    for other in (f"{text}; nothing can be learned", text[:-1], f"about {text}", text.replace("client", "patient")):
        assert not says_what_it_states(said | {"text": other}, 0.0)
    for name in BESIDE:
        for value in (7, None):
            # A number of images that the sentence does not say stands nowhere else either.
            due = f"{{{name}}}" not in form and not (name == "images" and value)
            assert says_what_it_states(said | {name: value}, 0.0) is due
    assert not says_what_it_states(said, 0.25)
    assert not says_what_it_states(said | {"text": text + kept_back(0.25)}, 0.0)
    for another in {*KINDS, "real"} - {kind}:
        assert not says_what_it_states(said | {"kind": another}, 0.0)


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
        assert is_due(counted, counted.kind)
        stated.append(population_statement(population))
        assert is_due(stated[-1], counted.kind)
        assert not is_due(replace(stated[-1], images=sum(counts)), counted.kind)
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
