"""A pytest plugin: which lines of the package each test reaches, and how long it takes (coverage has to be there)."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

# Set by machine.py: the package's folder, and where the answer goes.
PACKAGE, ANSWER = (Path(os.environ[f"LINES_REACHED_{name}"]) for name in ("PACKAGE", "ANSWER"))

_measured = coverage.Coverage(data_file=None, include=[f"{PACKAGE}/*"])
_seconds: dict[str, float] = {}
_failed: set[str] = set()


def pytest_configure() -> None:
    """Begin before the package is imported."""
    _measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Each test is a context of its own, its fixtures with it."""
    before = sum(os.times()[:4])
    _measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _measured.switch_context("")
        _seconds[item.nodeid] = sum(os.times()[:4]) - before


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What does not pass without a mistake sees none."""
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the answer: seconds of the tests, and for each file's lines the numbers of the tests that reach them."""
    _measured.stop()
    tests = [test for test in _seconds if test not in _failed]
    number = {test: index for index, test in enumerate(tests)}
    data = _measured.get_data()
    lines = {
        str(Path(file).relative_to(PACKAGE)): {
            line: found
            for line, contexts in data.contexts_by_lineno(file).items()
            if (found := sorted(number[test] for test in contexts if test in number))
        }
        for file in data.measured_files()
    }
    ANSWER.write_text(json.dumps({"tests": [(test, _seconds[test]) for test in tests], "lines": lines}))
