"""What a planted mistake is, and those that are written down."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One mistake.

    Attributes:
        name: For people.
        file: Below dpfedmeta/, or beside it (../docs/...).
        old: Text that occurs once in it.
        new: What takes its place.
        tests: Files that should see it.
        first: Those of them that were written for it.
        why: Why it would be harmless if none does; empty where it has to be seen.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    why: str = ""
    first: tuple[str, ...] = ()


class Stale(Exception):
    """The catalogue names a text that the code no longer has, or has twice."""


@lru_cache(maxsize=1)
def written() -> dict[str, Any]:
    """The catalogue's file."""
    content: dict[str, Any] = yaml.load((HERE / "catalogue.yaml").read_text(), Loader=yaml.CSafeLoader)
    return content


def tests_of(file: str) -> tuple[str, ...]:
    """The mirror tests of a source file and their neighbours, those that are quick first."""
    return tuple(f"tests/{name}" for name in written()["tests"][file])


def catalogue() -> list[Mutant]:
    """All mistakes that are written down."""
    found = []
    for entry in written()["mutants"]:
        own = [f"tests/{name}" for name in entry.get("first", [])]
        others = [test for test in tests_of(entry["file"]) if test not in own]
        fields = {key: value for key, value in entry.items() if key != "first"}
        found.append(Mutant(tests=(*own, *others), first=tuple(own), **fields))
    doubled = [name for name, count in Counter(m.name for m in found).items() if count > 1]
    if doubled:
        raise Stale(f"two mistakes are called {doubled[0]}")
    return found


def changed(mutant: Mutant) -> str:
    """The file with its mistake.

    Raises:
        Stale: The text to change is not there exactly once.
    """
    text = (ROOT / "dpfedmeta" / mutant.file).read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise Stale(f"{mutant.name}: {mutant.file} holds its text {count} times:\n{mutant.old}")
    return text.replace(mutant.old, mutant.new)
