"""From a failed pydantic validation to one sentence with the key, the value and the nearest known key."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable
from typing import Any

from pydantic import ValidationError


def first_problem(error: ValidationError, form: Any) -> str:
    """The first problem as `key: what is wrong, got value`."""
    problem = error.errors()[0]
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        known = [field.name for field in dataclasses.fields(form)]
        return f"{key}: unknown key{nearest(key.split('.')[-1], known)}"
    message = problem["msg"]
    if problem["type"] == "missing":
        return f"{key}: missing"
    return f"{key}: {message[0].lower()}{message[1:]}, got {problem['input']!r}"


def nearest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' or nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f"; did you mean {close[0]}?" if close else ""
