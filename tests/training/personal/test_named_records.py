"""A personal model of a table: it keeps columns, constants and labels, and takes records by these names alone."""

import csv
import json
import re
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml

from dpfedmeta import load, load_personal
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.targets import TargetRange
from tests.conftest import dpfedmeta
from tests.data.own_data import Named

COLUMNS = ("age", "pulse", "oldpeak")
MEAN, DEVIATION = np.array([55.0, 75.0, 2.0]), np.array([10.0, 10.0, 1.0])
RANGE = TargetRange(centre=120.0, scale=20.0, lowest=0.0, highest=300.0)
TRAIN = (
    "train", "--algo", "maml", "--rounds", "20", "--clients", "6", "--cohort", "3", "--shots", "2", "--task.queries",
    "2", "--evaluation.queries", "2", "--evaluation.episodes", "2", "--model.name", "linear", "--model.norm", "none",
    "--model.features", "raw", "--meta.adapt", "all", "--meta.learn", "all", "--meta.steps", "5", "--meta.lr", "0.1",
    "--population.kind", "natural", "--run.workers", "1", "--task.shift", "0",
)  # fmt: skip


def rows(count, seed):
    draw = np.random.default_rng(seed)
    ill = np.arange(count) % 2
    return ill, np.round(MEAN + (ill[:, None] - 0.5) * [12, 8, 1.2] + draw.normal(size=(count, 3)) * [8, 8, 0.7], 1)


def said(ill, records, numbers):
    """What stands in the table: a label, or a number that follows from the record."""
    return list(np.round(120 + 2 * (records[:, 0] - 55), 1)) if numbers else [("well", "ill")[each] for each in ill]


def written(path, header, lines):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *lines])
    return path


@pytest.fixture(scope="module", params=[False, True], ids=["classes", "numbers"])
def made(request, tmp_path_factory):
    """(folder, whether numbers are predicted): a run over people, and a client's own table."""
    numbers, folder = request.param, tmp_path_factory.mktemp("table")
    word, lines = "target" if numbers else "class", []
    for place, part in enumerate(["train"] * 6 + ["val", "test", "test"]):
        ill, records = rows(12, place)
        lines += [[f"p{place}", part, due, *own] for due, own in zip(said(ill, records, numbers), records, strict=True)]
    written(folder / "people.csv", ["client", "split", word, *COLUMNS], lines)
    task = {
        "name": "clinics", "source": {"reader": "vectors", "path": "people.csv"}, "features": 3,
        "mean": MEAN.tolist(), "deviation": DEVIATION.tolist(),
    }  # fmt: skip
    task |= (
        {"kind": "regression", "targets": {"centre": 120, "scale": 20, "lowest": 0, "highest": 300}}
        if numbers
        else {"labels": ["well", "ill"]}
    )
    (folder / "task.yaml").write_text(yaml.safe_dump(task))
    ways = () if numbers else ("--ways", "2")
    dpfedmeta(*TRAIN, *ways, "--dataset", "task.yaml", "--run.name", "r", folder=folder)
    ill, records = rows(60, 99)
    written(
        folder / "own.csv",
        [word, *COLUMNS],
        [[due, *own] for due, own in zip(said(ill, records, numbers), records, strict=True)],
    )
    return folder, numbers


@pytest.fixture(scope="module")
def model(made):
    folder, numbers = made
    ill, records = rows(60, 99)
    start = load(folder / "runs/r")
    model = start.adapt(records, said(ill, records, numbers), steps=50 if numbers else 20)
    model.save(folder / "mine.safetensors")
    return load_personal(folder / "mine.safetensors")


def test_a_file_keeps_columns_constants_and_labels(made, model):
    _, numbers = made
    assert model.form.columns == COLUMNS
    assert model.form.mean == tuple(MEAN)
    assert model.class_names == (() if numbers else ("well", "ill"))
    assert model.targets == (RANGE if numbers else None)


class Frame:
    """A table of pandas or polars, as far as anybody looks."""

    def __init__(self, held):
        self.held, self.columns = held, list(held)

    def __getitem__(self, name):
        return np.asarray(self.held[name])


def held(order=COLUMNS, **more):
    _, records = rows(60, 99)
    return {name: records[:, COLUMNS.index(name)] for name in order} | more


FORMS = {
    "a mapping": lambda folder: held(),
    "another order": lambda folder: held(COLUMNS[::-1]),
    "with our own columns": lambda folder: held(client=["p"] * 60, split=["test"] * 60),
    "texts": lambda folder: {name: [str(value) for value in values] for name, values in held().items()},
    "tensors": lambda folder: {name: torch.tensor(values) for name, values in held().items()},
    "a frame": lambda folder: Frame(held(COLUMNS[::-1])),
    "a list of records": lambda folder: [dict(zip(COLUMNS, own, strict=True)) for own in rows(60, 99)[1]],
    "a file": lambda folder: folder / "own.csv",
    "a file by its name": lambda folder: str(folder / "own.csv"),
}


@pytest.mark.parametrize("form", FORMS)
def test_records_are_found_by_name_and_standardised_once(made, model, form):
    folder, _ = made
    _, records = rows(60, 99)
    assert torch.equal(model.logits(FORMS[form](folder)), model.logits(records))


def test_one_record_is_a_mapping_of_numbers(made, model):
    _, numbers = made
    found = model.predict({"pulse": 84.0, "oldpeak": 3.2, "age": 68})
    assert found.shape == (1,)
    assert (
        130 < float(found[0]) < 170
        if numbers
        else model.predict_names({"pulse": 84, "oldpeak": 3.2, "age": 68}) == ["ill"]
    )


def test_predictions_are_right_and_of_standardised_records_they_are_not(made, model):
    """What the hospitals' page did: 82.7% became 50.0%."""
    _, numbers = made
    ill, records = rows(400, 7)
    due = said(ill, records, numbers)
    twice = (records - MEAN) / DEVIATION
    with pytest.warns(UserWarning, match=r"^column \w+: .* another unit"):
        of_twice = model.predict(twice).numpy()
    if numbers:
        assert np.abs(model.predict(records).numpy() - due).mean() < 8
        assert np.abs(of_twice - due).mean() > 12
        assert model.predict(records).dtype == torch.float64
    else:
        assert np.mean(np.array(model.predict_names(records)) == due) > 0.8
        assert np.mean(np.array(model.class_names)[of_twice] == due) < 0.6


def test_a_mark_for_what_was_not_measured_is_asked_about_where_the_task_lists_none(model):
    """It moved 15 of 34 labels without a word."""
    _, records = rows(60, 7)
    records[:9, 1] = -999.0
    with pytest.warns(UserWarning, match="column pulse") as said:
        model.predict(records)
    due = r"column pulse: -999 in 9 records, far from .*: was nothing measured there"
    assert [bool(re.match(due, str(each.message))) for each in said].count(True) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(rows(60, 7)[1])


WRONG = {
    "another name": (lambda: {**held(("age", "pulse")), "peak": [1.0] * 60}, "column peak: unknown.*oldpeak: missing"),
    "one more": (lambda: held(bmi=[22.0] * 60), "column bmi: unknown; the model's are age, pulse, oldpeak"),
    "one less": (lambda: held(("age", "pulse")), "column oldpeak: missing"),
    "a word": (lambda: {**held(), "age": ["old"] * 60}, "60 value.* record 1, column age: 'old' is not a number"),
    "a blank": (lambda: {**held(), "age": [""] * 60}, "record 1, column age: '' is not a number"),
    "decimals with commas": (lambda: {**held(), "age": ["1,5"] * 60}, "write decimals with a point"),
    "dates": (
        lambda: {**held(), "age": np.full(60, "2025-11-20", dtype="datetime64[ns]")},
        "'2025-11-20T.*not a number",
    ),
    "a name twice": (lambda: Named(np.zeros((4, 3)), columns=("age", "pulse", "age")), "column age: named twice"),
    "NaN": (lambda: {**held(), "age": [np.nan] * 60}, "vectors: 60 value.* record 1, column age: nan"),
    "infinity in an array": (lambda: np.full((4, 3), np.inf), "12 value.* record 1, column pulse: inf"),
    "a mask": (lambda: {**held(), "age": np.ma.masked_less(held()["age"], 50)}, "column age: has a mask"),
    "other names in one record": (lambda: [{"age": 1, "pulse": 2, "oldpeak": 3}, {"age": 1}], "not all have the same"),
    "an array of another width": (lambda: np.zeros((4, 2)), r"expected \[n, 3\]"),
    "no file": (lambda: "none.csv", "none.csv: cannot be read"),
}


@pytest.mark.parametrize("which", WRONG)
def test_other_names_and_values_that_are_none_are_refused(model, which):
    given, words = WRONG[which]
    with pytest.raises(InputError, match=words):
        model.predict(given())


def test_a_model_of_arrays_knows_no_names(model):
    with pytest.raises(InputError, match="knows no names of columns"):
        replace(model, form=replace(model.form, columns=())).predict(held())


TABLES = {
    "nothing": ("", "empty; the first line must name the columns$"),
    "no record": ("age\n", "no record in it"),
    "a name twice": ("age,age\n1,2\n", "column age: named twice"),
    "a short line": ("age,pulse\n1\n1,2\n1,2,3\n", "2 line.* line 2: 1 values for 2 columns; line 4: 3 values"),
    "semicolons": ("age;pulse;oldpeak\n1;2;3\n", "separate columns by commas"),
    "an index": (",age,pulse,oldpeak\n0,1,2,3\n", r"column 1 \(it has no name\): a numbering .* with index=False"),
    "another encoding": ("age,pulse,Größe\n1,2,3\n", r"line 1, character 13: byte 0xf6 is not UTF-8.*save it as UTF-8"),
}


@pytest.mark.parametrize("which", TABLES)
def test_a_file_that_is_no_table_is_one_line(model, tmp_path, which):
    """In the words of check-task; only the columns are another model's."""
    lines, words = TABLES[which]
    (tmp_path / "t.csv").write_text(lines, encoding="cp1252")
    with pytest.raises(InputError, match=rf"t\.csv: .*{words}"):
        model.predict(tmp_path / "t.csv")


def test_the_command_predicts_a_table(made, model):
    folder, numbers = made
    words = ("predict", "mine.safetensors", "own.csv")
    printed = dpfedmeta(*words, folder=folder).out.splitlines()
    assert printed[0] == ("record,predicted" if numbers else "record,predicted,p(well),p(ill)")
    assert len(printed) == 62
    for _ in range(2):  # a script that is run again replaces its own file
        dpfedmeta(*words, "--out", "predicted.csv", folder=folder)
    found = json.loads(dpfedmeta(*words, "--json", folder=folder).out)
    assert [each["predicted"] for each in found["predictions"]] == (
        model.predict(folder / "own.csv").tolist() if numbers else model.predict_names(folder / "own.csv")
    )
    assert found["judged"] == printed[-1]
    assert ("mean absolute error" in printed[-1]) if numbers else (int(printed[-1].split()[0]) > 45)
    told = dpfedmeta(*words, "--out", "said.csv", folder=folder).out
    assert "said.csv: 60 predictions" in told
    assert (folder / "said.csv").read_text().splitlines() == printed[:-1]
    assert (folder / "said.csv").stat().st_mode & 0o777 == 0o600
    written(folder / "other.csv", COLUMNS, rows(60, 3)[1] * [1, 100, 1])
    assert f"other.csv: column {COLUMNS[1]}: its mean lies" in dpfedmeta(*words[:2], "other.csv", folder=folder).err
    assert dpfedmeta(*words, folder=folder).err == ""


def test_the_command_names_the_file_and_all_of_its_wrong_values(made, model, tmp_path):
    path = written(tmp_path / "t.csv", COLUMNS, [[1, 2, "n/a"], [1, "1,5", 2]])
    found = dpfedmeta("predict", "mine.safetensors", str(path), folder=made[0], code=2).error
    assert "t.csv: 2 value(s) are not numbers: record 1, column oldpeak: 'n/a' is not a number; record 2" in found


def test_predictions_are_compared_aloud_or_not_at_all(made, model, tmp_path):
    folder, numbers = made
    ill, records = rows(4, 5)
    word, odd = ("target", ["x", "1e9"]) if numbers else ("class", ["sick", "well"])
    for value, due in zip(
        odd, ("1 of 4 are no numbers (record 1: 'x')", "record 1: 1e+09): another unit?"), strict=True
    ):
        lines = [[value if n == 0 else said(ill, records, numbers)[n], *own] for n, own in enumerate(records)]
        path = written(tmp_path / "t.csv", [word, *COLUMNS], lines)
        printed = dpfedmeta("predict", "mine.safetensors", str(path), folder=folder).out.splitlines()[-1]
        assert (due in printed) if numbers else (("does not know (record 1: 'sick')" in printed) == (value == "sick"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("none.safetensors", "own.csv"), "none.safetensors: not there"),
        (("mine.safetensors", "none.csv"), "none.csv: not there"),
        (("own.csv", "own.csv"), "is damaged, or not a personal model"),
        (("mine.safetensors", "own.csv", "--out", "x.txt"), "--out"),
        (("mine.safetensors", "own.csv", "--out", "runs/r/x.csv"), "runs/r"),
        (("mine.safetensors", "people.csv", "--out", "none/x.csv"), "none"),
    ],
)
def test_what_the_command_cannot_use_is_one_line(made, model, words, error):
    assert error in dpfedmeta("predict", *words, folder=made[0], code=2).error


def test_labels_of_the_public_list_are_given_by_name_and_others_are_refused(made):
    folder, numbers = made
    ill, records = rows(60, 99)
    start = load(folder / "runs/r")
    if numbers:
        with pytest.raises(InputError, match="400 is outside the public range"):
            start.adapt(records, [400.0] * 60)
        with pytest.raises(InputError, match="leave them out"):
            start.adapt(records, [100.0] * 60, class_names=["a"])
        with pytest.raises(InputError, match="expected 60 numbers"):
            start.adapt(records, [100.0] * 59)
        return
    by_name, by_place = start.adapt(records, said(ill, records, False)), start.adapt(records, ill)
    assert torch.equal(by_name.logits(records), by_place.logits(records))
    with pytest.raises(InputError, match=r"'dead' is not in the public list \(well, ill\)"):
        start.adapt(records, ["dead"] * 60)


def test_targets_that_name_their_rows_belong_to_records_that_name_them_alike(made):
    folder, numbers = made
    ill, records = rows(60, 99)
    start, due, names = load(folder / "runs/r"), said(ill, records, numbers), range(100, 160)
    table = Named(records, columns=COLUMNS, index=names)
    by_place = start.adapt(records, due).logits(records)
    for given, targets in ((table, Named(due, index=names)), (table, due), (records, Named(due))):
        assert torch.equal(start.adapt(given, targets).logits(records), by_place)
    if not numbers:
        assert torch.equal(start.adapt(table, Named(ill, index=names)).logits(records), by_place)
    with pytest.raises(InputError, match=r"name their rows otherwise \(index\)"):
        start.adapt(table, Named(due[::-1], index=names[::-1]))
    with pytest.raises(InputError, match=r"hand over targets\.to_numpy\(\)"):
        start.adapt(records, Named(due, index=names))


def test_no_probabilities_and_names_of_numbers(made, model):
    if made[1]:
        with pytest.raises(InputError, match="predicts numbers"):
            model.probabilities(held())
        with pytest.raises(InputError, match="no class names"):
            model.predict_names(held())
