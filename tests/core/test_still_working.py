"""Long steps before round 0 are not silent where nobody sees a terminal."""

import logging
import threading
import time
from types import SimpleNamespace

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


@pytest.mark.parametrize("level", [logging.NOTSET, logging.WARNING, logging.DEBUG])
def test_a_command_leaves_the_callers_log_as_it_was(level, monkeypatch, capsys):
    log = logging.getLogger("dpfedmeta")
    monkeypatch.setattr(log, "level", level)
    before = list(log.handlers)
    with pytest.raises(ValueError, match="stop"), log_on_stderr():
        assert log.isEnabledFor(logging.INFO)
        log.info("seen")
        raise ValueError("stop")
    assert log.level == level
    assert log.handlers == before
    assert capsys.readouterr().err == "seen\n"


def test_a_step_that_fails_is_told_of_no_more():
    before = threading.active_count()
    with pytest.raises(ValueError, match="stop"), told_while("reading"):
        raise ValueError("stop")
    assert threading.active_count() == before


def test_how_long_a_step_has_gone_on_is_counted_from_its_beginning(caplog, monkeypatch):
    clock = iter([100.0, 110.2, 120.4, 131.0])
    looks = iter([False, False, False, True])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    ended = SimpleNamespace(wait=lambda seconds: next(looks), set=lambda: None)
    monkeypatch.setattr(threading, "Event", lambda: ended)
    run = SimpleNamespace(start=lambda: None, join=lambda: None)
    steps = []
    monkeypatch.setattr(threading, "Thread", lambda target, daemon: steps.append((target, daemon)) or run)
    caplog.set_level(logging.INFO, "dpfedmeta")
    with told_while("reading"):
        ((tell, daemon),) = steps
        tell()
    assert caplog.messages == ["reading: 10 s so far", "reading: 20 s so far", "reading: 31 s so far"]
    # A process that ends waits for no such thread.
    assert daemon is True
