"""Long steps before round 0 are not silent where nobody sees a terminal."""

import logging
import time

import pytest

from dpfedmeta.config.load import resolve
from dpfedmeta.core import still_working
from dpfedmeta.core.still_working import log_on_stderr, told_while
from dpfedmeta.data.storage.decoded_cache import Contents, cached
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.privacy.solve import make_privacy


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    monkeypatch.setattr(still_working, "EVERY_SECONDS", 0.01)


def test_a_line_comes_while_a_step_goes_on_and_none_after_it(capsys):
    with log_on_stderr(), told_while("reading"):
        time.sleep(0.1)
    assert capsys.readouterr().err.startswith("reading: 0 s so far\n")
    with log_on_stderr():
        time.sleep(0.03)
    logging.getLogger("dpfedmeta").info("nobody asked for this")
    assert capsys.readouterr().err == ""


def test_what_is_quick_says_nothing(capsys, monkeypatch):
    monkeypatch.setattr(still_working, "EVERY_SECONDS", 60.0)
    with log_on_stderr(), told_while("reading"):
        pass
    assert capsys.readouterr().err == ""


def test_decoding_and_solving_are_told_of(tmp_path, caplog):
    def slow():
        time.sleep(0.05)
        return Contents(classes=(), decode=lambda: iter(()))

    caplog.set_level(logging.INFO, "dpfedmeta")
    cached(tmp_path, "birds", ["key"], (1, 2, 2), slow)
    assert "reading the images or records of birds" in caplog.text
    caplog.clear()
    settings = resolve("dp-agr", "strokes", None, {"server.rounds": "3", "privacy.client.epsilon": "1.4321"})
    make_privacy(settings, load_task("strokes")[0])
    assert "solving the plan for its noise" in caplog.text
