"""Memory of this machine, and the most that its processes held."""

import os
import resource
import sys
from pathlib import Path

from dpfedmeta.core.worker_pool import InProcess, Workers


def memory_of_machine() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def own_peak_mb() -> float:
    """The most that this process has held so far, in megabytes.

    Linux counts it from the start of the program; `getrusage` would count the parent's memory at the fork as well.
    """
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.exists() else []
    peak = next((line for line in lines if line.startswith("VmHWM:")), None)
    if peak is not None:
        return int(peak.split()[1]) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def peak_memory_mb(workers: Workers) -> float:
    """Peak memory of all processes together; each worker of this machine counts as the largest that answered."""
    own = own_peak_mb()
    if isinstance(workers, InProcess):
        return own
    try:
        others = workers.elsewhere(own_peak_mb)
        return own + (sum(others) if others else workers.count * max(workers.map(_peak_of_worker, _numbered(workers))))
    except RuntimeError:  # the workers are gone, as after an interruption: what they held is not known
        return own


def _numbered(workers: Workers) -> list[tuple[object, ...]]:
    return [(number,) for number in range(workers.count)]


def _peak_of_worker(_: object) -> float:
    return own_peak_mb()
