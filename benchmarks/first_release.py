"""python -m benchmarks.first_release: CPU seconds from the start of a process to the first release of a small run."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile

# Of dp-agr on drawn characters, with one worker. What was drawn or compiled before is kept, as on anybody's machine.
PROGRAM = """
import sys, time
import dpfedmeta as dp

class First(dp.Callback):
    def on_round(self, *_, **__):
        print("seconds", time.process_time())

settings = dp.Settings.preset("dp-agr", "strokes", {"run.workers": 1, "run.dir": sys.argv[1]}, rounds=1, cohort=6)
dp.train(settings, quiet=True, callbacks=[First()])
"""


def seconds() -> float:
    """Those of one run in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run([sys.executable, "-c", PROGRAM, folder], capture_output=True, text=True, check=True)
    return float(done.stdout.split("seconds")[1])


def main() -> None:
    """Print the median of some runs, after one that is not counted."""
    parsed = argparse.ArgumentParser(description=__doc__)
    parsed.add_argument("--runs", type=int, default=5, metavar="N", help="runs that are counted (default: 5)")
    count = parsed.parse_args().runs
    found = [seconds() for _ in range(count + 1)][1:]
    print(f"CPU seconds to the first release: {statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})")


if __name__ == "__main__":
    main()
