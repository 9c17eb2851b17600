"""Columns that would become features by accident are refused; what is suspicious is told from public rows alone."""

import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from own_data import vector_rows, write_csv

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.columns import (
    OWNERS,
    feature_words,
    meant,
    other_units,
    owning_columns,
    target_columns,
    telling_columns,
    two_units,
)
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.names import surely_public
from dpfedmeta.data.storage.decoded_cache import Contents
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources import vectors
from dpfedmeta.data.user_sources.csv_table import Row, public_rows
from dpfedmeta.training.tracking.plan_summary import _read_words


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))


def with_column(path, name, values=None, *, first=True):
    rows = vector_rows()
    values = range(len(rows)) if values is None else values
    columns = [name, *values][: len(rows)]
    return write_csv(
        path, [[value, *row] if first else [*row, value] for value, row in zip(columns, rows, strict=True)]
    )


OURS = {
    "client": "Client CLIENT clients client_id ClientID cleint clint user_id Subject patient_id participant "
    "center site Hospital ward device mrn household account session group client_id Subject_ID site_code nodes",
    "class": "Class classes label Labels target class_name calss",
    "split": "Split SPLIT splits spilt partition fold",
    "path": "Path paths file_name",
    "tokens": "Tokens token",
}


@pytest.mark.parametrize(("ours", "name"), [(ours, name) for ours, names in OURS.items() for name in names.split()])
def test_near_misses_of_our_own_names_are_refused(tmp_path, ours, name):
    with pytest.raises(InputError) as caught:
        open_dataset(str(with_column(tmp_path / "v.csv", name)))
    assert f"column {name}: unknown; did you mean {ours}?" in str(caught.value)


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "unnamed: 0.1", "index", "level_0", "ID", "row_id", "Row Number"])
def test_numberings_of_rows_are_refused(tmp_path, name):
    for first in (True, False):
        with pytest.raises(InputError, match=r"a numbering of the rows.*index=False"):
            open_dataset(str(with_column(tmp_path / "v.csv", name, first=first)))


@pytest.mark.parametrize(
    "name", ["glass", "height", "x", "y", "classic", "pathology", "token_count", "clientele", "case_mix", "age_group"]
)
def test_other_names_are_features(tmp_path, name):
    assert meant(name) is None
    path = with_column(tmp_path / "v.csv", name, np.random.default_rng(0).normal(size=99).tolist())
    assert open_dataset(str(path), ways=2).task.form.shape == (6,)
    (said,) = vectors.remarks(path, load_task(str(path))[0], public=True)
    assert said == f"6 features: {name}, x0, x1, x2, x3, x4 (all columns but class)"


def test_a_table_without_a_record(tmp_path):
    write_csv(tmp_path / "v.csv", vector_rows()[:1])
    with pytest.raises(InputError, match="no record in it: nothing stands below"):
        open_dataset(str(tmp_path / "v.csv"))


def test_columns_that_number_the_rows_or_name_the_class_are_told():
    draw, labels = np.random.default_rng(0), np.repeat([f"c{k}" for k in range(6)], 4)
    honest, codes = draw.normal(size=24), np.repeat(draw.permutation(6), 4)
    rows = np.stack([honest, np.arange(24.0), -np.arange(24.0), codes, codes + 0.1 * honest], axis=1)
    said = telling_columns("abcde", rows, labels.tolist())
    assert [line.split()[1] for line in said] == ["b", "c", "d", "e"]
    assert ["grows" in line for line in said] == [True, True, False, False]


@pytest.mark.parametrize(
    ("records", "told"),
    [
        (np.arange(9 * 6 * 64).reshape(54, 64) % 256, True),
        (np.arange(9 * 6 * 64).reshape(54, 64) % 256 / 255, False),
        (np.arange(9 * 6 * 64).reshape(54, 64) % 256 - 128, False),
        (np.arange(9 * 6 * 64).reshape(54, 64) % 300, False),
        (np.arange(9 * 6 * 64).reshape(54, 64) % 5, False),  # counts
        (np.arange(9 * 6 * 63).reshape(54, 63) % 256, False),
    ],
)
def test_vectors_of_whole_numbers_up_to_255_may_be_pixels(tmp_path, records, told):
    path = tmp_path / "v.npz"
    np.savez(path, records=records, classes=np.repeat(np.arange(9), 6))
    for public in (True, False):
        assert (
            any("those of pixels" in words for words in vectors.remarks(path, load_task(str(path))[0], public=public))
            == told
        )


def test_training_rows_decide_nothing_that_is_told_to_everybody(tmp_path):
    public = surely_public(f"c{k}" for k in range(9))
    private = [-1, *(k for k, row in enumerate(vector_rows()[1:]) if row[0] not in public)]
    told = []
    for seed in (0, 1):
        values = list(range(54))
        for place in private[1:]:
            values[place] += 1000 * seed * (place % 7)
        path = with_column(tmp_path / "v.csv", "x", values)
        told.append(
            (
                vectors.remarks(path, load_task(str(path))[0], public=True),
                vectors.remarks(path, load_task(str(path))[0], public=False),
            )
        )
    (one, own), (two, other) = told
    assert one == two
    assert "column x grows" in one[1]
    assert own != other


def test_where_a_list_says_who_trains_the_records_tell_nothing_to_everybody(tmp_path):
    """The classes that their names would make public train here."""
    public = sorted(surely_public(f"c{k}" for k in range(9)))
    others = sorted({f"c{k}" for k in range(9)} - {*public})
    parts = ["train"] * len(public) + ["val", "test"] * len(others)
    with_column(tmp_path / "v.csv", "x", list(range(54)))
    lines = [f"{name},{part}\n" for name, part in zip(public + others, parts[: len(public + others)], strict=True)]
    (tmp_path / "parts.csv").write_text("class,split\n" + "".join(lines))
    source = {"reader": "vectors", "path": "v.csv"}
    task = {"name": "v", "source": source, "split": "parts.csv", "features": 6}
    (tmp_path / "listed.yaml").write_text(yaml.safe_dump(task))
    (tmp_path / "free.yaml").write_text(yaml.safe_dump({key: task[key] for key in task if key != "split"}))
    listed, free = (load_task(str(tmp_path / f"{name}.yaml"))[0] for name in ("listed", "free"))
    assert any("column x grows" in said for said in _read_words(free))
    assert _read_words(listed) == ()


@pytest.mark.parametrize(
    ("count", "due"),
    [
        (1, "1 feature: x0"),
        (2, "2 features: x0, x1"),
        (6, "6 features: x0, x1, x2, x3, x4, x5"),
        (7, "7 features: x0, x1, x2, ..., x5, x6"),
        (12, "12 features: x0, x1, x2, ..., x10, x11"),
    ],
)
def test_features_are_shown_by_their_own_names(count, due):
    columns = [f"x{number}" for number in range(count)]
    assert feature_words(columns, ["split", "class", *columns]) == f"{due} (all columns but class, split)"
    assert feature_words(columns, OWNERS).endswith(f"(all columns but {', '.join(OWNERS)})")


def told_of(values, labels):
    """Which of two columns is suspicious, where the other one is honest."""
    honest = np.random.default_rng(1).normal(size=len(values))
    return [line.split()[1] for line in telling_columns("ab", np.stack([honest, values], axis=1), labels)]


def test_a_column_tells_the_class_where_ranges_of_classes_are_apart():
    labels = [name for name in "pqrstu" for _ in range(4)]
    codes = np.array([0, 0, 0, 0, 3, 3, 3, 3, 1, 1, 1, 1, 5, 5, 5, 5, 4, 4, 4, 4, 2, 2, 2, 2.0])
    assert told_of(codes, labels) == ["b"]
    # One record beyond its neighbour's range; one with a number of the neighbour's.
    for place, value in ((0, 1.5), (0, 1.0), (7, 4.0), (23, 3.0)):
        assert told_of(np.where(np.arange(24) == place, value, codes), labels) == []
    # The same number in every class says nothing, whatever order records of equal numbers have.
    assert told_of(np.zeros(24), labels) == []


@pytest.mark.parametrize(
    ("classes", "records", "told"), [(2, 8, False), (4, 4, False), (5, 2, True), (6, 1, False), (8, 1, False)]
)
def test_few_classes_or_records_are_told_apart_by_accident(classes, records, told):
    labels = [f"c{k}" for k in range(classes) for _ in range(records)]
    codes = np.repeat(np.random.default_rng(3).permutation(classes) + 0.5, records)
    assert (told_of(codes, labels) == ["b"]) == told


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        (np.arange(54) % 6 + 1, "x (6 values)"),
        (np.arange(54) // 9 * 1000 - 2, "x (6 values)"),
        (np.arange(54) % 3, "x (3 values)"),
        (np.arange(54) % 2, None),  # a yes or no
        (np.arange(54) % 6 + 0.5, None),
        (np.arange(54) % 20, None),  # some stand in two rows alone
        (np.arange(54), None),
    ],
)
def test_a_column_that_looks_like_an_owner_is_asked_about_whatever_it_is_called(tmp_path, values, asked):
    path = with_column(tmp_path / "v.csv", "x", values.tolist())
    asking = [
        line
        for line in vectors.remarks(path, load_task(str(path))[0], public=False)
        if "does it say whose a row is" in line
    ]
    assert [asked in line for line in asking] == ([] if asked is None else [True])
    # Where the data name clients, it was answered.
    rows = vector_rows()
    people = [["client", *rows[0], "x"]]
    people += [[f"p{n % 9}", *row, v] for n, (row, v) in enumerate(zip(rows[1:], values.tolist(), strict=True))]
    named = write_csv(tmp_path / "w.csv", people)
    assert not any("whose a row is" in line for line in vectors.remarks(named, load_task(str(named))[0], public=False))


@pytest.mark.parametrize("blank", [0, 5])
def test_an_owner_is_asked_about_though_some_rows_lack_one(blank):
    owners = np.repeat(np.arange(20.0), 10)
    owners[:blank] = np.nan
    (asked,) = owning_columns(["ref", "age"], np.stack([owners, np.random.default_rng(0).normal(size=200)], axis=1))
    assert "ref (20 values)" in asked


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        (lambda own, due: 3.0 - 2.0 * due, True),
        (lambda own, due: due + 0.02 * own, True),
        (lambda own, due: due + own, False),
        (lambda own, due: own, False),
        (lambda own, due: 0.0 * own, False),
    ],
)
def test_a_column_that_is_nearly_the_number_to_predict_is_asked_about(made, asked):
    own, due = np.random.default_rng(0).normal(size=(2, 90))
    records = np.stack([own, made(own, due)], axis=1)
    records[3] = np.nan
    said = target_columns(["x0", "x1"], records, due)
    assert [line.split(" (")[0] for line in said] == ["column x1 is nearly the number to predict"] * asked


@pytest.mark.parametrize("steps", [1, -1])
@pytest.mark.parametrize("change", [None, 0, 9, 19])
def test_a_column_that_stands_still_once_is_no_numbering(steps, change):
    values = steps * np.arange(20.0)
    if change is not None:
        values[change] = values[change - 1 if change else 1]
    labels = ["p", "q"] * 10
    assert told_of(values, labels) == ([] if change is not None else ["b"])


@pytest.mark.parametrize("odd", ["nan", "inf"])
def test_of_numbers_that_are_none_no_column_is_suspected(tmp_path, odd):
    """What is wrong with them is said where the records are opened."""
    path = with_column(tmp_path / "v.csv", "x", [*range(53), odd])
    assert all("grows" not in line for line in vectors.remarks(path, load_task(str(path))[0], public=False))
    path = with_column(tmp_path / "w.csv", "x", [*range(54)])
    assert any("grows" in line for line in vectors.remarks(path, load_task(str(path))[0], public=False))


@pytest.mark.parametrize(("rows", "told"), [(7, False), (8, True)])
def test_of_very_few_rows_nothing_is_suspected(rows, told):
    said = telling_columns("a", np.arange(float(rows))[:, None], ["p", "q"] * (rows // 2) + ["p"] * (rows % 2))
    assert bool(said) == told


@pytest.mark.parametrize("named", [False, True])
def test_public_rows_are_those_of_units_that_never_train(named):
    """Of clients where the data name them, whatever their classes are called; else of classes."""
    names = [f"u{number}" for number in range(40)]
    public = surely_public(names)
    assert 0 < len(public) < 40
    other = sorted(public)[0]
    rows = [
        Row(place=f"{n}", label=other if named else name, client=name if named else "", split="")
        for n, name in enumerate(names)
    ]
    assert public_rows(rows) == [n for n, name in enumerate(names) if name in public]
    # Where a column says it, that holds; where nothing is public, everything is looked at.
    given = [replace(row, split=("train", "val", "test")[n % 3]) for n, row in enumerate(rows)]
    assert public_rows(given) == [n for n in range(40) if n % 3]
    assert public_rows([replace(row, split="train") for row in rows]) == [*range(40)]
    assert public_rows([]) == []


@pytest.mark.parametrize(
    ("change", "told"), [(None, True), (0.5, False), (-1.0, False), (255.0, True), (256.0, False), (254.5, False)]
)
def test_one_number_that_no_pixel_has_tells_that_they_are_none(change, told):
    records = np.full((3, 64), 16.0)
    if change is not None:
        records[1, 7] = change
    assert vectors._look_like_pixels(records) == told
    # Small counts are none either: more than fifteen is reached somewhere.
    assert not vectors._look_like_pixels(np.full((3, 64), 15.0))
    assert not vectors._look_like_pixels(records[:, :63])
    assert not vectors._look_like_pixels(records[:0])


@pytest.mark.parametrize(("offset", "refused"), [(0.0, False), (9e3, False), (1e5, False), (3e6, True), (-1e8, True)])
@pytest.mark.parametrize("targets", [False, True])
def test_numbers_whose_digits_float32_rounds_off_are_refused(offset, refused, targets):
    """Of a number to predict nothing is asked: its own range says where it lies."""
    block = (offset + np.random.default_rng(0).normal(size=(50, 3))).astype(np.float32)
    block = np.column_stack([block, np.full(50, 1e9)]) if targets else block
    found = Contents(classes=(), decode=lambda: iter([block[:20], block[20:]]))
    given = ("own.csv", found, (offset,) * 3, (1.0,) * 3)
    if not refused:
        vectors.check_scale(*given, targets=targets)
        return
    with pytest.raises(InputError, match=r"^own\.csv: numbers lie so far from zero that float32 keeps steps of"):
        vectors.check_scale(*given, targets=targets)


def table(**changed):
    draw = np.random.default_rng(0)
    numbers = {"age": draw.normal(54, 9, 40), "chol": draw.normal(220, 60, 40), "sex": np.tile([0.0, 1.0], 20)}
    return np.column_stack(list((numbers | changed).values()))


CHOL = table()[:, 1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, None),
        ({"sex": np.ones(40)}, None),  # a ward of men
        ({"chol": np.where(np.arange(40) < 30, CHOL, np.nan)}, None),
        ({"chol": np.full(40, np.nan)}, None),
        ({"age": np.full(40, 66.0)}, None),
        ({"age": 1988 - table()[:, 0]}, "column age: its mean lies 20"),
        ({"chol": CHOL / 38.67}, "column chol: its spread is 1/"),
        ({"chol": np.zeros(40)}, "column chol: all 40 values are 0: was it not measured?"),
        ({"chol": np.where(np.arange(40) < 5, 30_000.0, 1.0) - 3_600}, "column chol: its spread is 1"),
    ],
)
def test_another_unit_is_asked_about(changed, words):
    said = other_units(["age", "chol"], table(**changed), (54.0, 220.0, 0.5), (9.0, 90.0, 0.5))
    assert len(said) == (words is not None)
    assert words is None or said[0].startswith(words)
    # Of few rows a spread says nothing; without public constants nothing is known.
    few = other_units(["age"], table(**changed)[:5], (54.0, 220.0, 0.5), (9.0, 90.0, 0.5))
    assert all("its mean lies" in line for line in few)
    assert other_units([], table(**changed), (), ()) == ()


def test_columns_without_names_are_told_by_place():
    found = other_units(["age"], table(chol=np.zeros(40)), (54.0, 220.0, 0.5), (9.0, 90.0, 0.5))
    assert found[0].startswith("column 2: all 40")


def drawn(mean, spread, rows=200, seed=0):
    return np.exp(np.random.default_rng(seed).normal(np.log(mean), spread, rows))


UNITS = {
    "years, months": (drawn(50, 0.3), 12),
    "cholesterol": (drawn(240, 0.15), 1 / 38.67),
    "glucose": (drawn(5.5, 0.25), 18),
    "metres": (drawn(170, 0.05), 0.01),
    "mmHg, kPa": (drawn(130, 0.15), 0.1333),
    "degrees": (drawn(37.2, 0.015), None),
}


def mixed(values, factor, share, seed=1):
    other = np.random.default_rng(seed).random(len(values)) < share
    return np.where(other, values * factor if factor else values * 1.8 + 32, values)


@pytest.mark.parametrize("share", [0.15, 0.5, 0.85])
@pytest.mark.parametrize("name", UNITS)
def test_a_column_of_which_a_part_is_in_another_unit_is_asked_about(name, share):
    values, factor = UNITS[name]
    classes = np.arange(len(values)) % 2
    (said,) = two_units(["x"], mixed(values, factor, share)[:, None], classes)
    assert said.startswith("column x: ")
    assert said.endswith("and none between: is a part of them in another unit?")
    # Blanks are no group, and neither is one unit.
    blank = np.where(np.arange(len(values)) % 9 == 0, np.nan, mixed(values, factor, share))
    assert len(two_units(["x"], blank[:, None], classes)) == 1
    assert two_units(["x"], values[:, None], classes) == ()


NO_UNITS = {
    "a yes or no": np.arange(200) % 2.0,
    "few values": np.array([1.0, 2.0, 100.0, 200.0] * 50),
    "a code": np.array([3.0, 6.0, 7.0] * 66),
    "a few far ones": np.r_[drawn(50, 0.2), drawn(600, 0.2, 5)],
    "one number for missing ones": np.r_[drawn(50, 0.2), np.full(60, 999.0)],
    "many sizes": drawn(5, 2.0),
    "two groups near each other": np.r_[drawn(50, 0.02), drawn(70, 0.02)],
    "another width": np.r_[drawn(1, 0.05), drawn(50, 0.5)],
    "negative": np.r_[drawn(50, 0.2), -drawn(50, 0.2)],
    "few rows": np.r_[drawn(50, 0.2, 7), drawn(5000, 0.2, 7)],
}


@pytest.mark.parametrize("name", NO_UNITS)
def test_what_is_no_other_unit_is_not_asked_about(name):
    values = NO_UNITS[name]
    assert two_units(["x"], values[:, None], np.random.default_rng(2).integers(2, size=len(values))) == ()


def test_groups_that_the_classes_tell_are_no_units():
    """Walking and sitting are far apart too."""
    values = np.r_[drawn(1, 0.3), drawn(100, 0.3)]
    walking = np.r_[np.zeros(200), np.ones(200)]
    assert two_units(["x"], values[:, None], walking) == ()
    assert two_units(["x"], values[:, None], walking[::-1][np.random.default_rng(0).permutation(400)])


REAL = Path(os.environ.get("DPFEDMETA_DATA", "data"))
TABLES = {
    **{name: f"heart-disease/processed.{name}.data" for name in ("cleveland", "hungarian", "switzerland", "va")},
    "parkinsons": "parkinsons/parkinsons_updrs.data",
    "wisdm": "wisdm/WISDM_ar_v1.1_transformed.arff",
}


@pytest.mark.parametrize("name", TABLES)
def test_no_column_of_a_real_table_nor_of_one_of_its_people_is_asked_about(name):
    if not (path := REAL / TABLES[name]).exists():
        pytest.skip("the data are not here")
    lines = [re.split("[,\t]", line) for line in path.read_text().splitlines() if re.match(r"[\d.]+[,\t]", line)]
    assert len(lines) > 100
    labels = np.array(["target" if name == "parkinsons" else line[-1] for line in lines])
    owners = np.array([line[{"wisdm": 1, "parkinsons": 0}.get(name, -1)] for line in lines])
    # Without numbers of rows, and people.
    records = np.array([[number(text) for text in line[2:]] for line in lines])
    asked = [*two_units([*map(str, range(records.shape[1]))], records, labels)]
    for owner in np.unique(owners) if name in ("wisdm", "parkinsons") else ():
        mine = owners == owner
        asked += two_units([*map(str, range(records.shape[1]))], records[mine], labels[mine])
    assert not asked


def number(text):
    try:
        return float(text)
    except ValueError:
        return np.nan
