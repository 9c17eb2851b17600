"""Numbers in a file: whole or not at all, so that whoever stops a measurement keeps what was there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write(path: Path, measured: Mapping[str, Any]) -> None:
    """In the place of what stood there."""
    beside = path.with_name(f"{path.name}.new")
    beside.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
    beside.replace(path)


def read(path: Path) -> Any:
    """None where nothing was written."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
