"""A pytest plugin: which lines of the package each test reaches, and how long it takes.

Modules are imported with a mark at the head of each block, which costs a fifth of the time of the tests; coverage.py,
with a context for each test, costs more than two thirds. What numba compiles is left as it is.
"""

from __future__ import annotations

import ast
import importlib.machinery
import itertools
import json
import os
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from types import CodeType, ModuleType

import pytest

# Set by machine.py: the package's folder, and where the answer goes.
PACKAGE, ANSWER = (Path(os.environ[f"LINES_REACHED_{name}"]) for name in ("PACKAGE", "ANSWER"))

_NAME = "__reached__"
_marks = bytearray(200_000)
# Of each mark: the file and the lines whose statements run with it.
_places: list[tuple[str, list[range]]] = []
_reached: dict[str, list[int]] = {}
_seconds: dict[str, float] = {}
_failed: set[str] = set()


class Marked(importlib.machinery.SourceFileLoader):
    """A module whose blocks say that they run."""

    def get_code(self, fullname: str) -> CodeType:
        """Its code with marks, which no file keeps."""
        source = Path(self.path).read_text()
        file = str(Path(self.path).relative_to(PACKAGE))
        tree = ast.parse(source)
        for body in _bodies(tree):
            body[:] = _marked(body, file)
        return compile(ast.fix_missing_locations(tree), self.path, "exec", dont_inherit=True)

    def exec_module(self, module: ModuleType) -> None:
        """Run it, with the marks at hand."""
        vars(module)[_NAME] = _marks
        super().exec_module(module)


class Finder:
    """Loads the package's modules with marks."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Theirs; nothing for others'."""
        if name.partition(".")[0] != PACKAGE.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.origin and Path(spec.origin).is_relative_to(PACKAGE) and not spec.origin.endswith("_jit.py"):
            spec.loader = Marked(name, spec.origin)
        return spec


def _bodies(tree: ast.AST) -> list[list[ast.stmt]]:
    """All lists of statements."""
    values = [value for node in ast.walk(tree) for _, value in ast.iter_fields(node)]
    return [value for value in values if isinstance(value, list) and value and isinstance(value[0], ast.stmt)]


def _marked(body: Sequence[ast.stmt], file: str) -> Iterator[ast.stmt]:
    """The statements with a mark before the first of them, and after each that may leave before its end."""
    ends = True
    for statement in body:
        inner = [each[0].lineno for each in _bodies(statement)]
        words = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if ends and not words and not (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            mark = ast.parse(f"{_NAME}[{len(_places)}] = 1").body[0]
            yield ast.copy_location(mark, statement)
            _places.append((file, []))
            ends = False
        if not ends:
            # Of a compound statement its head.
            last = min(inner) - 1 if inner else statement.end_lineno or 0
            _places[-1][1].append(range(statement.lineno, max(last, statement.lineno) + 1))
            ends = bool(inner)
        yield statement


sys.meta_path.insert(0, Finder)  # type: ignore[arg-type]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """What each test reaches, its fixtures with it."""
    before = sum(os.times()[:4])
    _marks[:] = bytes(len(_marks))
    try:
        return (yield)
    finally:
        _seconds[item.nodeid] = sum(os.times()[:4]) - before
        _reached[item.nodeid] = [mark for mark in range(len(_places)) if _marks[mark]]


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What does not pass without a mistake sees none."""
    if not report.passed:
        _failed.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the answer: seconds of the tests, and for each file's lines the numbers of the tests that reach them."""
    tests = [test for test in _seconds if test not in _failed]
    lines: dict[str, dict[int, list[int]]] = {}
    for number, test in enumerate(tests):
        for file, spans in (_places[mark] for mark in _reached[test]):
            for line in itertools.chain.from_iterable(spans):
                found = lines.setdefault(file, {}).setdefault(line, [])
                if number not in found[-1:]:
                    found.append(number)
    ANSWER.write_text(json.dumps({"tests": [(test, _seconds[test]) for test in tests], "lines": lines}))
