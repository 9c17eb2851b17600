"""Flower calls nobody and writes where we say, unless the operator chose otherwise."""

import logging
import os

import pytest

from dpfedmeta.federation.flower.flower_environment import prepare_flower

QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    for name in (*QUIET, "FLWR_HOME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.mark.parametrize("name", QUIET)
def test_it_calls_nobody(tmp_path, name):
    prepare_flower(tmp_path)
    assert os.environ[name] == QUIET[name]
    assert os.environ["FLWR_HOME"] == str(tmp_path)


def test_a_choice_of_the_operator_stays(tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "chosen"))
    prepare_flower()
    assert os.environ["FLWR_HOME"] == str(tmp_path / "chosen")


def test_without_a_folder_it_writes_where_nobody_looks():
    prepare_flower()
    assert "dpfedmeta-flower" in os.environ["FLWR_HOME"]


@pytest.mark.parametrize("name", ["flwr", "uvicorn", "asyncio", "httpx"])
def test_requests_that_fail_are_no_news(tmp_path, name):
    prepare_flower(tmp_path)
    assert not logging.getLogger(name).isEnabledFor(logging.ERROR)
