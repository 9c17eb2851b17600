"""Comparison of what a file states with what its ledger gives: the one tolerance of all verification."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from dpfedmeta.core.errors import DAMAGED_JSON, InputError

# How far a stated number may be from the recomputed one, as machines differ: less where it is smaller (claims more).
_ABOVE, _BELOW = 1e-6, 1e-9
_CELL = {"unit", "observer"}
_LONGEST = 160  # characters of a line, in an error


def check(path: Path, key: str, stated: Any, found: Any) -> None:
    """Check that a file states the recomputed value, down to each number of a list or an object.

    Raises:
        InputError: Names the first difference, with both values.
    """
    if isinstance(found, dict) and isinstance(stated, dict):
        for name in [*found, *(name for name in stated if name not in found)]:
            missing = "nothing" if name not in stated else None
            if missing or name not in found:
                raise _contradiction(path, f"{key}.{name}", missing or stated[name], found.get(name, "nothing"))
            check(path, f"{key}.{name}", stated[name], found[name])
    elif isinstance(found, list) and isinstance(stated, list) and (_cells(found) or len(found) == len(stated)):
        # Who reads cells by their place shall read the same.
        if _cells(found) != _cells(stated):
            raise _contradiction(path, f"{key}: the cells", _cells(stated), _cells(found))
        for number, (left, right) in enumerate(zip(stated, found, strict=True)):
            check(path, f"{key} {_cells(found)[number]}" if _cells(found) else f"{key}[{number}]", left, right)
    elif not _same(stated, found):
        raise _contradiction(path, key, stated, found)


def first_difference(path: Path, stated: str, due: str, again: str) -> InputError:
    """The error about a text that is not what the ledger and the scores give.

    Args:
        path: The file.
        stated: Its text.
        due: The text that is due.
        again: Command that writes it.
    """
    lines = enumerate(zip_longest(stated.split("\n"), due.split("\n")), start=1)
    number, (left, right) = next((number, pair) for number, pair in lines if pair[0] != pair[1])
    start = next((n for n, (a, b) in enumerate(zip(left or "", right or "", strict=False)) if a != b), 0)
    one, other = (repr((line or "")[max(0, start - 40) : start + _LONGEST]) for line in (left, right))
    return InputError(
        f"{path}, line {number}: states ...{one}, but the ledger and the scores give ...{other}; if nobody edited it, "
        f"write it again: {again}"
    )


def _contradiction(path: Path, key: str, stated: object, found: object) -> InputError:
    return InputError(f"{path}: {key.lstrip('.')}: states {stated!r}, but the ledger gives {found!r}")


def _cells(entries: list[Any]) -> list[str]:
    """Names of guarantees in their order; of other lists none."""
    return [f"({one['unit']}, {one['observer']})" for one in entries if isinstance(one, dict) and one.keys() >= _CELL]


def _same(stated: object, found: object) -> bool:
    if isinstance(stated, bool) or isinstance(found, bool):
        return stated is found
    if isinstance(stated, float) and isinstance(found, float):
        return math.isclose(stated, found, rel_tol=_ABOVE if stated > found else _BELOW)
    return stated == found


def json_of(value: Any) -> Any:
    """Return the value in the form in which it would come back from a JSON file."""
    return json.loads(json.dumps(value))


@contextmanager
def complete(path: Path) -> Iterator[None]:
    """Report an entry that a file lacks, or that means nothing, as an error of that file, in one line."""
    try:
        yield
    except InputError as error:
        if str(path.parent) in str(error):
            raise
        raise type(error)(f"{path}: {error}") from error
    except DAMAGED_JSON as error:
        raise InputError(f"{path}: incomplete or of another version ({error!r})") from error
