"""A table as Parquet is the same table as CSV through every door, and what is not a table is said in one line."""

import csv
import datetime
import json
import re
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
import yaml
from own_data import token_rows, vector_rows, write_csv, write_image, write_task

from dpfedmeta import load, load_personal
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.columns import OWNERS
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.data.storage import parquet_lines
from dpfedmeta.data.storage.parquet_lines import open_lines
from dpfedmeta.data.task_file import load_task
from dpfedmeta.data.user_sources.csv_table import read_columns, read_header, read_table
from dpfedmeta.data.user_sources.readers import people_contents, reader_name
from dpfedmeta.data.user_sources.sound_rows import any_rows
from tests.conftest import dpfedmeta
from tests.training.personal.test_named_records import COLUMNS, DEVIATION, MEAN, TRAIN, rows, said

TEXTS = ("class", "client", "split", "path", "tokens")


def as_parquet(path, header, lines):
    """Columns of numbers as numbers, blanks as nulls; all others as text, classes and clients as categories."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {}
    for place, name in enumerate(header):
        held = [None if line[place] == "" else line[place] for line in lines]
        array = pa.array([each if each is None else str(each) for each in held] if name in TEXTS else held)
        columns[name] = array.dictionary_encode() if name in OWNERS[:2] else array
    parquet.write_table(pa.table(columns), path, row_group_size=7)
    return path


def both(folder, name, header, lines):
    """(CSV, Parquet) of the same rows."""
    csv_file = write_csv(folder / f"{name}.csv", [header, *lines])
    return csv_file, as_parquet(folder / f"{name}.parquet", header, lines)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("DPFEDMETA_CACHE", str(tmp_path / "cache"))


def people_rows(blanks=0):
    """Clients with parts and rows; some values may be blank."""
    lines = []
    for place, part in enumerate(["train"] * 6 + ["val", "test", "test"]):
        ill, records = rows(12, place)
        own = [
            [f"p{place}", part, ("well", "ill")[each], *values]
            for each, values in zip(ill, records.tolist(), strict=True)
        ]
        for line in own[:blanks]:
            line[4] = ""
        lines += own
    return ["client", "split", "class", *COLUMNS], lines


def tables(folder):
    """Kinds of tables: (name, header, rows, keys of a task file or None)."""
    plain, tokens = vector_rows(), token_rows()
    for number in range(54):
        write_image(folder / "images" / f"{number}.png", number)
    listed = [[f"c{number // 6}", f"images/{number}.png"] for number in range(54)]
    header, lines = people_rows(blanks=1)
    yield "vectors", plain[0], plain[1:], None
    yield "missing", header, lines, {"features": 3, "missing": [""]}
    people, numbers = people_rows(), {"centre": 3, "scale": 2, "lowest": 0, "highest": 11}
    measured = [[*line[:2], 0.1 * place, *line[3:]] for place, line in enumerate(people[1])]
    yield "people", *people, None
    keys = {"features": 3, "kind": "regression", "targets": numbers}
    yield "targets", ["client", "split", "target", *COLUMNS], measured, keys
    yield "tokens", tokens[0], tokens[1:], {"length": 8, "vocabulary": 40}
    yield "listed", ["class", "path"], listed, None


def test_a_table_is_the_same_through_every_reader(tmp_path):
    for name, header, lines, keys in tables(tmp_path):
        files = both(tmp_path, name, header, lines)
        reader = reader_name(files[0])
        assert reader_name(files[1]) == reader
        assert read_header(files[0]) == read_header(files[1])
        assert read_table(files[0]) == read_table(files[1])
        assert read_columns(files[0]) == read_columns(files[1])
        if keys:
            files = [
                write_task(tmp_path / f"{name}-{file.suffix[1:]}.yaml", reader, file.name, **keys) for file in files
            ]
        one, two = (open_dataset(str(file), ways=None if name == "targets" else 2) for file in files)
        assert one.task.form == two.task.form
        for split in ("train", "val", "test"):
            a, b = getattr(one, split), getattr(two, split)
            assert (a.names, a.counts, a.clients) == (b.names, b.counts, b.clients)
            assert a.digest() == b.digest()
            assert np.asarray(a.images).tobytes() == np.asarray(b.images).tobytes()
        if keys:
            continue
        form = load_task(str(files[0]), None)[0].form
        found = [people_contents(file, form) for file in files]
        assert found[0].classes == found[1].classes
        blocks = [np.concatenate([np.asarray(each) for each in own.decode()]) for own in found]
        assert blocks[0].tobytes() == blocks[1].tobytes()


def test_rows_of_a_real_client_are_judged_alike_one_by_one(tmp_path):
    header, lines = people_rows(blanks=2)
    lines[3][3] = float("inf")
    lines[5][2] = ""
    one, two = (any_rows(file) for file in both(tmp_path, "own", header, lines))
    assert one.rows == two.rows
    assert len(one.rows) < len(lines)
    assert [str(each) for each in one.values] == [str(each) for each in two.values]
    assert one.unsound
    assert [each.replace("own.csv", "own.parquet") for each in one.unsound] == [*two.unsound]
    assert one.digests() == two.digests()


def test_checks_trainings_and_predictions_are_the_same_bit_for_bit(tmp_path):
    told, header, lines = [], *people_rows()
    ill, records = rows(60, 99)
    own = [[due, *values] for due, values in zip(said(ill, records, False), records.tolist(), strict=True)]
    for ending in ("csv", "parquet"):
        folder = tmp_path / ending
        folder.mkdir()
        for name, table in (("people", (header, lines)), ("own", (["class", *COLUMNS], own))):
            both(folder, name, *table)
        task = {
            "name": "clinics", "source": {"reader": "vectors", "path": f"people.{ending}"}, "features": 3,
            "mean": MEAN.tolist(), "deviation": DEVIATION.tolist(), "labels": ["well", "ill"],
        }  # fmt: skip
        (folder / "task.yaml").write_text(yaml.safe_dump(task))
        few = ("--shots", "2", "--task.queries", "2", "--evaluation.queries", "2", "--ways", "2")
        checked = dpfedmeta("check-task", f"people.{ending}", *few, folder=folder).out
        client = dpfedmeta("check-task", f"own.{ending}", "--client", "--ways", "2", "--shots", "2", folder=folder).out
        dpfedmeta(
            *TRAIN, "--ways", "2", "--dataset", "task.yaml", "--run.name", "r", "--run.noise_seed", "3", folder=folder
        )
        on = ("evaluate", "runs/r", "--on", f"people.{ending}", "--repeats", "2")
        judged = dpfedmeta(*on, folder=folder).out
        load(folder / "runs/r").adapt(records, said(ill, records, False), steps=5).save(folder / "mine.safetensors")
        predicted = dpfedmeta("predict", "mine.safetensors", f"own.{ending}", "--json", folder=folder).out
        words = [re.sub(r"\b(csv|parquet)\b|people-people-\w+", "", text) for text in (checked, client, judged)]
        weights = next((folder / "runs/r").rglob("*.safetensors")).read_bytes()
        told.append((*words, json.loads(predicted), weights))
        assert load_personal(folder / "mine.safetensors").predict(folder / f"own.{ending}").shape == (60,)
    for one, two in zip(*told, strict=True):
        assert one == two


def test_numbers_keep_all_their_bits_and_everything_else_is_spelled_as_in_csv(tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    hard = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, -0.0, float("nan"), None]
    columns = {
        "class": pa.array(["a", 'b,"c"', "", "naïve", "e\nf", " g ", None]), "double": pa.array(hard),
        "single": pa.array([0.1, 1e-45, 3.4e38, None, 0, 1, 2], pa.float32()),
        "int": pa.array([2**63 - 1, -(2**63), 0, None, 1, 2, 3]),
        "unsigned": pa.array([2**64 - 1, *range(6)], pa.uint64()),
        "true": pa.array([True, False, None, True, True, True, True]),
        "kind": pa.array(["u", "v", None, "u", "u", "u", "u"]).dictionary_encode(),
        "decimal": pa.array([Decimal("1.50"), None, *map(Decimal, range(5))]), "nothing": pa.nulls(7),
    }  # fmt: skip
    parquet.write_table(pa.table(columns), tmp_path / "t.PARQUET")
    with open_lines(tmp_path / "t.PARQUET") as file:
        names, *lines = csv.reader(file, strict=True)
    assert names == list(columns)
    found = dict(zip(names, zip(*lines, strict=True), strict=True))
    for name in ("double", "single"):
        due = [None if each is None else float(each) for each in columns[name].to_pylist()]
        read = [None if text == "" else float(text) for text in found[name]]
        assert np.array(due, dtype=float).tobytes() == np.array(read, dtype=float).tobytes()
        assert [each is None for each in due] == [each is None for each in read]
    for name in ("int", "unsigned"):
        assert [None if text == "" else int(text) for text in found[name]] == columns[name].to_pylist()
    assert found["class"] == ("a", 'b,"c"', "", "naïve", "e\nf", " g ", "")
    assert (found["true"][:3], found["kind"][:3], found["decimal"][:2]) == (
        ("True", "False", ""),
        ("u", "v", ""),
        ("1.50", ""),
    )


COLUMNS_OF_OTHERS = {
    "timestamp[us]": [datetime.datetime(2026, 1, 1)], "date32[day]": [datetime.date(2026, 1, 1)], "list": [[1, 2]],
    "halffloat": np.array([0.1], np.float16), "struct": [{"a": 1}], "binary": [b"x"],
    "duration[us]": [datetime.timedelta(1)],
}  # fmt: skip


@pytest.mark.parametrize("kind", COLUMNS_OF_OTHERS)
def test_columns_that_csv_has_no_one_spelling_of_are_refused(tmp_path, kind):
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({"class": ["a"], "odd": COLUMNS_OF_OTHERS[kind]}), tmp_path / "t.parquet")
    said = refused(tmp_path / "t.parquet")
    assert f"t.parquet: column odd: {kind}" in said
    assert "take the column out" in said


def refused(path):
    """The one line by which every door refuses a table."""
    words = set()
    for door in (read_header, read_table, read_columns, any_rows, lambda each: open_dataset(str(each), ways=2)):
        with pytest.raises(InputError) as caught:
            door(Path(path))
        words.add(str(caught.value))
    (one,) = words
    assert "\n" not in one
    return one


@pytest.mark.parametrize("bent", ["cut", "begun", "empty", "csv", "header", "footer", "page"])
def test_a_damaged_file_is_one_line(tmp_path, bent):
    path = as_parquet(tmp_path / "t.parquet", ["class", "x"], [["a", 1.5 * place] for place in range(200)])
    whole = path.read_bytes()
    path.write_bytes({
        "cut": whole[:-20], "begun": whole[:40], "empty": b"", "csv": b"class,x\na,1\n",
        "header": b"PARE" + whole[4:-4] + b"PARE",
        "footer": whole[:-60] + bytes(40) + whole[-20:], "page": whole[:8] + bytes(60) + whole[68:],
    }[bent])  # fmt: skip
    for door in (read_table, read_columns, any_rows, lambda each: open_dataset(str(each), ways=2)):
        with pytest.raises(InputError, match=r"t\.parquet: cannot be read as Parquet \(.+\)$") as caught:
            door(path)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "what"), [("_MOST_VALUES", "400 values"), ("_MOST_BYTES", "bytes, unpacked")])
def test_what_a_file_says_of_itself_is_compared_before_anything_is_decoded(tmp_path, monkeypatch, name, what):
    from pyarrow import parquet

    path = as_parquet(tmp_path / "t.parquet", ["class", "x"], [["a", 1.5 * place] for place in range(200)])
    monkeypatch.setattr(parquet_lines, name, 399)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", None)
    assert re.search(
        rf"t\.parquet: says that it holds [\d,]*.*{what}; at most 399 are read; split the table", refused(path)
    )


def test_few_bytes_that_become_much_text_end_where_the_limit_is(tmp_path, monkeypatch):
    """A category of some length that every row repeats."""
    path = as_parquet(tmp_path / "t.parquet", ["class", "x"], [["a" * 5000, 1] for _ in range(2000)])
    assert path.stat().st_size < 2_000_000
    monkeypatch.setattr(parquet_lines, "_MOST_BYTES", 2_000_000)
    with pytest.raises(InputError, match="more than 2,000,000 bytes of text"):
        read_table(path)


def test_an_index_of_pandas_is_a_numbering_of_rows(tmp_path):
    path = as_parquet(tmp_path / "t.parquet", ["class", "x", "__index_level_0__"], [["a", 1.5, 7], ["b", 2.5, 8]])
    assert "column __index_level_0__: a numbering of the rows" in refused(path)


def test_without_pyarrow_one_line_says_what_to_type(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    assert "pyarrow is not installed; type: pip install 'dpfedmeta[parquet]', or save it as CSV" in refused(
        tmp_path / "t.parquet"
    )
