"""What the owner of one client's data is told of them."""

import json

import pytest

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
    assert "uses 4 of them" in said[-1]


def test_too_few_classes_send_noise_alone(table):
    report = inspect_client(table, shape(2, shots=2, queries=1))
    assert (report.able, report.sound, report.used) == (("ill",), False, 0)
    assert "1 classes have so many; such a client sends only noise" in describe_client(report)[-1]


def test_the_command_says_so(table):
    fits = dpfedmeta("check-task", str(table), "--client", "--ways", "2", "--shots", "1", "--task.queries", "1")
    assert "takes part" in fits.out
    told = dpfedmeta("check-task", str(table), "--client", "--ways", "3", "--json", code=2)
    assert json.loads(told.out)["sound"] is False
    for more in (("--out", "a.png"), ("--evaluation.queries", "3")):
        assert "--client: goes with" in dpfedmeta("check-task", str(table), "--client", *more, code=2).error


def test_data_of_several_clients_are_refused(table):
    table.write_text("client,class,age\na,ill,1\nb,ill,2\n")
    with pytest.raises(InputError, match="names 2 clients"):
        inspect_client(table, shape(2))


def test_numbers_to_predict_have_no_classes_to_be_too_few(tmp_path):
    path = tmp_path / "clinic.csv"
    path.write_text("target,age\n" + "".join(f"{n / 4},{n}\n" for n in range(6)))
    report = inspect_client(path, shape(5, shots=3, queries=2))
    assert (report.sound, report.used, report.columns) == (True, 5, ("age",))
    said = describe_client(report)
    assert "6 records with a number to predict take part" in said[1]
    assert "a plan that asks for 5 records (3 support, 2 query) uses 5 of them" in said[-1]
    assert "cannot use them" in describe_client(inspect_client(path, shape(5, shots=5, queries=2)))[-1]
