"""Train one initialisation over a federation of clients, with the privacy that is promised before round 0."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from dpfedmeta.command_line import DONE, INTERRUPTED, parse_with_settings, parser, run_command
from dpfedmeta.federation.run import RunOptions, run_training
from dpfedmeta.report import write_report


def main(console: Console) -> int:
    """Parse, train, report."""
    arguments = parser("Train, evaluate and summarise one run.", settings=True)
    arguments.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    arguments.add_argument("--dry-run", action="store_true", help="print the plan and stop")
    arguments.add_argument(
        "--secure-rng", action="store_true", help="noise and cohorts straight from the operating system"
    )
    options, settings = parse_with_settings(arguments, None)
    run_options = RunOptions(data_folder=options.data_dir, dry_run=options.dry_run, secure_rng=options.secure_rng)
    run, status = run_training(settings, run_options, console)
    if run is not None:
        console.print(f"report: {write_report(run)}", highlight=False, soft_wrap=True)
    return INTERRUPTED if status == "interrupted" else DONE


if __name__ == "__main__":
    run_command(main)
