"""`python -m benchmarks.scaling`: what a round costs as numbers, cohorts and populations grow.

A client computes nothing here: its message is one vector that is handed over again and again. So this is the cost of
what stands around clients: the draw of the cohort, clipping, whole numbers, sum, noise, charge and files. Each point is
a process of its own, since memory that was once taken stays taken.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dpfedmeta as dp
from benchmarks.results import write
from dpfedmeta.core.peak_memory import own_peak_mb

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True, kw_only=True)
class Point:
    """One size.

    Attributes:
        numbers: d, of a message.
        cohort: L, expected.
        clients: N.
        rounds: How many are timed, after one that is not.
    """

    numbers: int
    cohort: int
    clients: int
    rounds: int = 3


_D, _L, _N = 1_000, 100, 1_000_000
# One size grows at a time; the others stay as they are here.
GROWING: Mapping[str, Sequence[Point]] = {
    "numbers": [Point(numbers=d, cohort=20, clients=_N) for d in (10**3, 10**4, 10**5, 10**6, 10**7)],
    "cohort": [Point(numbers=_D, cohort=each, clients=_N) for each in (10, 100, 1_000, 10_000, 100_000)],
    "clients": [Point(numbers=_D, cohort=_L, clients=10**k) for k in (3, 4, 6, 8, 10)],
}


def measured(point: Point) -> dict[str, Any]:
    """Seconds of plan and first round, of one later round, and of one message; peak memory of this process."""
    message = {"weights": np.random.default_rng(0).normal(size=point.numbers).astype(np.float32)}
    begun, ends, messages = time.perf_counter(), list[float](), 0
    with tempfile.TemporaryDirectory(prefix="dpfedmeta-scaling-") as folder:
        private = dp.PrivateRounds(
            clients=point.clients,
            cohort=point.cohort,
            rounds=point.rounds + 1,
            promise=dp.Promise(unit="client", observer="public", epsilon=4.0, delta=1e-11),
            clip=dp.clip.Constant(initial=1.0),
            like=message,
            run_dir=Path(folder) / "run",
        )
        with private:
            for round_ in private:
                for client in round_.cohort:
                    round_.add(client, message)
                    messages += bool(ends)
                round_.release()
                ends.append(time.perf_counter())
    spent = ends[-1] - ends[0]
    return {
        **asdict(point),
        "seconds_to_first_round": ends[0] - begun,
        "seconds_per_round": spent / point.rounds,
        "microseconds_per_message": 1e6 * spent / max(messages, 1),
        "peak_memory_mb": own_peak_mb(),
    }


def exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """The slope of log cost over log size: 1 where cost grows as size does, 0 where it does not grow."""
    return float(np.polyfit([math.log(size) for size in sizes], [math.log(cost) for cost in costs], 1)[0])


def in_fresh_process(point: Point) -> dict[str, Any]:
    """`measured`, by a process that holds nothing else.

    Raises:
        RuntimeError: It failed.
    """
    words = [sys.executable, "-m", "benchmarks.scaling", "--point", json.dumps(asdict(point))]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{point}: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure all sizes, and write."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--point", type=json.loads, help=argparse.SUPPRESS)
    made.add_argument("--only", choices=list(GROWING), nargs="+", default=list(GROWING), help="what grows")
    made.add_argument("--json", type=Path, default=Path("scaling.json"))
    options = made.parse_args()
    if options.point is not None:
        print(json.dumps(measured(Point(**options.point))))
        return
    found: dict[str, Any] = {}
    for grows in options.only:
        rows = [in_fresh_process(point) for point in GROWING[grows]]
        # The upper half: below it, what does not grow hides what does.
        last = rows[len(rows) // 2 :]
        costs = ("seconds_per_round", "peak_memory_mb", "seconds_to_first_round")
        slopes = {cost: exponent([row[grows] for row in last], [row[cost] for row in last]) for cost in costs}
        found[grows] = {"rows": rows, "exponents_of_the_upper_half": slopes}
        for row in rows:
            shown = f"{row['seconds_per_round']:.3g} s a round, {row['microseconds_per_message']:.3g} us a message"
            first = f"first round after {row['seconds_to_first_round']:.3g} s, {row['peak_memory_mb']:.0f} MB"
            print(f"{grows} {row[grows]:,}: {shown}, {first}")
        print(f"{grows}: exponents {', '.join(f'{cost} {slope:.2f}' for cost, slope in slopes.items())}", flush=True)
        write(options.json, found)


if __name__ == "__main__":
    main()
