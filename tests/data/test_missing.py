"""MissingValues values of tables: the same treatment through every door, and words for their owner."""

import csv
import json
from collections import Counter

import numpy as np
import pytest
import torch
import yaml

from dpfedmeta.core.errors import InputError
from dpfedmeta.data import missing
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.missing import MissingValues
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources import vectors
from dpfedmeta.data.user_sources.readers import people_contents
from dpfedmeta.federation.client.local_data import open_records
from dpfedmeta.federation.offers.offered_settings import form_of, task_of
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.training.personal.user_inputs import InputForm
from tests.conftest import dpfedmeta

COLUMNS = ("age", "chol", "thal")
MEAN, DEVIATION = [54.0, 220.0, 3.0], [9.0, 50.0, 1.0]
TASK = {
    "name": "clinics", "features": 3, "mean": MEAN, "deviation": DEVIATION, "labels": ["well", "ill"],
    "missing": {"values": ["?", "", -999], "columns": {"chol": [0]}, "indicators": ["thal", "chol"]},
}  # fmt: skip
# As written, and as a network sees it: three numbers, then whether thal and chol are missing.
ROWS = {
    ("63", "270", "4"): (1, 1, 1, 0, 0),
    ("63", "0", "?"): (1, 0, 0, 1, 1),
    ("-999.0", "170", ""): (0, -1, 0, 1, 0),
    ("0", "?", "3"): (-6, 0, 0, 0, 1),
    (" ? ", "nan", "-999"): (0, 0, 0, 1, 1),
}
DUE = np.array([*ROWS.values()], dtype=np.float32)
LABELS = ["well", "ill", "well", "ill", "well"]


def lines_of(order=COLUMNS):
    return [[row[COLUMNS.index(name)] for name in order] for row in ROWS]


def write_table(path, order=COLUMNS, people=("train0", "val0", "test0")):
    with path.open("w", newline="") as file:
        write = csv.writer(file).writerow
        write([*(["client", "split"] if people else []), "class", *order])
        for person in people or [""]:
            for label, line in zip(LABELS, lines_of(order), strict=True):
                write([*([person, person[:-1]] if people else []), label, *line])
    return path


def arrays(words=False):
    numbers = [[np.nan if text.strip() in ("?", "") else float(text) for text in row] for row in ROWS]
    return np.array(numbers)


def write_arrays(path, people=("train0", "val0", "test0")):
    more = {
        name: np.repeat([person[:length] for person in people], 5) for name, length in (("clients", 9), ("splits", -1))
    }
    np.savez(path, records=np.concatenate([arrays()] * len(people)), classes=LABELS * len(people), **more)
    return path


def write_task(folder, source="public.csv", **more):
    content = {**TASK, "source": {"reader": "vectors", "path": source}, **more}
    if source.endswith(".npz"):
        content["missing"] = {**TASK["missing"], "columns": {2: [0]}, "indicators": [3, 2]}
    (folder / "task.yaml").write_text(yaml.safe_dump(content))
    return folder / "task.yaml"


@pytest.fixture
def task(tmp_path):
    write_table(tmp_path / "public.csv")
    return write_task(tmp_path)


def seen(pool):
    """Records as a network sees them, in the order of the labels."""
    found = pool.numbers(np.arange(len(pool.images)))
    return found[pool.first[0] :][: pool.size]


def by_label(records):
    labels = np.array(LABELS)
    return np.concatenate([records[labels == name] for name in ("ill", "well")])


@pytest.mark.parametrize("door", ["table", "other order", "arrays", "a person's table", "a real client", "its arrays"])
def test_a_missing_value_is_the_same_public_constant_through_every_door(tmp_path, task, door):
    opened, _ = load_task(str(task))
    if door in ("table", "other order"):
        turned = COLUMNS if door == "table" else COLUMNS[::-1]
        constants = {
            "mean": MEAN[:: 1 if door == "table" else -1],
            "deviation": DEVIATION[:: 1 if door == "table" else -1],
        }
        write_table(tmp_path / "public.csv", turned)
        found = seen(open_dataset(str(write_task(tmp_path, **constants))).train)
        # A table without a plan has the order that it has.
        found = found[:, [*(turned.index(name) for name in COLUMNS), 3, 4]]
    elif door == "arrays":
        write_arrays(tmp_path / "public.npz")
        found = seen(open_dataset(str(write_task(tmp_path, "public.npz"))).train)
    elif door == "a person's table":
        own = write_table(tmp_path / "own.csv", COLUMNS[::-1], people=())
        contents = people_contents(own, opened.form, COLUMNS)
        mean, deviation = (np.asarray(values) for values in opened.constants)
        found = (np.concatenate(list(contents.decode())) - mean) / deviation
    else:
        signed = task_of({"task": json.loads(json.dumps(form_of(opened)))})
        own = tmp_path / ("own.csv" if door == "a real client" else "own.npz")
        if own.suffix == ".csv":
            write_table(own, COLUMNS[::-1], people=())
        else:
            np.savez(own, records=arrays(), classes=LABELS)
        found = seen(open_records(own, signed, COLUMNS, tmp_path / "decoded"))
    assert np.allclose(found, by_label(DUE), atol=1e-6)
    # Nothing was measured: exactly 0, on every machine.
    assert (found[by_label(DUE) == 0] == 0).all()


FORMS = {
    "texts": lambda: {name: [row[place] for row in ROWS] for place, name in enumerate(COLUMNS)},
    "numbers": lambda: dict(zip(COLUMNS, arrays().T, strict=True)),
    "array": arrays,
    "tensor": lambda: torch.from_numpy(arrays()),
    "records": lambda: [dict(zip(COLUMNS, row, strict=True)) for row in ROWS],
    "None": lambda: [
        {n: None if v.strip() in ("?", "") else v for n, v in zip(COLUMNS, row, strict=True)} for row in ROWS
    ],
}


@pytest.mark.parametrize("form", FORMS)
def test_a_personal_model_takes_them_alike(task, form):
    opened, _ = load_task(str(task))
    own = InputForm.of(opened.form, *opened.constants, columns=COLUMNS)
    given = FORMS[form]()
    assert np.allclose(own.tensor(given).numpy(), DUE, atol=1e-6)
    with pytest.raises(InputError, match=r"infinite or too large|is not a number"):
        own.tensor({**FORMS["texts"](), "age": ["inf"] * 5})
    plain = load_task(str(write_task(task.parent, missing={"values": ["NA"]})))[0]
    with pytest.raises(InputError, match=r"infinite or too large|is not a number"):
        InputForm.of(plain.form, *plain.constants, columns=COLUMNS).tensor(given)


@pytest.mark.parametrize(
    ("given", "width", "last"),
    [
        (["?", "", -999, 0], 6, [0, 1, 1]),
        ({"values": ["?", None, -999]}, 6, [0, 0, 1]),
        ({"values": ["?", "", -999], "indicators": []}, 3, [1, -4.4, 0]),
        ({"values": ["?", "", -999, 0], "indicators": "all", "replaced_by": 2}, 6, [0, 1, 1]),
        ({"values": ["?", "", -999, 0], "indicators": ["age"], "replaced_by": [2, 3, 4]}, 4, [3, 4, 0]),
    ],
)
def test_what_a_task_file_may_say(tmp_path, task, given, width, last):
    """Of the second record, 63, 0, ?."""
    train = open_dataset(str(write_task(tmp_path, missing=given))).train
    found = seen(train)
    assert found.shape == (5, width)
    assert np.allclose(found[0, -3:], last)


REFUSED = {
    "no list": ("?", 'missing: expected a list, found \'?\'; write missing: ["?", "", -999]'),
    "nothing": ([], "missing.values: expected 1 to 100 values"),
    "YAML's no": ([False], "with words in quotes"),
    "unknown key": ({"values": ["?"], "instead": 0}, "missing.instead"),
    "lengths": (
        {"values": ["?"], "replaced_by": [0, 0]},
        "missing.replaced_by: expected 1 value for all columns, or 3",
    ),
    "twice": ({"values": ["?"], "indicators": ["age", "age"]}, "a column stands there twice"),
    "long": (["x" * 41], "too long, or cannot be printed"),
    "a name": ({"values": ["?"], "indicators": ["cholesterol"]}, "missing: no column cholesterol"),
    "a column": ({"values": ["?"], "columns": {"tal": [0]}}, "no column tal; did you mean thal"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_it_may_not_say(tmp_path, task, which):
    given, why = REFUSED[which]
    with pytest.raises(InputError) as caught:
        open_dataset(str(write_task(tmp_path, missing=given)))
    assert why in str(caught.value)


def test_only_tables_and_arrays_have_them(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "name: p\nsource: {reader: tokens, path: p.csv}\nlength: 3\nvocabulary: 9\nmissing: ['?']\n"
    )
    with pytest.raises(InputError, match="missing: only tables and arrays of your own"):
        load_task(str(tmp_path / "p.yaml"))


@pytest.mark.parametrize(
    "change",
    [
        lambda own: own | {"values": ["\x07"]},
        lambda own: own | {"values": [], "columns": {}},
        lambda own: own | {"indicators": ["sex"]},
        lambda own: own | {"replaced_by": [1, 2]},
        lambda own: own | {"values": [str(number) for number in range(101)]},
    ],
)
def test_a_server_cannot_offer_more(task, change):
    form = json.loads(json.dumps(form_of(load_task(str(task))[0])))
    assert task_of({"task": form}).missing is not None
    with pytest.raises(Refused):
        task_of({"task": form | {"missing": change(form["missing"])}})


def test_no_record_decides_over_another(tmp_path, task):
    """Each row alone gives what it gives beside the others."""
    opened, _ = load_task(str(task))
    whole = by_label(DUE)
    for number, label in enumerate(LABELS):
        own = tmp_path / f"{number}.csv"
        with own.open("w", newline="") as file:
            csv.writer(file).writerows([["class", *COLUMNS], [label, *lines_of()[number]]])
        found = seen(open_records(own, opened, COLUMNS, tmp_path / "decoded"))
        assert any(np.array_equal(found[0], row) for row in whole)


def test_an_undeclared_one_is_a_null_record_as_before(tmp_path, task):
    own = tmp_path / "own.csv"
    own.write_text("class,age,chol,thal\nwell,60,200,3\nill,60,NA,3\nill,inf,200,3\n")
    said = []
    pool = open_records(own, load_task(str(task))[0], COLUMNS, tmp_path / "decoded", said.append)
    assert pool.counts == (1,)
    assert "2 row(s) are wrong and left out" in said[0]
    assert 'missing: ["NA"]' in said[0]


def test_check_task_counts_them_and_says_what_to_write(tmp_path, task):
    sizes = ("--ways", "2", "--shots", "1", "--task.queries", "1", "--evaluation.queries", "1")
    told = dpfedmeta("check-task", str(task), *sizes).out
    assert "missing values: of 15 records 12 miss something: age 6, chol 9, thal 9; 2 get one that says where" in told
    # 0 and 1 of further columns are nobody's numbers, nor is what stands where these say that one is missing.
    assert "numbers 0 to 270, mean 75.7" in told
    write_task(tmp_path, missing=None)
    told = dpfedmeta("check-task", str(task), code=2).out
    assert "vectors that repeat another one: not counted yet" in told
    assert json.loads(dpfedmeta("check-task", str(task), "--json", code=2).out)["repeated"] is None
    assert "no number in some columns: age 3 (?); chol 6 (?, nan); thal 6 (?, blank)" in told
    assert 'missing: ["?", "nan", ""]' in told
    own = write_table(tmp_path / "own.csv", people=())
    told = dpfedmeta("check-task", str(own), "--client", "--ways", "2", code=2).out
    assert "no number in some columns: age 1 (?); chol 2 (?, nan); thal 2 (?, blank)" in told


def test_of_training_rows_nobody_else_is_told(tmp_path, task):
    """What a run prints is of validation and test."""
    public, said = tmp_path / "public.csv", []
    before = public.read_text()
    for word in ("63", "?"):
        lines = [line.replace("63,270", f"{word},270") if ",train," in line else line for line in before.splitlines()]
        public.write_text("\n".join(lines))
        said.append(vectors.remarks(public, load_task(str(task))[0], public=True))
    assert said[0] == said[1]
    assert "missing values: of 10 validation and test records 8 miss something" in " ".join(said[0])


def test_columns_are_held_against_each_other_by_what_was_measured(tmp_path):
    """The 0 that took the place of a missing value was 246 deviations away: 17 on average, so the large ones decide."""
    lines = [f"c{n % 9},{7.4 + n % 5 / 100 if n % 3 else '?'}{f',{n % 7 - 3}' * 4}\n" for n in range(90)]
    (tmp_path / "public.csv").write_text("class,ph,w,x,y,z\n" + "".join(lines))
    constants = {"features": 5, "labels": "own", "deviation": [0.03, 2, 2, 2, 2], "missing": ["?"]}
    for mean, told in (([7.42, 0, 0, 0, 0], False), ([0, 0, 0, 0, 0], True)):
        task = load_task(str(write_task(tmp_path, **{**constants, "mean": mean})))[0]
        said = " ".join(vectors.remarks(tmp_path / "public.csv", task, public=False))
        assert ("columns differ in scale" in said) == told
        assert "of 90 records 30 miss something: ph 30" in said


ODD = {
    "dates": ([f"2025-11-{n + 1:02d}" for n in range(20)], "no number anywhere in x: leave it out, or code it as num"),
    "words": (["M", "F"] * 10, "no number anywhere in x: leave it out, or code it as numbers"),
    "never measured": (["?"] * 20, 'missing: ["?"]'),
    "blank": ([""] * 3 + ["1"] * 17, 'missing: [""]'),
    "a decimal comma": (["1,5"] * 3 + ["1"] * 17, "write decimals with a point"),
    "a comma and a mark": (["1,5", "n/a"] + ["1"] * 18, 'write decimals with a point, 1.5 in place of 1,5; if nothing'),
    "a repeated word": (["nd"] * 3 + ["1"] * 17, 'missing: ["nd"]'),
    "one word": (["1o"] + ["1"] * 19, "write numbers there, or leave these records or this column out"),
}  # fmt: skip


@pytest.mark.parametrize("which", ODD)
def test_what_to_do_about_values_that_are_no_numbers(tmp_path, which):
    """Through each door: the whole table, its remarks, a real client's."""
    values, due = ODD[which]
    rows = [["class", "x", "y"], *([f"c{n % 9}", value, n] for n, value in enumerate(values))]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    shown = dpfedmeta("check-task", str(tmp_path / "t.csv"), code=2).out
    assert shown.count(due) == 2
    told = dpfedmeta("check-task", str(tmp_path / "t.csv"), "--client", code=2)
    assert due in (told.out or told.error)
    for words in (shown, told.out):
        assert not any(f'"{value}"' in words for value in values if "2025" in value or value in ("1,5", "M", "1o"))


@pytest.mark.parametrize(
    ("values", "asked"),
    [
        ([-999] * 3 + [*range(20)], "-999 in 3 records, far from all others (0 to 19)"),
        ([-9] * 3 + [*range(6)], "-9 in 3 records"),
        ([9999] * 2 + [*range(20)], "9999 in 2 records"),
        ([-1] * 3 + [*range(20)], None),
        ([-999, *range(20)], None),
        ([1000] * 3 + [*range(20)], "1000 in 3 records"),
        ([0, 1] * 10, None),
        ([-9] * 3 + [*range(-8, 20)], None),
    ],
)
def test_a_number_that_may_mean_missing_is_asked_about(tmp_path, values, asked):
    path = tmp_path / "v.csv"
    labels = [f"c{place % 9}" for place in range(len(values))]
    path.write_text("class,x\n" + "".join(f"{label},{value}\n" for label, value in zip(labels, values, strict=True)))
    told = dpfedmeta("check-task", str(path), code=2).out
    assert ("far from all others" in told) == (asked is not None)
    assert asked is None or asked in told


def test_words_for_a_task_file_are_yaml(tmp_path):
    words = ["?", "", "-999", "no", 'a "b"', "nan", "1e5"]
    given = yaml.safe_load(missing.key_as_a_whole(None, words))["missing"]
    assert [str(word) for word in given] == [word if word != "1e5" else "1e5" for word in words]


def test_form_without_any_is_that_of_before(task):
    form = form_of(load_task(str(write_task(task.parent, missing=None)))[0])
    assert "missing" not in form
    assert MissingValues(values=("?",)).added(3) == 3


OWNED = {
    "customers": ([f"C{n % 40:06d}" for n in range(400)], True),
    "customers, some blank": ([f"C{n % 40:06d}" if n % 9 else "" for n in range(400)], True),
    "free text": ([f"note {n}" for n in range(400)], False),
    "yes or no": (["yes", "no"] * 200, False),
}


@pytest.mark.parametrize("kind", OWNED)
def test_a_column_of_text_whose_values_recur_may_name_owners(kind):
    """Left out, as it was told first, 300 customers had no privacy at all."""
    words, asked = OWNED[kind]
    odd = {"ref": Counter(words)}
    assert ("call it client" in missing.remedies(odd, 400, owned=False)) == asked
    assert "call it client" not in missing.remedies(odd, 400)
    assert "leave it out" in missing.remedies(odd, 400, owned=False)


SHARED = {
    "a cholesterol of 0": ([0.0] * 169, True),
    "few of them": ([0.0] * 3, False),
    "one that is measured": ([150.0] * 169, False),
    "the lowest": ([84.0] * 169, False),
}


@pytest.mark.parametrize("kind", SHARED)
def test_a_number_that_many_rows_share_far_from_all_others_is_asked_about(kind):
    """However far single ones lie at the other end."""
    shared, asked = SHARED[kind]
    draws = np.random.default_rng(0).normal(220, 50, 700).round()
    values = np.concatenate([shared, draws[draws >= 85], [529.0, 564.0, 603.0]])
    *_, words = missing.look_for_missing(values[:, None], ["chol"], None)
    assert any("far from all others" in line for line in words) == asked
    codes = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 40)
    assert missing.look_for_missing(codes[:, None], ["stage"], None)[2] == ()


KNOWN = missing.MissingValues(values=("", "-999"), columns={"chol": ("1",)}, replaced_by=(0.5,), indicators=("chol",))


@pytest.mark.parametrize("known", [None, KNOWN, missing.MissingValues(values=("?",), indicators=None)], ids=str)
def test_advice_holds_what_the_task_file_says_already(known):
    """Taken literally it replaced that; each advice is read as a task file is, and says all of it."""
    rows = [[str(200 + n % 30), str(n % 6), "n/a" if n % 9 == 0 else "1"] for n in range(100)]
    rows += [["0", "999", "1"]] * 9
    *_, words = missing.look_for_missing(rows, ["chol", "late days", "x"], known)
    told = [line.partition("write into the task file: ")[2] for line in words if "write into the task file" in line]
    assert len(told) == 2
    for text in told:
        content = missing.missing_of(yaml.safe_load(text)["missing"], "t")
        found = missing.MissingValues(**{key: tuple(v) if isinstance(v, list) else v for key, v in content.items()})
        assert {*(known.values if known else ()), "n/a"} <= {*found.values}
        if known:
            assert (found.replaced_by, found.indicators) == (known.replaced_by, known.indicators)
            assert all({*own} <= {*found.columns[name]} for name, own in known.columns.items())
    assert {*found.columns["late days"]} == {"999"}
    assert "0" in found.columns["chol"]
