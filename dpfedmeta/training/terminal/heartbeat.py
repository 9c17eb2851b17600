"""A line now and then, so that a log never looks as if the program had stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dpfedmeta.core.still_working import EVERY_SECONDS


@dataclass(kw_only=True, eq=False)
class Heartbeat:
    """Says a line where nothing was said for ten seconds.

    Attributes:
        say: Where lines go.
        clock: Seconds that only grow.
        last: When something was said.

    Guarantee:
        When a line comes follows how long the work took, so nothing that follows a sampled cohort may be told by it.
    """

    say: Callable[[str], object]
    clock: Callable[[], float] = time.monotonic
    last: float = field(default=float("-inf"))

    def started(self) -> Heartbeat:
        """Begin to count now, so that the first line comes after ten seconds."""
        self.last = self.clock()
        return self

    def beat(self, text: str) -> None:
        """Say it if it is time."""
        if self.clock() - self.last >= EVERY_SECONDS:
            self.told(text)

    def told(self, text: str) -> None:
        """Say it in any case."""
        self.say(text)
        self.last = self.clock()
