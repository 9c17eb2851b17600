"""The page of a run that goes on, written again and again until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.reporting.html.page import write_report
from dpfedmeta.training.results.snapshot import stage_of

# The share of the time that a watch may compute, since the run needs the machine.
_SHARE = 0.2


def watch(runs: Sequence[RunDirectory], seconds: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Write the pages of runs every so many seconds, or less often where writing takes long, until no run goes on.

    Raises:
        InputError: As `write_report` says.
    """
    left, written = list(runs), dict[RunDirectory, int]()
    while left:
        begun = time.perf_counter()
        # Asked before the page is written, so that the last page is that of the end.
        going_on = [run for run in left if stage_of(run) == "running"]
        for run in left:
            size = run.rounds_file.stat().st_size if run.rounds_file.exists() else -1
            if run not in going_on or written.get(run) != size:
                write_report(run)
                written[run] = size
        left = going_on
        if left:
            sleep(max(seconds, (time.perf_counter() - begun) / _SHARE))
