"""One row more, less or other: how much of what a client computes changes, for every layout and kind of labels."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfedmeta.data.episodes import row_layout
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.row_layout import (
    AllRows,
    GroupLayout,
    RoleLayout,
    chosen_rows,
    few_of_labels,
    hashed_rows,
    micro_slots,
)
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.data.populations.natural import simulated_key

KEY = bytes(range(32))
LABELS = ("a", "b", "c")
CLIENT, MICRO = EpisodeShape(ways=3, shots=4, queries=4), EpisodeShape(ways=3, shots=1, queries=1)
PAIRS = EpisodeShape(ways=2, shots=1, queries=2)
ONE = EpisodeShape(ways=1, shots=6, queries=6)
GROUPS = {
    "shared": GroupLayout(client=CLIENT, shape=MICRO, complete=False, shared=True),
    "own": GroupLayout(client=CLIENT, shape=MICRO, complete=False, shared=False),
    "fewer ways": GroupLayout(client=CLIENT, shape=PAIRS, complete=False, shared=False),
    "complete": GroupLayout(client=CLIENT, shape=MICRO, complete=True, shared=False),
    "numbers": GroupLayout(client=ONE, shape=EpisodeShape(ways=1, shots=2, queries=2), complete=False, shared=True),
}
ROLES = {
    "all labels": RoleLayout(client=CLIENT, labels=3),
    "some labels": RoleLayout(client=EpisodeShape(ways=2, shots=4, queries=2), labels=3),
    "numbers": RoleLayout(client=ONE, labels=0),
}
COUNTED = [0]


def pool_of(rows, folder, labels=LABELS, *, numbers=False):
    """The pool of a table of (label, number); its classes by name, as readers have them."""
    by_class = {}
    for label, value in rows:
        # Rows of two classes may hold the same numbers.
        by_class.setdefault("target" if numbers else label, []).append([value, value / 2, 1.0])
    names = sorted(by_class)
    records = np.array([each for name in names for each in by_class[name]], dtype=np.float32).reshape(-1, 3)
    COUNTED[0] += 1
    path = folder / f"{COUNTED[0]}.npy"
    np.save(path, records)
    counts = tuple(len(by_class[name]) for name in names)
    first = tuple(np.cumsum([0, *counts])[:-1].tolist()) if counts else ()
    own = () if numbers else labels
    return ClassPool(path=path, names=tuple(names), first=first, counts=counts, labels=own, targets=numbers)


def table(seed, rows=60, copies=True):
    """Ragged classes, more rows than any layout needs of some, and equal rows among them."""
    draws = np.random.default_rng(seed)
    found = [
        (LABELS[draws.choice(3, p=[0.6, 0.3, 0.1])], float(draws.integers(20 if copies else 10**6)))
        for _ in range(rows)
    ]
    return found


def placed(layout, rows, folder, *, numbers=False, shared=True):
    pool = pool_of(rows, folder, LABELS if shared else (), numbers=numbers)
    choice = chosen_rows(pool, tuple(range(pool.classes)), layout, KEY)
    episode = choice.episode()
    images = np.concatenate([episode.support_images.numpy(), episode.query_images.numpy()])
    labels = np.concatenate([episode.support_labels.numpy(), episode.query_labels.numpy()])
    return [(image.tobytes(), float(label)) for image, label in zip(images, labels, strict=True)], choice


def is_null(record):
    return bool(np.isnan(np.frombuffer(record[0], dtype=np.float32)).any())


def neighbours(rows, seed, most=10):
    """(kind, rows that come or go, another table): rows of a sample deleted, copied, relabelled, exchanged."""
    draws = np.random.default_rng(seed)
    for place in draws.permutation(len(rows))[:most].tolist():
        label, value = rows[place]
        without = rows[:place] + rows[place + 1 :]
        yield "deleted", 1, without
        yield "added", 1, [*rows, (label, float(draws.integers(20)))]
        yield "copied", 1, [*rows, rows[place]]
        other = LABELS[(LABELS.index(label) + 1) % 3]
        yield "relabelled", 2, [*without, (other, value)]
        yield "exchanged", 2, [*without, (other, float(draws.integers(10**6)))]
        yield "exchanged, same label", 2, [*without, (label, float(draws.integers(10**6)))]
    yield "shuffled", 0, [rows[place] for place in draws.permutation(len(rows)).tolist()]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", GROUPS)
def test_a_row_changes_one_group_and_another_row_two(name, seed, tmp_path):
    layout = GROUPS[name]
    how = {"numbers": name == "numbers", "shared": layout.shared}
    slots = micro_slots(layout.client, layout.shape)

    def groups(rows):
        found, _ = placed(layout, rows, tmp_path, **how)
        return [[[found[place] for place in way] for way in own] for own in slots]

    rows = table(seed)
    before = groups(rows)
    for kind, most, other in neighbours(rows, seed):
        after = groups(other)
        assert sum(one != another for one, another in zip(before, after, strict=True)) <= most, kind


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", ROLES)
def test_a_row_exchanges_one_record_of_one_role_and_another_row_two(name, seed, tmp_path):
    layout = ROLES[name]

    def roles(rows):
        found, _ = placed(layout, rows, tmp_path, numbers=name == "numbers")
        end = layout.client.support_records
        # A place without a row is no record.
        kept = [[each for each in part if not is_null(each)] for part in (found[:end], found[end:])]
        return [Counter(part) for part in kept]

    rows = table(seed)
    before = roles(rows)
    for kind, most, other in neighbours(rows, seed):
        after = roles(other)
        pairs = zip(before, after, strict=True)
        assert sum(max((one - other).total(), (other - one).total()) for one, other in pairs) <= most, kind


def test_what_is_placed_is_the_clients_own_and_no_row_is_in_two_groups(tmp_path):
    rows = table(0, copies=False)
    layout = GROUPS["shared"]
    found, choice = placed(layout, rows, tmp_path)
    held = {np.array([value, value / 2, 1.0], np.float32).tobytes(): LABELS.index(label) for label, value in rows}
    used = [[{found[place] for way in own for place in way}] for own in micro_slots(CLIENT, MICRO)]
    flat = [each for own in used for part in own for each in part]
    assert len(flat) == len({*flat}) > 8
    assert all(held[record] == label for record, label in flat)
    assert not choice.null.any()


def test_a_group_without_an_episode_is_null(tmp_path):
    few = [("a", 1.0), ("b", 2.0), ("c", 3.0)]
    for name in ("shared", "own", "complete"):
        _, choice = placed(GROUPS[name], few, tmp_path, shared=GROUPS[name].shared)
        assert choice.null.all()
        episode = choice.episode()
        assert episode.support_images.isnan().all()
    _, choice = placed(GROUPS["shared"], [], tmp_path)
    assert choice.null.all()
    # One label is an episode where labels are shared, and none where they are a client's own.
    many = [("a", float(value)) for value in range(40)]
    assert not placed(GROUPS["shared"], many, tmp_path)[1].null.any()
    assert placed(GROUPS["own"], many, tmp_path, shared=False)[1].null.all()


def test_few_rows_recur_inside_their_group_and_in_one_role_alone(tmp_path):
    whole = EpisodeShape(ways=2, shots=3, queries=3)
    layout = GroupLayout(client=whole, shape=whole, complete=False, shared=False)
    rows = [("a", 1.0), ("a", 2.0), ("b", 3.0), ("b", 4.0), ("b", 5.0)]
    found, choice = placed(layout, rows, tmp_path, shared=False)
    assert not choice.null.any()
    support, query = set(found[:6]), set(found[6:])
    assert support.isdisjoint(query)
    assert len(support) + len(query) == 5


def test_equal_rows_are_interchangeable_and_count_each(tmp_path):
    rows = [("a", 1.0)] * 30 + [("b", 2.0)] * 30
    pool = pool_of(rows, tmp_path)
    hashed = hashed_rows(pool, range(2), KEY)
    assert len({each.tobytes() for each in hashed.hashes}) == 60
    fewer = hashed_rows(pool_of(rows[1:], tmp_path), range(2), KEY)
    every, left = ({each.tobytes() for each in own.hashes} for own in (hashed, fewer))
    assert left < every
    assert len(left) == 59


def test_the_words_of_a_hash_are_apart_and_follow_key_label_and_content(tmp_path):
    rows = [("a", float(value)) for value in range(2000)]
    hashed = hashed_rows(pool_of(rows, tmp_path), range(1), KEY)
    assert len({*hashed.group.tolist()}) == 2000
    words = [hashed.hashes[:, place].astype(np.float64) / 2.0**64 for place in range(4)]
    assert abs(float(hashed.role.mean()) - 0.5) < 0.04
    for one in range(4):
        for other in range(one):
            assert abs(float(np.corrcoef(words[one], words[other])[0, 1])) < 0.08
    for changed in (
        hashed_rows(pool_of(rows, tmp_path), range(1), KEY[::-1]),
        hashed_rows(pool_of([("b", value) for _, value in rows], tmp_path), range(1), KEY),
    ):
        assert {*changed.group.tolist()}.isdisjoint(hashed.group.tolist())


def test_features_are_known_by_their_images(tmp_path):
    """What an encoder makes of an image may differ in its last bits by the company that it was computed in."""
    rows = table(1)
    plain = pool_of(rows, tmp_path)
    features = tmp_path / "features.npy"
    np.save(features, np.random.default_rng(0).normal(size=(len(rows), 8)).astype(np.float32))
    encoded = replace(plain, path=features, plain=(plain.path, plain.first))
    held = range(plain.classes)
    assert (hashed_rows(encoded, held, KEY).hashes == hashed_rows(plain, held, KEY).hashes).all()


def test_looks_follow_the_row_alone(tmp_path):
    """Where a row stands in a role may change with each other row: it must look the same all the same."""
    images = np.random.default_rng(0).integers(0, 256, (60, 1, 8, 8)).astype(np.uint8)
    slots = micro_slots(CLIENT, MICRO)

    def shown(kept, number, layout):
        path, cuts = tmp_path / f"images{number}.npy", [sum(each < end for each in kept) for end in (20, 40, 60)]
        np.save(path, images[kept])
        first = (0, *cuts[:2])
        counts = tuple(end - begin for begin, end in zip(first, cuts, strict=True))
        labels = LABELS if layout is ROLES["all labels"] else ()
        looks = {"flip": True, "shift": 2, "rotations": 4, "labels": labels}
        pool = ClassPool(path=path, names=LABELS, first=first, counts=counts, **looks)
        episode = chosen_rows(pool, (0, 1, 2), layout, KEY).episode()
        every = [each.numpy().tobytes() for each in (*episode.support_images, *episode.query_images)]
        if labels:
            return [Counter(every[: CLIENT.support_records]), Counter(every[CLIENT.support_records :])]
        return [[every[place] for way in own for place in way] for own in slots]

    number = 0
    for layout in (GROUPS["own"], ROLES["all labels"]):
        number += 1
        before = shown(list(range(60)), number, layout)
        for without in range(0, 60, 5):
            number += 1
            after = shown([each for each in range(60) if each != without], number, layout)
            pairs = list(zip(before, after, strict=True))
            assert sum(one != other for one, other in pairs) <= 1
            if layout is ROLES["all labels"]:
                assert all((one - other).total() <= 1 for one, other in pairs)


def test_a_choice_that_counts_is_seen(tmp_path, monkeypatch):
    """Planted: roles by the number of rows of a class in the whole client."""
    honest = row_layout.HashedRows.__dict__["group"].fget

    def by_count(self):
        return honest(self) + np.uint64(len(self.places))

    monkeypatch.setattr(row_layout.HashedRows, "group", property(by_count))
    with pytest.raises(AssertionError):
        test_a_row_changes_one_group_and_another_row_two("shared", 0, tmp_path)


@pytest.mark.parametrize("share", [0.05, 0.34, 0.9])
def test_who_judges_is_decided_row_by_row(share, tmp_path):
    """One row more or less: at most that row changes sides. The last ones of a class would be others."""

    def sides(rows):
        pool = pool_of(rows, tmp_path)
        hashed = hashed_rows(pool, range(pool.classes), KEY)
        judging = hashed.judging(share).tolist()
        images = [pool.images[place].tobytes() for place in hashed.places.tolist()]
        trained = {image for image, judges in zip(images, judging, strict=True) if not judges}
        choice = chosen_rows(replace(pool, own_test=share), tuple(range(pool.classes)), GROUPS["shared"], KEY)
        used = {pool.images[place].tobytes() for place in choice.places[~choice.null, 0].tolist()}
        assert used <= trained
        assert used or share > 0.5
        return Counter(zip(images, judging, strict=True))

    rows = table(2)
    before = sides(rows)
    for kind, most, other in neighbours(rows, 2, most=6):
        after = sides(other)
        assert max((before - after).total(), (after - before).total()) <= most, kind


def test_the_share_that_judges_is_that_of_the_settings_and_apart_from_group_role_and_order(tmp_path):
    hashed = hashed_rows(pool_of([("a", float(value)) for value in range(2000)], tmp_path), range(1), KEY)
    judging = hashed.judging(0.34)
    assert abs(judging.mean() - 0.34) < 0.04
    assert hashed.training(0.0) is hashed
    kept = hashed.training(0.34)
    assert kept.places.tolist() == hashed.places[~judging].tolist()
    assert np.array_equal(kept.hashes, hashed.hashes[~judging])
    for word in range(4):
        of_word = hashed.hashes[:, word].astype(np.float64) / 2.0**64
        assert abs(of_word[judging].mean() - 0.5) < 0.05


def test_a_class_may_be_named_by_any_bytes(tmp_path):
    pool = replace(pool_of(table(0), tmp_path, ()), names=("caf\udce9", "b", "c"))
    chosen_rows(pool, (0, 1, 2), GROUPS["own"], KEY)


@pytest.mark.parametrize("rare", LABELS)
def test_which_labels_an_episode_has_does_not_follow_from_those_that_are_held(rare, tmp_path):
    """Of more labels than an episode has classes the key decides: the only row of one is no more than a row."""
    others = [(label, float(number)) for label in LABELS if label != rare for number in range(9)]
    before, _ = placed(ROLES["some labels"], [*others, (rare, 7.5)], tmp_path)
    after, _ = placed(ROLES["some labels"], others, tmp_path)
    assert sum(one[0] != other[0] for one, other in zip(before, after, strict=True)) <= 1


def test_of_two_rows_of_a_class_one_judges_whatever_the_sizes(tmp_path):
    shape = EpisodeShape(ways=1, shots=6, queries=1)
    layout = GroupLayout(client=shape, shape=shape, complete=False, shared=True)
    found, _ = placed(layout, [("a", 1.0), ("a", 2.0)], tmp_path)
    support, query = {image for image, _ in found[:6]}, {image for image, _ in found[6:]}
    assert len(support) == len(query) == 1
    assert support != query


def test_clients_of_a_simulation_have_keys_of_their_own(tmp_path):
    """Equal rows of two clients are grouped apart; a client's key is the same in every round."""
    rows = [(label, float(number)) for label in LABELS for number in range(12)]
    pool = pool_of(rows, tmp_path)
    keys = [simulated_key(0, client) for client in (0, 1, 0)]
    assert keys[0] == keys[2] != keys[1]
    first, second = (chosen_rows(pool, (0, 1, 2), GROUPS["shared"], key).episode() for key in keys[:2])
    assert not np.array_equal(first.support_images.numpy(), second.support_images.numpy())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("groups", [1, 4])
def test_a_row_changes_one_pair_and_all_others_keep_theirs(seed, groups, tmp_path):
    layout, rows = AllRows(groups=groups), table(seed)

    def held(rows):
        found, choice = placed(layout, rows, tmp_path, shared=False)
        assert choice.null.tolist() == [True, True, *[False] * len(rows)]
        pairs = Counter(frozenset(found[place : place + 2]) for place in range(2, choice.support, 2))
        return pairs, Counter(found[2:])

    before, all_of_them = held(rows)
    assert all_of_them.total() == len(rows)
    for kind, most, other in neighbours(rows, seed):
        after, _ = held(other)
        assert max((before - after).total(), (after - before).total()) <= most, kind


def test_pairs_are_of_one_class_and_group_and_at_most_one_of_each(tmp_path):
    rows, groups = table(0, rows=200), 4
    _, choice = placed(AllRows(groups=groups), rows, tmp_path, shared=False)
    hashed = hashed_rows(choice.pool, (0, 1, 2), KEY)
    by_place = dict(zip(hashed.places.tolist(), range(len(hashed.places)), strict=True))
    chosen = [by_place[place] for place in choice.places[2 : choice.support, 0].tolist()]
    cells = [(int(hashed.classes[row]), int(hashed.group[row] % groups)) for row in chosen]
    assert cells[::2] == cells[1::2]
    assert len({*cells}) == len(cells) // 2 == 3 * groups
    for cell, pair in zip(cells[::2], zip(chosen[::2], chosen[1::2], strict=True), strict=True):
        others = [
            row
            for row in hashed.by_order.tolist()
            if (int(hashed.classes[row]), int(hashed.group[row] % groups)) == cell
        ]
        assert [*pair] == others[:2]


@pytest.mark.parametrize("numbers", [False, True])
def test_all_rows_without_pairs_keep_their_labels_and_an_empty_client_is_one_null_record(numbers, tmp_path):
    layout, rows = AllRows(groups=0), table(1)
    found, choice = placed(layout, rows, tmp_path, numbers=numbers)
    records = [(np.array([v, v / 2] if numbers else [v, v / 2, 1.0], np.float32).tobytes(), label) for label, v in rows]
    due = Counter((record, 1.0 if numbers else float(LABELS.index(label))) for record, label in records)
    assert Counter(found[1:]) == due
    assert choice.support == len(found)
    for empty in (layout, AllRows(groups=3)):
        _, choice = placed(empty, [], tmp_path, numbers=numbers)
        assert choice.null.all()
        assert choice.episode().support_images.isnan().all()


WALKED: dict[str, row_layout.Layout] = {
    "shared": GROUPS["shared"],
    "complete": GROUPS["complete"],
    "roles": ROLES["all labels"],
}


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 8, 20])
@pytest.mark.parametrize("name", WALKED)
def test_no_more_of_a_message_holds_a_label_than_its_owner_is_told(name, count, tmp_path):
    """In so many micro-episodes, or places, at most; what is said of few rows is said where it matters."""
    layout: Any = WALKED[name]
    label = LABELS.index("c")
    rows = [*(("ab"[n % 2], float(n)) for n in range(60)), *(("c", float(n)) for n in range(100, 100 + count))]
    found, choice = placed(layout, rows, tmp_path)
    holds = [not is_null(record) and value == label for record, value in zip(found, choice.labels, strict=True)]
    slots = micro_slots(CLIENT, MICRO) if name != "roles" else [[[place]] for place in range(len(found))]
    real = sum(any(holds[place] for way in slot for place in way) for slot in slots)
    if name == "complete":  # which needs all labels, of a client's own or not
        real = sum(all(not is_null(found[place]) for way in slot for place in way) for slot in slots)
    most, every, what = layout.uses(count)
    assert real <= most <= every
    assert every == (8 if name == "roles" else len(slots))
    said = few_of_labels(layout, {"a": 30, "b": 30} | ({"c": count} if count else {}), LABELS)
    if not count:
        assert said == ["none of c: the message says nothing of what this client lacks"]
    elif 2 * most < every:
        assert said == [f"{count} of c: at most {most} of {every} {what} hold that label"]
    else:
        assert not said


@pytest.mark.parametrize("groups", [0, 4])
def test_of_all_rows_only_an_absent_label_is_said(groups):
    assert few_of_labels(AllRows(groups=groups), {"a": 1}, ("a",)) == []
    (said,) = few_of_labels(AllRows(groups=groups), {"a": 1}, LABELS)
    assert said.startswith("none of b, c:")
