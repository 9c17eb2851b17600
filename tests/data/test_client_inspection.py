"""What the owner of one client's data is told of them."""

import json

import numpy as np
import pytest
from PIL import Image

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.client_inspection import describe_client, inspect_client
from dpfedmeta.data.episodes.shape import EpisodeShape
from tests.conftest import dpfedmeta

TABLE = "class,age,pulse\n" + "ill,1,2\n" * 3 + "well,3,4\nwell,5,6\nodd,7,8\n"


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "clinic.csv"
    path.write_text(TABLE)
    return path


def shape(ways, shots=1, queries=1):
    return EpisodeShape(ways=ways, shots=shots, queries=queries)


def test_classes_that_are_large_enough_are_used(table):
    report = inspect_client(table, shape(2))
    assert (report.classes, report.able, report.sound, report.used) == (
        {"ill": 3, "odd": 1, "well": 2},
        ("ill", "well"),
        True,
        4,
    )
    assert (report.columns, report.repeated) == (("age", "pulse"), 2)
    said = describe_client(report)
    assert "6 records of 3 classes take part: ill (3), odd (1), well (2)" in said[1]
    assert "2 features, found by their names: age, pulse" in said[2]
    assert "uses 4 of them" in said[-2]
    assert "decides over each by itself" in said[-1]


def test_too_few_classes_send_noise_alone(table):
    report = inspect_client(table, shape(2, shots=2, queries=1))
    assert (report.able, report.sound, report.used) == (("ill",), False, 0)
    assert "1 classes have so many; such a client sends only noise" in describe_client(report)[-2]


def test_the_command_says_so(table):
    fits = dpfedmeta("check-task", str(table), "--client", "--ways", "2", "--shots", "1", "--task.queries", "1")
    assert "takes part" in fits.out
    told = dpfedmeta("check-task", str(table), "--client", "--ways", "3", "--json", code=2)
    assert json.loads(told.out)["sound"] is False
    for more in (("--out", "a.png"), ("--evaluation.queries", "3")):
        assert "--client: goes with" in dpfedmeta("check-task", str(table), "--client", *more, code=2).error


def test_what_is_hardly_meant_is_told(table):
    """Row by row nothing is wrong with it, so it takes part."""
    table.write_text("client,class,age\na,ill,1\nb,Ill,2\na,well,3\nb,well,4\n")
    report = inspect_client(table, shape(1))
    assert report.classes == {"Ill": 1, "ill": 1, "well": 2}
    said = "\n".join(describe_client(report))
    assert "column client names 2 clients (a; b); all rows count as this client's" in said
    assert "two spellings: class 'ill' (line 2) and 'Ill' (line 3)" in said


def test_rows_that_are_wrong_are_counted_and_explained(table):
    table.write_text(TABLE + "ill,,2\nwell,nan,2\nill,1\nNA,1,2\n")
    report = inspect_client(table, shape(2))
    assert (sum(report.classes.values()), len(report.unsound), report.sound) == (6, 4, True)
    said = "\n".join(describe_client(report))
    assert "4 records are wrong and left out" in said
    for words in ("line 8, column age: '' is not a number", "line 9, number 1: nan", "line 10: 2 values for 3 columns"):
        assert words in said
    told = dpfedmeta("check-task", str(table), "--client", "--ways", "2", "--shots", "1", "--json", code=2)
    assert len(json.loads(told.out)["unsound"]) == 4
    # What to do about them is said once.
    table.write_text(TABLE + "ill,x,2\n" * 3)
    said = "\n".join(describe_client(inspect_client(table, shape(2))))
    assert (said.count("'x' is not a number"), said.count("; write numbers there")) == (3, 1)
    table.write_text("class,age\nill,x\n")
    with pytest.raises(InputError, match=r"has no sound record in its train part: .*'x' is not a number"):
        inspect_client(table, shape(2))


def test_images_that_do_not_decode_are_counted_too(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "own" / name).mkdir(parents=True)
        Image.fromarray(np.full((9, 9), 4_000, dtype=np.uint16)).save(tmp_path / "own" / name / "0.png")
        Image.new("L", (9, 9)).save(tmp_path / "own" / name / "1.png")
    (tmp_path / "own" / "a" / "2.png").write_bytes(b"no image")
    (tmp_path / "own" / "a" / "3.heic").write_bytes(b"no image")
    report = inspect_client(tmp_path / "own", shape(2))
    assert (report.classes, report.sound) == ({"a": 2, "b": 2}, True)
    assert len(report.unsound) == 2
    assert "a/2.png: does not decode" in report.unsound[1]


def test_numbers_to_predict_have_no_classes_to_be_too_few(tmp_path):
    path = tmp_path / "clinic.csv"
    path.write_text("target,age\n" + "".join(f"{n / 4},{n}\n" for n in range(6)))
    report = inspect_client(path, shape(5, shots=3, queries=2))
    assert (report.sound, report.used, report.columns) == (True, 5, ("age",))
    said = describe_client(report)
    assert "6 records with a number to predict take part" in said[1]
    assert "a plan that asks for 5 records (3 support, 2 query) uses 5 of them" in said[-2]
    assert "cannot use them" in describe_client(inspect_client(path, shape(5, shots=5, queries=2)))[-2]
