"""The package grows by a decision: no number of budget.yaml is passed without a commit that says why."""

import ast

import pytest

from tests.budget.measure_budget import (
    PACKAGE,
    arrows,
    arrows_of,
    broken,
    feature_of,
    needs,
    new_arrows,
    probed,
    recorded,
    sizes,
)


@pytest.fixture(scope="module")
def counted():
    return sizes()


@pytest.fixture(scope="module")
def of_runs():
    return probed()


def test_what_stands_in_the_source_is_in_the_budget(counted):
    assert [*broken(recorded()["numbers"], counted)] == []


def test_what_a_run_needs_is_in_the_budget(of_runs):
    assert [*broken(recorded()["numbers"], needs(of_runs))] == []


@pytest.mark.slow
def test_worker_processes_load_nothing_that_is_not_counted():
    assert [*broken(recorded()["numbers"], needs(probed("--workers")))] == []


def test_the_core_names_no_further_feature():
    assert [*new_arrows(recorded()["arrows"], arrows())] == []


def test_every_number_of_the_table_is_counted(counted, of_runs):
    assert {*recorded()["numbers"]} == {*counted, *needs(of_runs)}


def test_more_of_anything_is_seen_and_says_what_to_do(counted):
    for name, number in counted.items():
        floor = name.startswith(("median", "mean"))
        assert not [*broken({**counted, name: number - floor}, counted)]
        (said,) = broken({**counted, name: number + (1 if floor else -1)}, counted)
        assert said.startswith(f"{name}: at {'least' if floor else 'most'} ")
        assert f"now {number}. " in said
        assert f'--write "{name}" and say why' in said
    (unknown,) = broken({}, {"lines of a new room": 5})
    assert "says nothing of it" in unknown


def test_runs_are_seen_in_every_function_and_process(of_runs):
    # A file that only a function imports, one that a real client shares with no simulation, and one of its server.
    assert str(PACKAGE / "reporting/html/page.py") in of_runs["dp-agr"]
    assert str(PACKAGE / "federation/client/client_state.py") in {*of_runs["client"]} - {*of_runs["dp-agrlr-secure"]}
    assert str(PACKAGE / "federation/server/training_server.py") not in of_runs["client"]
    assert any(line.endswith(" ClientRunner.clipped_sum") for line in of_runs["round"])
    assert of_runs["calls"] > 1000


def test_an_import_of_a_feature_is_seen_wherever_it_stands():
    planted = """
if TYPE_CHECKING:
    from dpfedmeta.analytics.analysis import Analysis

def late():
    from dpfedmeta.federation.client import client
    import dpfedmeta.auditing.observed_loop
    from dpfedmeta.core.errors import InputError
"""
    found = arrows_of(PACKAGE / "training/loop.py", [*ast.walk(ast.parse(planted))])
    assert found == ["auditing/observed_loop.py", "federation/client/client.py"]
    assert feature_of("training/loop.py") is None
    sentences = [*new_arrows({"training/loop.py": found[:1]}, {"training/loop.py": found})]
    assert len(sentences) == 1
    assert sentences[0].startswith("training/loop.py is core and imports federation/client/client.py, which is of real")
