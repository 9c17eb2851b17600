"""Survivors that a server told its clients of.

Clients agree to one set of survivors for a vector, so a further try uses the same set.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from dpfedmeta.core.files.atomic_files import SECRET, replace_file
from dpfedmeta.federation.wire_format import Attempt

TOLD = "told.json"


@dataclass(kw_only=True, eq=False)
class Told:
    """SECRET: of the last attempt at a round, by numbers of clients.

    Attributes:
        path: Where it is kept, for a server that is killed; None: in this process alone.
    """

    path: Path | None = None
    _kept: tuple[list[int], list[int]] | None = None

    def survivors(self, attempt: Attempt) -> frozenset[int] | None:
        """Return the survivors that clients were told of in this attempt; None: no client was told of any yet."""
        if self._kept is None and self.path is not None and self.path.exists():
            content = json.loads(self.path.read_text(encoding="utf-8"))
            self._kept = content["key"], content["clients"]
        if self._kept is None or self._kept[0] != list(attempt.key):
            return None
        return frozenset(self._kept[1])

    def note(self, attempt: Attempt, clients: Iterable[int]) -> None:
        """Before any client is told."""
        self._kept = list(attempt.key), sorted(clients)
        if self.path is not None:
            content = {"key": self._kept[0], "clients": self._kept[1]}
            replace_file(self.path, json.dumps(content).encode(), SECRET)
