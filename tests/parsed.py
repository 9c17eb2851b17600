"""The package as trees: each file is read and walked once, whichever tests look at it."""

import ast
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "dpfedmeta"


@cache
def modules():
    """All files of the package, in order."""
    return sorted(PACKAGE.rglob("*.py"))


@cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path):
    return [*ast.walk(tree_of(path))]
