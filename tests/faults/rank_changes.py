"""Runs that go on with another number of ranks, after a full disk, and without their report: all as one left alone.

    python -m tests.faults.rank_changes --folder /tmp/rank-changes

Forks as kills.py and rank_kills.py do. A full disk is a limit on the size of files (RLIMIT_FSIZE) that rank 0 gets
while it runs: then its ledger cannot grow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.training.state.resume import reported
from dpfedmeta.training.verification.verify import audit
from tests.faults.kills import COMMON, KEYED, fingerprint, progress, start, undisturbed, warm_up
from tests.faults.kills import ended as ended_alone
from tests.faults.rank_kills import Child, ended, launch, on_ranks, output, stop

WORDS = [*COMMON, *on_ranks(KEYED[1])]
# Bytes of the ledger: a third of the run's rounds.
HALF_WAY = 15_000


def waited(children: list[Child], until: Callable[[], bool]) -> None:
    """Until it is so, as long as all ranks are there."""
    while not until():
        assert not ended(children, 0.002), "a rank ended before"


def killed(folder: Path, name: str, ranks: int, victim: int) -> dict[int, int]:
    """Exit statuses of a launch, one rank of which is killed half way; 1 rank: without torchrun."""
    words = [*WORDS, f"--run.name={name}"]
    if ranks == 1:
        child = start([*words, "--run.workers=1"], folder)
        while progress(folder / name) < HALF_WAY:
            time.sleep(0.002)
        os.kill(child, signal.SIGKILL)
        return {0: ended_alone(child, None)}
    children = launch(words, folder, ranks, 0)
    waited(children, lambda: progress(folder / name) >= HALF_WAY)
    os.kill(children[victim][1], signal.SIGKILL)
    return all_codes(children)


def full_disk(folder: Path, name: str) -> dict[int, int]:
    """Exit statuses of two ranks whose rank 0 can write no more."""
    children = launch([*WORDS, f"--run.name={name}"], folder, 2, 0)
    waited(children, lambda: progress(folder / name) >= HALF_WAY)
    limit = progress(folder / name) + 700
    resource.prlimit(children[0][1], resource.RLIMIT_FSIZE, (limit, limit))
    return all_codes(children)


def without_report(folder: Path, name: str) -> dict[int, int]:
    """Exit statuses of two ranks whose rank 0 is killed between the summary and the report."""
    run = folder / name
    children = launch([*WORDS, f"--run.name={name}"], folder, 2, 0)
    waited(children, (run / "summary.json").exists)
    os.kill(children[0][1], signal.SIGKILL)
    codes = all_codes(children)
    assert not (run / "report.html").exists()
    return codes


def all_codes(children: list[Child]) -> dict[int, int]:
    """Of all ranks, none of which is told to end."""
    codes: dict[int, int] = {}
    until = time.monotonic() + 60.0
    while len(codes) < len(children) and time.monotonic() < until:
        codes |= ended([child for child in children if child[0] not in codes], 1.0)
    if len(codes) < len(children):
        stop(children, codes)
        raise AssertionError(f"hangs: {codes}")
    return codes


def gone_on(folder: Path, name: str, ranks: int) -> dict[int, int]:
    """Exit statuses of a resumption."""
    if ranks == 1:
        return {0: ended_alone(start(["--resume", name, "--run.workers=1"], folder), None)}
    return all_codes(launch(["--resume", name], folder, ranks, 0))


def restarted(folder: Path, name: str) -> dict[int, int]:
    """Exit statuses of the next try of the same launch."""
    return all_codes(launch([*WORDS, f"--run.name={name}"], folder, 2, 1))


CASES: dict[str, tuple[Callable[[Path, str], dict[int, int]], Callable[[Path, str], dict[int, int]]]] = {
    "2-1": (lambda folder, name: killed(folder, name, 2, 1), lambda folder, name: gone_on(folder, name, 1)),
    "1-2": (lambda folder, name: killed(folder, name, 1, 0), lambda folder, name: gone_on(folder, name, 2)),
    "3-2": (lambda folder, name: killed(folder, name, 3, 0), lambda folder, name: gone_on(folder, name, 2)),
    "2-3": (lambda folder, name: killed(folder, name, 2, 0), lambda folder, name: gone_on(folder, name, 3)),
    "full-disk": (full_disk, lambda folder, name: gone_on(folder, name, 2)),
    "no-report": (without_report, restarted),
    "no-report-resumed": (without_report, lambda folder, name: gone_on(folder, name, 1)),
}


def tried(folder: Path, name: str) -> dict[str, object]:
    """What one case came to."""
    spoil, mend = CASES[name]
    begun = time.monotonic()
    before = spoil(folder, name)
    said = [line for line in output(folder).splitlines() if line.startswith("error:")]
    seconds = time.monotonic() - begun
    after = mend(folder, name)
    run = RunDirectory(folder / name)
    audit(run)
    return {
        "before": before, "said": said, "seconds": round(seconds, 1), "after": after, "reported": reported(run),
        "identical": fingerprint(run) == fingerprint(RunDirectory(folder.parent / "whole/whole")),
    }  # fmt: skip


def main() -> None:
    """Try all, or one, and print JSON."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--case", choices=CASES)
    options.add_argument("--folder", type=Path, required=True)
    given = options.parse_args()
    torch.set_num_threads(1)
    os.nice(10)
    folder = given.folder.resolve()
    folder.mkdir(parents=True)
    os.environ["DPFEDMETA_STATE"] = str(folder / "state")
    (folder / "whole").mkdir()
    words = [*on_ranks(KEYED[1]), "--run.workers=1"]
    warm_up(words)
    undisturbed(words, "whole", folder / "whole")
    found = {}
    for name in CASES if given.case is None else [given.case]:
        (folder / name).mkdir()
        found[name] = tried(folder / name, name)
        print(json.dumps({name: found[name]}), file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
