"""Digests of files."""

from __future__ import annotations

import hashlib
from pathlib import Path

_BLOCK = 1 << 20


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Hex digest of a file, read in blocks."""
    digest = hashlib.new(algorithm)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
