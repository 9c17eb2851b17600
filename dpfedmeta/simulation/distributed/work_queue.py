"""Shares of work that several threads take one after the other."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

Share = tuple[object, ...]


class Deal:
    """Each share is taken once, by whoever comes; numbered in the order of the list."""

    def __init__(self, shares: Iterable[Share]) -> None:
        self._shares, self._lock = enumerate(shares), threading.Lock()
        self._ended = False

    def take(self) -> tuple[int, Share] | None:
        """(number, share); None: nothing is left."""
        with self._lock:
            found = None if self._ended else next(self._shares, None)
            self._ended = found is None
            return found

    def __iter__(self) -> Iterator[tuple[int, Share]]:
        return iter(self.take, None)

    def end(self) -> None:
        """Whatever is left stays undone."""
        with self._lock:
            self._ended = True
