"""Watch over which clients are connected: who came, who left, who is back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

_LOOK_SECONDS = 1.0
_MOST_NAMES = 5


@contextmanager
def attendance(
    names: Mapping[bytes, str],
    present: Callable[[], Sequence[bytes]],
    say: Callable[[str], object],
    seconds: float = _LOOK_SECONDS,
) -> Iterator[None]:
    """Say every change, in a line for all clients that came or left within so many seconds.

    Args:
        names: Names of the clients, by identity.
        present: Returns the identities of the connected clients.
        say: Told each change: the operator, who may know who is connected.
        seconds: Between two looks.
    """
    over = threading.Event()

    def watch() -> None:
        there: frozenset[bytes] = frozenset()
        known: frozenset[bytes] = frozenset()
        while not over.wait(seconds):
            before, there = there, frozenset(present()) & names.keys()
            for line in _changes(names, before, there, known):
                say(line)
            known |= there

    thread = threading.Thread(target=watch, name="attendance", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _changes(
    names: Mapping[bytes, str], before: frozenset[bytes], there: frozenset[bytes], known: frozenset[bytes]
) -> Iterator[str]:
    count = f"{len(there)} of {len(names)} clients are connected"
    groups = {"left": before - there, "back": (there - before) & known, "connected": there - before - known}
    for word, group in groups.items():
        if group:
            # In the order of the roster.
            said = [name for identity, name in names.items() if identity in group]
            more = f" and {len(said) - _MOST_NAMES} more" if len(said) > _MOST_NAMES else ""
            yield f"{word}: {', '.join(said[:_MOST_NAMES])}{more}; {count}"
