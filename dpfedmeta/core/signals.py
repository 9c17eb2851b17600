"""Ctrl-C and SIGTERM never land between two steps that belong together."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def deferred() -> Iterator[None]:
    """Signals that arrive meanwhile count afterwards. Signals that the process ignores stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before: dict[int, Any] = {}
    for each in SIGNALS:
        handler = signal.getsignal(each)
        if callable(handler):
            before[each] = signal.signal(each, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            # One that arrives here is heard by a handler that is back already, while another one is still ours.
            while signal.getsignal(number) != handler:
                try:
                    signal.signal(number, handler)
                except KeyboardInterrupt:
                    arrived.append(number)
    if arrived:
        raise KeyboardInterrupt
