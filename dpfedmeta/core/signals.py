"""Ctrl-C and SIGTERM: both end a run alike, and neither lands between two steps that belong together."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def terminate_like_ctrl_c() -> None:
    """Make SIGTERM raise KeyboardInterrupt from now on, as Ctrl-C does."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def interrupt_once() -> None:
    """Make Ctrl-C and SIGTERM count once from now on: a launcher passes on what the terminal has sent already."""

    def first(number: int, frame: FrameType | None) -> None:
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():
        for each in _SIGNALS:
            signal.signal(each, first)


@contextmanager
def deferred() -> Iterator[None]:
    """Signals that arrive meanwhile count afterwards. Signals that the process ignores stay ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    arrived: list[int] = []
    before: dict[int, Any] = {}
    for each in _SIGNALS:
        handler = signal.getsignal(each)
        if callable(handler):
            before[each] = signal.signal(each, lambda number, frame: arrived.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if arrived:
        raise KeyboardInterrupt
