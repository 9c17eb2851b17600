"""Lines of a log while one long step goes on, so that nobody takes it for stopped."""

import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Between two lines; nothing is said of a step that is done sooner.
EVERY_SECONDS = 10.0
_LOG = logging.getLogger("dpfedmeta")


@contextmanager
def told_while(step: str) -> Iterator[None]:
    """Log every ten seconds that a step still goes on, and for how long it has.

    Guarantee:
        A line says nothing but the time, which follows the work: for steps before round 0 only, never for one whose
        length follows a sampled cohort.
    """
    ended = threading.Event()

    def tell() -> None:
        begun = time.monotonic()
        while not ended.wait(EVERY_SECONDS):
            _LOG.info("%s: %.0f s so far", step, time.monotonic() - begun)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


@contextmanager
def log_on_stderr() -> Iterator[None]:
    """Show these lines on standard error, as commands do; in Python the caller's `logging` has them."""
    shown, level = logging.StreamHandler(sys.stderr), _LOG.level
    _LOG.addHandler(shown)
    _LOG.setLevel(logging.INFO)
    try:
        yield
    finally:
        _LOG.removeHandler(shown)
        _LOG.setLevel(level)
