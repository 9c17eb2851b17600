"""Processor time and memory of processes that a measurement starts."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def proportional_memory(process: int) -> int:
    """Bytes of a process, its share of what it has in common with others; 0: it is gone."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


@dataclass(kw_only=True)
class Tree:
    """Processor time and memory of a process and all that it started.

    Attributes:
        root: Its number.
        most: Bytes, shared pages counted once.
    """

    root: int
    most: int = 0
    _spent: dict[int, float] = field(default_factory=dict)
    _seen: list[tuple[float, float]] = field(default_factory=list)

    def look(self) -> None:
        """Add what there is now."""
        parents, times = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
                times[int(entry.name)] = (int(fields[11]) + int(fields[12])) / _TICKS
        own = {self.root}
        while more := {child for child, parent in parents.items() if parent in own and child not in own}:
            own |= more
        self._spent.update({process: times[process] for process in own if process in times})
        self._seen.append((time.time(), sum(self._spent.values())))
        self.most = max(self.most, sum(proportional_memory(process) for process in own))

    def seconds(self, until: float) -> float:
        """Processor seconds until a time since the epoch, as seen at the first look after it."""
        return next((spent for when, spent in self._seen if when >= until), self._seen[-1][1])
