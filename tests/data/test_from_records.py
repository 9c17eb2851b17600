"""A mapping from each client to its records and targets, as whole clients."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from own_data import Named

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import EpisodeShape, WholeShape
from dpfedmeta.data.episodes.targets import TargetRange
from dpfedmeta.data.populations.from_pairs import from_pairs
from dpfedmeta.data.populations.from_records import RecordsPopulation
from dpfedmeta.data.populations.population import clients_digest

SHAPE = WholeShape(support_share=0.5, most_ways=5, most_records=30)


def records(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def mapping():
    return {
        "ann": (records(6), ["cat", "dog", "cat", "dog", "cat", "eel"]),
        7: (torch.from_numpy(records(4)), torch.tensor([3, 3, 9, 9])),
        "lists": ([[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 1, 0]], [0, 1, 0, 1]),
        "bytes": (np.full((4, 1, 2, 2), 255, dtype=np.uint8), [0, 0, 1, 1]),
    }


def made(held=None, **shape):
    return RecordsPopulation(held=mapping() if held is None else held, shape=replace(SHAPE, **shape), seed=0)


def test_records_are_used_as_they_are_with_the_classes_of_each_client():
    clients = made()
    assert clients.clients == 4
    ann = clients.episode(0)
    both = Counter([*ann.support_labels.tolist(), *ann.query_labels.tolist()])
    assert sorted(both.values()) == [2, 3]
    given = {tuple(row) for row, name in zip(records(6).tolist(), mapping()["ann"][1], strict=True) if name != "eel"}
    assert {tuple(row) for row in torch.cat([ann.support_images, ann.query_images]).tolist()} == given
    # A record keeps the class that it came with.
    names = dict(zip(map(tuple, records(6).tolist()), mapping()["ann"][1], strict=True))
    of_label = {}
    for images, labels in ((ann.support_images, ann.support_labels), (ann.query_images, ann.query_labels)):
        for row, label in zip(images.tolist(), labels.tolist(), strict=True):
            of_label.setdefault(label, set()).add(names[tuple(row)])
    assert sorted(of_label.values(), key=str) == [{"cat"}, {"dog"}]
    assert clients.episode(3).support_images.max() == 1.0
    assert [len(clients.episode(client).support_labels) for client in range(4)] == [2, 2, 2, 2]
    with pytest.raises(IndexError):
        clients.episode(4)


@pytest.mark.parametrize(
    ("held", "why"),
    [
        ((records(4), [0, 0, 1]), "4 records, but 3 targets"),
        ((records(4), [0, 0, 0, 1]), "no 2 classes with 2 records each"),
        ((records(4), [0.5, 0, 1, 1]), r"labels are not whole numbers \(first: 0.5\)"),
        ((records(4), [float("nan"), 0, 1, 1]), "labels hold NaN"),
        ((records(4), [-1, 0, 1, 1]), r"labels are negative \(first: -1\)"),
        ((np.full((4, 1, 2, 2), 3.0), [0, 0, 1, 1]), "images hold 3 to 3"),
        ((np.full((4, 3), -1e6), [0, 0, 1, 1]), "vectors hold numbers up to 1e\\+06, more than 10,000"),
        ((records(4), ["cat", "cat", "Cat", "Cat"]), "targets: 1 name\\(s\\) in two spellings: class 'cat'"),
    ],
)
def test_what_is_wrong_with_a_client_is_for_its_owner(held, why):
    with pytest.raises(InputError, match=f"client 0: {why}"):
        made({"one": held}).episode(0)
    ((name, said),) = made({"one": held}).problems()
    assert name == "one"
    assert why.replace("\\", "") in said


def test_the_owner_is_told_of_every_problem_before():
    held = {**mapping(), "text": (["a", "b"], [0, 1]), "one": records(3)}
    held["infinite"] = (np.full((4, 3), np.inf), [0, 0, 1, 1])
    found = dict(made(held).problems())
    assert found.keys() == {"bytes", "text", "one", "infinite"}
    assert found["infinite"] == "records hold NaN or infinity"
    assert found["bytes"] == "records of form (1, 2, 2), but the first client's have {(3,)}"
    assert dict(made({"a": mapping()["ann"]}).problems()) == {}


def test_another_record_target_name_or_order_is_other_data():
    held = mapping()
    other = {**held, "ann": (held["ann"][0] + 1, held["ann"][1])}
    relabelled = {**held, "ann": (held["ann"][0], ["cat"] * 5 + ["eel"])}
    renamed = {("bob" if name == "ann" else name): own for name, own in held.items()}
    turned = dict(reversed(held.items()))
    digests = [clients_digest(made(each)) for each in (held, other, relabelled, renamed, turned)]
    digests += [clients_digest(made(held, support_share=0.4)), clients_digest(replace(made(held), seed=1))]
    assert len(set(digests)) == 7
    assert clients_digest(made()) == digests[0]
    assert isinstance(clients_digest(made({"odd": 3})), str)


@pytest.mark.parametrize(
    "form", [torch.bfloat16, torch.float16, torch.float32, torch.uint8, torch.int64, "needs a gradient"]
)
def test_whatever_an_episode_reads_is_in_the_digest(form):
    """Tensors that numpy cannot hold are read too: a resumed run has to see that they changed."""
    grad = form == "needs a gradient"

    def held(first):
        given = torch.full((6, 3), 1.0).index_put((torch.tensor(0), torch.tensor(0)), torch.tensor(float(first)))
        given = given.requires_grad_() if grad else given.to(form)
        return made({"ann": (given, [0, 0, 0, 1, 1, 1])})

    one, other = held(0), held(1)
    assert not dict(one.problems())
    assert not torch.equal(one.episode(0).support_images, other.episode(0).support_images) or not torch.equal(
        one.episode(0).query_images, other.episode(0).query_images
    )
    assert clients_digest(one) == clients_digest(held(0)) != clients_digest(other)
    if form is torch.float32:
        # Arrays and tensors of one type and content are the same data.
        arrays = made({"ann": (one.held["ann"][0].numpy(), [0, 0, 0, 1, 1, 1])})
        assert clients_digest(arrays) == clients_digest(one)


def test_the_type_of_a_tensor_is_in_the_digest():
    """Bytes become numbers in [0, 1], and numbers stay as they are."""
    given, kinds = torch.ones(6, 3), (torch.uint8, torch.int64, torch.bfloat16, torch.float32, torch.float64)
    digests = [clients_digest(made({"ann": (given.to(kind), [0, 0, 0, 1, 1, 1])})) for kind in kinds]
    assert len(set(digests)) == len(kinds)


def test_columns_of_pandas_are_read_and_known_by_their_values():
    """They are arrays of objects, of which every process has others in other places."""
    texts = ["a class"] * 3 + ["another class"] * 3
    whole = [1000] * 3 + [2000] * 3
    for targets in (texts, whole):
        given = np.empty(6, dtype=object)
        copies = [made({"ann": (records(6), given.copy())}) for _ in range(2)]
        for each in copies:
            for place, value in enumerate(targets):
                # Another object of the same value.
                each.held["ann"][1][place] = (str if targets is texts else int)(str(value)[:1] + str(value)[1:])
        plain = made({"ann": (records(6), targets)})
        assert not dict(copies[0].problems())
        assert torch.equal(copies[0].episode(0).support_images, plain.episode(0).support_images)
        assert clients_digest(copies[0]) == clients_digest(copies[1])
    mixed = np.array(["a", 1, "a", 1], dtype=object)
    assert "labels are not numbers" in dict(made({"ann": (records(4), mixed)}).problems())["ann"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", range(4))
def test_one_number_that_is_none_is_told_wherever_it_stands(value, place):
    """In the support set or the query set, which the split decides."""
    values = records(4)
    values[place, place % 3] = value
    assert dict(made({"one": (values, [0, 0, 1, 1])}).problems()) == {"one": "records hold NaN or infinity"}


LIST = ("sitting", "walking", "7")


def test_labels_of_a_public_list_are_given_by_their_names():
    held = {
        "ann": (records(4), ["walking", "walking", "sitting", "walking"]),
        "bob": (records(3, 1), np.array([7, 7, 7])),
        "eve": (records(3, 1), np.array([7.0, 7.0, 7.0])),
    }
    clients = replace(made(held), labels=LIST)
    assert torch.equal(clients.episode(1).query_labels, clients.episode(2).query_labels)
    ann, bob = clients.episode(0), clients.episode(1)
    of_record = dict(zip(map(tuple, records(4).tolist()), [1, 1, 0, 1], strict=True))
    for images, labels in ((ann.support_images, ann.support_labels), (ann.query_images, ann.query_labels)):
        assert [of_record[tuple(row)] for row in images.tolist()] == labels.tolist()
    assert len(ann.support_labels) + len(ann.query_labels) == 4
    assert {*bob.support_labels.tolist(), *bob.query_labels.tolist()} == {2}
    assert clients_digest(clients) != clients_digest(replace(clients, labels=LIST[::-1]))
    wrong = replace(made({"a": (records(2), ["walking", "flying"])}), labels=LIST)
    with pytest.raises(InputError, match=r"label 'flying' is not in the task's public list \(sitting, walking, 7\)"):
        wrong.episode(0)
    with pytest.raises(InputError, match="no 2 records"):
        replace(made({"a": (records(2), ["walking", "sitting"])}), labels=LIST).episode(0)


def test_numbers_to_predict_are_scaled_by_public_constants():
    known = TargetRange(centre=20, scale=4, lowest=0, highest=40)
    held = {"ann": (records(5), [20.0, 24, 16, 40, 0])}
    episode = replace(made(held), range=known).episode(0)
    of_record = dict(zip(map(tuple, records(5).tolist()), [0.0, 1, -1, 5, -5], strict=True))
    for images, numbers in (
        (episode.support_images, episode.support_labels),
        (episode.query_images, episode.query_labels),
    ):
        assert [of_record[tuple(row)] for row in images.tolist()] == numbers.tolist()
    assert (len(episode.support_labels), len(episode.query_labels)) == (2, 3)
    for odd, why in (([1, 41], "target 41 is missing, or outside the public range"), ([1, None], "target nan"),
                     (["a", "b"], "targets are not numbers")):  # fmt: skip
        with pytest.raises(InputError, match=why):
            replace(made({"a": (records(2), odd)}), range=known).episode(0)


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.int64, np.float32, torch.uint8, torch.int64])
def test_ids_of_tokens_stay_what_they_are_whatever_their_type(kind):
    ids = np.arange(1, 13).reshape(4, 3)
    given = torch.from_numpy(ids).to(kind) if isinstance(kind, torch.dtype) else ids.astype(kind)
    found = made({"ann": (given, [0, 0, 1, 1])}).episode(0)
    both = torch.cat([found.support_images, found.query_images])
    assert sorted(map(tuple, both.tolist())) == sorted(map(tuple, ids.tolist()))
    part = (given, np.array([0, 1, 0, 1]))
    pairs = from_pairs([(part, part)], EpisodeShape(ways=2, shots=2, queries=2))
    assert sorted(map(tuple, pairs.episode(0).query_images.tolist())) == sorted(map(tuple, ids.tolist()))


# Names that go with records.

TABLE = np.arange(24.0).reshape(8, 3)
COLUMNS = ("age", "chol", "bmi")


def tables(order, index=None, targets=None):
    places = [COLUMNS.index(name) for name in order]
    frame = Named(TABLE[:, places], columns=order)
    return {"ann": (frame, Named([0, 1] * 4, index=index) if targets is None else targets)}


MAPPED = {name: TABLE[:, place].tolist() for place, name in enumerate(COLUMNS)}


class Lazy:
    """A frame of polars that is not computed yet."""

    columns = COLUMNS


@pytest.mark.parametrize("given", [MAPPED, [dict(zip(COLUMNS, row, strict=True)) for row in TABLE.tolist()]])
def test_mappings_are_tables_too(given):
    plain, mapped = (replace(made({"ann": (each, [0, 1] * 4)}), columns=COLUMNS) for each in (TABLE, given))
    assert torch.equal(mapped.episode(0).support_images, plain.episode(0).support_images)
    assert clients_digest(mapped) == clients_digest(plain)


def test_columns_that_differ_in_scale_are_told_by_their_names():
    held = {"ann": (np.arange(1.5, 41).reshape(8, 5) * [1, 1, 1, 1, 100], [0, 1] * 4)}
    ((_, said),) = replace(made(held), columns=("age", "chol", "bmi", "ph", "platelets")).problems()
    assert "a network sees platelets as numbers of" in said


@pytest.mark.parametrize("records_", [tables(COLUMNS)["ann"][0], MAPPED, Lazy()])
def test_tables_are_refused_where_their_task_would_have_changed_the_numbers(records_):
    """They would be trained on as they are, and the model judged on standardised ones; arrays are the caller's."""
    clients = replace(made({"ann": (records_, [0, 1] * 4)}), columns=COLUMNS, task="heart.yaml")
    ((_, said),) = clients.problems()
    assert "hand over dpfedmeta.standardised('heart.yaml', table)" in said
    assert not dict(replace(clients, held={"ann": (TABLE, [0, 1] * 4)}).problems())


def test_columns_of_tables_are_taken_by_name():
    plain = replace(made({"ann": (TABLE, [0, 1] * 4)}), columns=COLUMNS)
    for order in (COLUMNS, COLUMNS[::-1], ("bmi", "age", "chol")):
        named = replace(made(tables(order)), columns=COLUMNS)
        assert torch.equal(named.episode(0).support_images, plain.episode(0).support_images)
        assert clients_digest(named) == clients_digest(replace(plain, held={"ann": (TABLE, Named([0, 1] * 4))}))


@pytest.mark.parametrize(
    ("held", "columns", "why"),
    [
        (
            tables(COLUMNS),
            (),
            "bmi: unknown; RecordsPopulation.columns are not known",
        ),
        (
            tables(COLUMNS),
            ("age", "chol", "waist"),
            "bmi: unknown; waist: missing; RecordsPopulation.columns",
        ),
        (tables(COLUMNS, index=range(100, 108)), COLUMNS, "name their rows otherwise"),
        ({"ann": (TABLE, Named([0, 1] * 4, index=range(8)[::-1]))}, COLUMNS, "hand over targets.to_numpy()"),
        (
            {"ann": (dict.fromkeys(COLUMNS, Named(TABLE[:, 0], index=range(9, 17))), Named([0, 1] * 4))},
            COLUMNS,
            "index",
        ),
        ({"ann": (Named(TABLE, columns=("age", "chol", "age")), [0, 1] * 4)}, COLUMNS, "column age: named twice"),
        ({"ann": (Lazy(), [0, 1] * 4)}, COLUMNS, "a Lazy gives no column by its name; hand over a table (.collect())"),
        (
            {"ann": ({**MAPPED, "chol": np.ma.masked_less(TABLE[:, 1], 3)}, [0, 1] * 4)},
            COLUMNS,
            "column chol: has a mask",
        ),
        ({"ann": ({**MAPPED, "chol": ["1,5"] * 8}, [0, 1] * 4)}, COLUMNS, "write decimals with a point"),
        ({"ann": (Named(TABLE), [0, 1] * 4)}, COLUMNS, "records have names, which plain arrays have by place"),
        ({"ann": ([Named(row) for row in TABLE], [0, 1] * 4)}, COLUMNS, "records have names"),
        ({"ann": (np.ma.masked_less(TABLE, 3), [0, 1] * 4)}, (), "records have a mask"),
        ({"ann": (list(np.ma.masked_less(TABLE, 3)), [0, 1] * 4)}, (), "records have a mask"),
        ({"ann": (TABLE, np.ma.masked_equal([0, 1] * 4, 0))}, (), "have a mask"),
        ({"ann": (TABLE, ["nan", "a"] * 4)}, (), "targets hold 'nan', which is written where a class is missing"),
        ({"ann": (TABLE, np.array(["N/A", "a"] * 4))}, (), "targets hold 'N/A'"),
    ],
)
def test_names_and_masks_are_never_lost_in_silence(held, columns, why):
    population = replace(made(held), columns=columns)
    ((name, said),) = population.problems()
    assert name == "ann"
    assert why in said
    assert isinstance(clients_digest(population), str)


RANGE = TargetRange(centre=0.0, scale=1.0, lowest=0.0, highest=1.0)


@pytest.mark.parametrize("change", [{"labels": ("0", "1")}, {"range": RANGE}])
def test_masked_targets_are_told_whatever_they_are(change):
    held = {"ann": (TABLE, np.ma.masked_equal([0, 1] * 4, 0))}
    ((_, said),) = replace(made(held), **change).problems()
    assert "have a mask" in said


def test_a_mask_that_hides_nothing_and_turned_arrays_are_arrays():
    plain = made({"ann": (TABLE.astype(np.float32), [0, 1] * 4)}).episode(0)
    for records_, targets in (
        (np.ma.masked_array(TABLE), np.ma.masked_array([0, 1] * 4)),
        (TABLE[::-1][::-1], np.array([1, 0] * 4)[::-1]),
        (TABLE.astype(">f8"), np.array([0, 1] * 4, dtype=">i4")),
    ):
        assert torch.equal(made({"ann": (records_, targets)}).episode(0).support_images, plain.support_images)
