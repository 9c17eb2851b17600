"""Whole clients: all records of a client, split within its classes, up to public limits."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpfedmeta.analytics.client_answers import holdings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes import gpu_sampling
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.gpu_sampling import drawn
from dpfedmeta.data.episodes.shape import EpisodeShape, WholeShape
from dpfedmeta.data.episodes.whole_episode import choose_whole, split_whole
from dpfedmeta.data.populations.natural import RealPopulation
from dpfedmeta.data.populations.population import clients_digest
from dpfedmeta.data.populations.population_statement import population_statement
from dpfedmeta.data.populations.whole_population import (
    AbleClients,
    WholePopulation,
    able_numbers,
    check_whole,
    everybody,
    open_whole,
)
from tests.data.own_data import read_back

SHAPE = WholeShape(support_share=0.5, most_ways=20, most_records=400)
PARTS = ("support_images", "support_labels", "query_images", "query_labels")


def pool_of(folder, held, **more):
    """Classes of clients, every image with bytes of its own."""
    cells = [(client, count) for client, counts in held.items() for count in counts]
    counts = tuple(count for _, count in cells)
    images = np.zeros((sum(counts), 1, 4, 4), dtype=np.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = np.arange(sum(counts)) % 256, np.arange(sum(counts)) // 256
    np.save(folder / "images.npy", images)
    return ClassPool(
        path=folder / "images.npy",
        names=tuple(f"class{number}" for number in range(len(cells))),
        first=tuple(np.cumsum([0, *counts])[:-1].tolist()),
        counts=counts,
        clients=tuple(client for client, _ in cells),
        **more,
    )


@pytest.fixture
def pool(tmp_path):
    return pool_of(tmp_path, {"ann": [7, 2, 1, 4], "bob": [30, 30, 30], "cid": [1, 9], "dan": [2, 2]})


@settings(deadline=None, max_examples=150)
@given(
    counts=st.lists(st.integers(0, 30), max_size=12),
    share=st.floats(0.01, 0.99),
    most_ways=st.integers(2, 8),
    spare=st.integers(0, 60),
    seed=st.integers(0, 5),
)
def test_all_that_the_limits_allow_is_used_and_nothing_twice(counts, share, most_ways, spare, seed):
    shape = WholeShape(support_share=share, most_ways=most_ways, most_records=2 * most_ways + spare)
    held, start = [], 0
    for count in counts:
        held.append(np.arange(start, start + count))
        start += count
    split = split_whole(np.random.default_rng(seed), held, shape)
    able = [place for place, count in enumerate(counts) if count >= 2]
    if len(able) < 2:
        assert split is None
        return
    assert len(split.classes) == len(set(split.classes)) == min(len(able), most_ways)
    assert set(split.classes) <= set(able)
    sizes = [len(own) + len(other) for own, other in zip(split.support, split.query, strict=True)]
    for place, own, other in zip(split.classes, split.support, split.query, strict=True):
        assert len(own) >= 1
        assert len(other) >= 1
        assert len({*own.tolist(), *other.tolist()}) == len(own) + len(other)
        assert {*own.tolist(), *other.tolist()} <= {*held[place].tolist()}
        # The share, to the next record below.
        assert len(own) == max(1, min(len(own) + len(other) - 1, int(share * (len(own) + len(other)) + 1e-9)))
    wanted = [counts[place] for place in split.classes]
    assert sum(sizes) <= shape.most_records
    if sum(wanted) <= shape.most_records:
        assert sizes == wanted
    else:
        # One more record of every class that lost some would be too many.
        limit = max(sizes)
        assert sizes == [min(count, limit) for count in wanted]
        assert sum(min(count, limit + 1) for count in wanted) > shape.most_records


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    most_ways=st.integers(2, 8),
    seed=st.integers(0, 9),
)
def test_whoever_takes_part_with_a_public_list_is_judged_on_something(counts, most_ways, seed):
    shape = WholeShape(support_share=0.5, most_ways=most_ways, most_records=4 * most_ways)
    split = split_whole(np.random.default_rng(seed), [np.arange(count) for count in counts], shape, shared=True)
    assert (split is None) == (max(counts) < 2)
    if split is not None:
        assert len(split.classes) == len({*split.classes}) == min(len(counts), most_ways)
        assert all(len(own) for own in split.support)
        assert sum(map(len, split.query)) > 0


@pytest.mark.parametrize(("share", "count", "support"), [(0.29, 100, 29), (0.5, 3, 1), (0.5, 2, 1), (0.99, 5, 4)])
def test_a_share_of_records_is_a_whole_number(share, count, support):
    assert replace(SHAPE, support_share=share).support_of(count) == support


def test_a_client_is_the_same_one_as_with_fixed_episodes(pool):
    clients = WholePopulation(pool=pool, shape=SHAPE, clients=4, seed=3)
    fixed = RealPopulation(pool=pool, shape=EpisodeShape(ways=2, shots=1, queries=1), clients=4, seed=3)
    assert [holdings(clients, client) for client in range(4)] == [holdings(fixed, client) for client in range(4)]
    assert clients.most_clients() == 4


def test_every_record_of_a_sound_class_is_in_the_episode(pool):
    clients = WholePopulation(pool=pool, shape=SHAPE, clients=4, seed=3)
    found = {}
    for client in range(4):
        held = sorted(holdings(clients, client).values())
        if held == [1, 9]:
            with pytest.raises(InputError, match=f"client {client} has no 2 classes with 2 records each"):
                clients.episode(client)
            assert not clients.is_able(client)
            continue
        episode = clients.episode(client)
        images = torch.cat([episode.support_images, episode.query_images])
        assert len(torch.unique(images.flatten(1), dim=0)) == len(images)
        both = Counter([*episode.support_labels.tolist(), *episode.query_labels.tolist()])
        assert sorted(both.values()) == [count for count in held if count > 1]
        assert torch.equal(episode.support_labels, episode.support_labels.sort().values)
        found[tuple(held)] = episode
    assert len(found) == 3
    assert Counter(found[(1, 2, 4, 7)].support_labels.tolist()).total() == 3 + 1 + 2
    with pytest.raises(IndexError):
        clients.episode(4)


def test_a_client_depends_on_no_other_one(tmp_path, pool):
    """Others come and go, grow and shrink: a client's episode is of its own records and number alone."""
    (tmp_path / "b").mkdir()
    other = pool_of(tmp_path / "b", {"ann": [7, 2, 1, 4], "bob": [3, 3], "cid": [5, 5], "dan": [9, 2]})
    one, two = (WholePopulation(pool=each, shape=SHAPE, clients=4, seed=3) for each in (pool, other))
    (number,) = (client for client in range(4) if sorted(holdings(one, client).values()) == [1, 2, 4, 7])
    for part in PARTS:
        assert torch.equal(getattr(one.episode(number), part), getattr(two.episode(number), part))


def test_another_split_for_evaluation(pool):
    clients = everybody(pool, SHAPE, 0, 1)
    assert able_numbers(clients) == tuple(c for c in range(4) if sorted(holdings(clients, c).values()) != [1, 9])
    able = AbleClients(of=clients)
    assert able.clients == 3
    client = able_numbers(clients)[0]
    assert torch.equal(able.episode(0).support_images, clients.episode(client).support_images)
    splits = [clients.split_again(client, turn).places[:, 0].tolist() for turn in range(4)]
    assert len({tuple(each) for each in splits}) > 1


@pytest.mark.parametrize("given", [{}, {"rotations": 4, "flip": True}, {"shift": 1, "rotations": 4, "flip": True}])
def test_a_device_makes_the_same_records_of_clients_of_any_size(tmp_path, monkeypatch, given):
    monkeypatch.setattr(gpu_sampling, "_MOST_VALUES", 40 * 16)
    held = {f"p{number}": [2 + number % 5, 3, 2 + number] for number in range(9)}
    clients = WholePopulation(pool=pool_of(tmp_path, held, **given), shape=SHAPE, clients=9, seed=1)
    found = list(drawn([clients.chosen(client) for client in range(9)], torch.device("cpu")))
    assert len(found) == 9
    for client, episode in enumerate(found):
        for part in PARTS:
            assert torch.equal(getattr(episode, part), getattr(clients.episode(client), part)), (client, part)


def drawers(tmp_path, counts=(6, 6, 6, 6, 6)):
    """Two alphabets, of three and of two characters, by six drawers."""
    pool = pool_of(tmp_path, {"x": list(counts)})
    return replace(pool, clients=(), groups=("latin", "latin", "latin", "greek", "greek"))


def test_drawers_of_an_alphabet_hold_all_its_characters(tmp_path):
    pool = drawers(tmp_path)
    clients = everybody(pool, SHAPE, 5, 2)
    assert clients.clients == 6
    assert read_back(population_statement(clients)) == population_statement(clients)
    held = [holdings(clients, client) for client in range(6)]
    assert Counter(len(own) for own in held) == {3: 3, 2: 3}
    assert all(count == 2 for own in held for count in own.values())
    places = [each for client in range(6) for each in clients.chosen(client).places[:, 0].tolist()]
    assert sorted(places) == list(range(30))
    # The same drawers in every class of a client.
    inside = [{place % 6 for place in clients.chosen(client).places[:, 0].tolist()} for client in range(6)]
    assert all(len(own) == 2 for own in inside)


def test_what_cannot_be_whole_clients_is_said(tmp_path, pool):
    with pytest.raises(InputError, match="does not say whose which record is"):
        WholePopulation(pool=replace(pool, clients=()), shape=SHAPE, clients=1, seed=0)
    (tmp_path / "b").mkdir()
    poor = pool_of(tmp_path / "b", {"ann": [1, 9], "bob": [1]})
    with pytest.raises(InputError, match=r"none of the 2 client\(s\) of the val split holds 2 classes with 2 records"):
        check_whole(poor, SHAPE, "val", 1)
    with pytest.raises(InputError, match=r"population\.kind = virtual with population\.episodes = whole"):
        open_whole("virtual", pool, SHAPE, 4, 0, 1)
    with pytest.raises(InputError, match=r"population\.clients = 5: the training part of the data names 4 clients"):
        open_whole("natural", pool, SHAPE, 5, 0, 1)
    (tmp_path / "c").mkdir()
    with pytest.raises(InputError, match=r"has, with 2 drawers \(task\.shots \+ task\.queries\) each, 6 clients"):
        open_whole("natural", drawers(tmp_path / "c"), SHAPE, 7, 0, 2)


def test_the_statement_has_public_constants_alone(tmp_path, pool):
    clients = open_whole("natural", pool, SHAPE, 4, 0, 1)
    said = population_statement(clients)
    assert "4 clients that the data name; each uses all its records, 50% of a class as support" in said.text
    assert "up to 20 classes and 400 records (0.0256 MB in memory)" in said.text
    assert (said.kind, said.records, said.images) == ("natural", 0, None)
    assert read_back(said) == said
    (tmp_path / "b").mkdir()
    other = pool_of(tmp_path / "b", {"ann": [2, 2], "bob": [3, 3], "cid": [5, 5], "dan": [9, 2]})
    assert population_statement(open_whole("natural", other, SHAPE, 4, 0, 1)).text == said.text
    fewer = population_statement(open_whole("natural", pool, SHAPE, 3, 0, 1))
    assert "3 clients that the data name, chosen from 4 by run.seed" in fewer.text
    assert read_back(fewer) == fewer


def test_whatever_decides_over_an_episode_is_in_the_digest(pool):
    clients = WholePopulation(pool=pool, shape=SHAPE, clients=4, seed=0)
    changed = [
        replace(clients, seed=1),
        replace(clients, authors=2),
        replace(clients, clients=3),
        *(
            replace(clients, shape=replace(SHAPE, **{name: value}))
            for name, value in {"support_share": 0.4, "most_ways": 3, "most_records": 40}.items()
        ),
    ]
    assert len({clients_digest(each) for each in (clients, *changed)}) == 7


@pytest.mark.parametrize("rotations", [1, 4])
@pytest.mark.parametrize("changes", [{}, {"flip": True, "shift": 2}])
def test_a_class_of_a_whole_client_is_turned_as_one_and_its_images_are_changed_one_by_one(tmp_path, rotations, changes):
    """An image that is turned otherwise than its class would be a record of another class."""
    pool, seen = pool_of(tmp_path, {"ann": [6, 6, 6]}, rotations=rotations, **changes), Counter()
    for seed in range(12):
        chosen = choose_whole(pool, np.random.default_rng(seed), SHAPE, [(n, np.arange(6)) for n in range(3)])
        turns = np.asarray(chosen.turns)
        for label in range(3):
            (turn,) = {*turns[chosen.labels == label].tolist()}
            seen[turn] += 1
        # Each image is one record of its own class, in one of the two sets.
        assert sorted(chosen.places[:, 0].tolist()) == list(range(18))
        assert len({(label, place // 6) for label, place in zip(chosen.labels, chosen.places[:, 0], strict=True)}) == 3
        assert (chosen.flips is None) == (chosen.shifts is None) == (not changes)
        if changes:
            assert chosen.flips.shape == (18, 1)
            assert 0 < chosen.flips.sum() < 18
            assert {*np.unique(chosen.shifts).tolist()} <= {-2, -1, 0, 1, 2}
            assert len(np.unique(chosen.shifts, axis=0)) > 3
    assert set(seen) == set(range(rotations))


LABELS = ("class0", "class1", "class2", "class3", "class4")


def listed(pool):
    """The same classes by names of one list: what a client's first class is called, all clients call so."""
    numbers = Counter()
    names = []
    for client in pool.clients:
        names.append(LABELS[numbers[client]])
        numbers[client] += 1
    return replace(pool, names=tuple(names), labels=LABELS)


def test_with_a_public_list_every_record_is_used_and_keeps_its_label(pool):
    """One class is enough, and the only record of a class is support."""
    shared = listed(pool)
    clients = everybody(shared, SHAPE, 3, 1)
    assert able_numbers(clients) == (0, 1, 2, 3)
    for client in range(4):
        held, chosen, episode = holdings(clients, client), clients.chosen(client), clients.episode(client)
        assert len(chosen.places) == sum(held.values())
        assert len({*chosen.places[:, 0].tolist()}) == len(chosen.places)
        labels = torch.cat([episode.support_labels, episode.query_labels])
        assert Counter(LABELS[label] for label in labels.tolist()) == held
        assert labels.tolist() == shared.listed(chosen.places[:, 0]).tolist()
        once = {LABELS.index(name) for name, count in held.items() if count == 1}
        assert once <= {*episode.support_labels.tolist()} - {*episode.query_labels.tolist()}
        assert len(episode.query_labels) > 0
    assert read_back(population_statement(clients)) == population_statement(clients)
    said = population_statement(clients).text
    assert "one that has no 2 records (of one class, where there are classes) counts as zero" in said


def test_nobody_with_a_record_of_each_class_alone_takes_part(tmp_path):
    poor = listed(pool_of(tmp_path, {"ann": [1, 1, 1], "bob": [1]}))
    with pytest.raises(InputError, match=r"none of the 2 client\(s\) of the val split holds 2 records \(of one class"):
        check_whole(poor, SHAPE, "val", 1)


def test_numbers_to_predict_stay_with_their_records(tmp_path):
    """They stand behind the numbers of a vector; all records of a client are one class."""
    vectors = np.random.default_rng(0).normal(size=(17, 4)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors)
    pool = ClassPool(path=tmp_path / "vectors.npy", names=("target",) * 3, first=(0, 5, 6), counts=(5, 1, 11),
                     clients=("ann", "bob", "cid"), targets=True)  # fmt: skip
    clients = everybody(pool, SHAPE, 3, 1)
    sizes = {}
    for client in able_numbers(clients):
        episode = clients.episode(client)
        rows = torch.cat([
            torch.cat([episode.support_images, episode.support_labels[:, None]], 1),
            torch.cat([episode.query_images, episode.query_labels[:, None]], 1),
        ])  # fmt: skip
        places = clients.chosen(client).places[:, 0]
        assert torch.equal(rows, torch.from_numpy(vectors[places]))
        sizes[len(rows)] = len(episode.support_labels)
    assert sizes == {5: 2, 11: 5}
