"""Write report.html for a run, or a side-by-side comparison of several."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dpfedmeta.command_line import DONE, parser, run_command
from dpfedmeta.report import write_report
from dpfedmeta.report.page import write_comparison
from dpfedmeta.tracking.run_directory import RunDirectory


def main(console: Console) -> int:
    """Parse and write."""
    arguments = parser("Report on one run, or compare several.", settings=False)
    arguments.add_argument("runs", type=Path, nargs="+", help="run directories")
    arguments.add_argument("--out", type=Path, default=Path("comparison.html"), help="page of a comparison")
    options = arguments.parse_args()
    runs = [RunDirectory(path) for path in options.runs]
    for run in runs:
        console.print(f"report: {write_report(run)}", highlight=False, soft_wrap=True)
    if len(runs) > 1:
        console.print(f"comparison: {write_comparison(runs, options.out)}", highlight=False, soft_wrap=True)
    return DONE


if __name__ == "__main__":
    run_command(main)
