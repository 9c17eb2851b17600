"""Comparison of what a file states with what its ledger gives: the one tolerance of all verification."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpfedmeta.core.errors import DAMAGED_JSON, InputError

# How far a stated number may be from the recomputed one, as machines differ: less where it is smaller (claims more).
_ABOVE, _BELOW = 1e-6, 1e-9


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
    elif isinstance(found, list) and isinstance(stated, list) and len(found) == len(stated):
        for number, (left, right) in enumerate(zip(stated, found, strict=True)):
            check(path, f"{key}[{number}]", left, right)
    elif not _same(stated, found):
        raise _contradiction(path, key, stated, found)


def _contradiction(path: Path, key: str, stated: object, found: object) -> InputError:
    return InputError(f"{path}: {key.lstrip('.')}: states {stated!r}, but the ledger gives {found!r}")


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
