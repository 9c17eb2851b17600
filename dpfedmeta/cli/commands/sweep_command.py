"""Run a sweep on this machine: the same YAML that `wandb sweep` takes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, FAILED, INTERRUPTED, parser, settings_from
from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    from dpfedmeta.cli.sweeps.sweep_file import Sweep
    from dpfedmeta.cli.sweeps.sweep_folder import SweepOptions

SUMMARY = "the YAML of `wandb sweep`, run on this machine"


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting of every run."""
    made = parser(
        "Run a sweep on this machine; settings given here hold for every run.",
        settings=True,
        program="dpfedmeta sweep",
    )
    made.add_argument(
        "file", type=Path, help="a sweep file, as `wandb sweep` takes it, or a name: window, policies, epsilon"
    )
    made.add_argument("--out", type=Path, help="folder of the sweep (default: runs/sweep-FILE)")
    made.add_argument("--jobs", type=int, default=1, help="runs at a time; the cores are shared out among them")
    made.add_argument(
        "--launch",
        metavar="WORDS",
        help="starts each run on several ranks, as 'torchrun --standalone --nproc-per-node 2' (docs/cluster.md)",
    )
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument("--dry-run", action="store_true", help="print every command and about how long they take")
    made.add_argument(
        "--count-tuning", action="store_true", help="privacy cost of all runs of the folder, if clients are real"
    )
    made.add_argument(
        "--private",
        type=float,
        metavar="RUNS",
        help="choose with a guarantee: so many runs in expectation, settings drawn from the grid, the best released",
    )
    made.add_argument("--eta", type=float, default=0.0, help="shape of the law of their number: 0 or 1 (--private)")
    made.add_argument("--cap", type=int, help="the most runs that are done, whose price is counted (--private)")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse and run."""
    given, rest = options_of().parse_known_args(words)
    settings = settings_from(rest)
    from dpfedmeta.cli.sweeps.sweep_file import CHOICES, read_sweep
    from dpfedmeta.cli.sweeps.sweep_folder import TRAIN, SweepOptions, check_place, launched_words
    from dpfedmeta.core.files.atomic_files import check_output_folder
    from dpfedmeta.data.storage.downloads import check_data_folder

    sweep = read_sweep(given.file)
    chosen = {name: str(getattr(given, name)) for name in CHOICES if getattr(given, name) is not None}
    options = SweepOptions(
        out=given.out or Path("runs") / f"sweep-{given.file.stem}",
        jobs=given.jobs,
        fixed={**sweep.command, **chosen, **settings},
        data_folder=given.data_dir,
        train=TRAIN if given.launch is None else launched_words(given.launch),
        launched=given.launch is not None,
    )
    check_place(options.out)
    if not (given.dry_run or given.count_tuning):
        check_output_folder(*("--out", given.out) if given.out else ("runs, the folder of --out:", Path("runs")))
    check_data_folder(given.data_dir)
    if given.private is not None:
        return _private(sweep, options, given, console)
    if given.eta or given.cap is not None:
        raise InputError("--eta and --cap belong to --private")
    if given.count_tuning:
        return _count(options.out, console)
    from dpfedmeta.cli.sweeps.runner import run_sweep, show_plan

    if given.dry_run:
        show_plan(sweep, options, console)
        return DONE
    status = run_sweep(sweep, options, console)
    return {"completed": DONE, "failed": FAILED, "interrupted": INTERRUPTED}[status]


def _count(folder: Path, console: Console) -> int:
    """Say what a folder's sweep cost; two that were copied together add up."""
    from dpfedmeta.cli.sweeps.private_sweep import price_lines, private_cost
    from dpfedmeta.cli.sweeps.sweep_folder import SweepFolder
    from dpfedmeta.cli.sweeps.tuning_cost import cost_lines, tuning_cost

    private, lines = private_cost(folder), []
    if private is not None:
        lines = ["A private sweep, of which nothing but the best may be shown; its price:", *price_lines(private)]
        if SweepFolder(folder).shows_runs():
            lines.append("An ordinary sweep lies in the same folder; its epsilon and delta add to that price:")
    if private is None or SweepFolder(folder).shows_runs():
        lines += cost_lines(tuning_cost(folder))
    console.print("\n".join(lines), highlight=False, soft_wrap=True)
    return DONE


def _private(sweep: Sweep, options: SweepOptions, given: argparse.Namespace, console: Console) -> int:
    from dpfedmeta.accounting.private_selection import RunCount
    from dpfedmeta.cli.sweeps.private_sweep import check_private, price_lines, run_private

    if given.count_tuning:
        raise InputError("--private and --count-tuning exclude each other: its price is known before the first run")
    count = RunCount(mean=given.private, eta=given.eta, cap=given.cap)
    made = check_private(sweep, options, count)
    console.print("\n".join(price_lines(made.cost)), highlight=False, soft_wrap=True)
    if given.dry_run:
        return DONE
    from dpfedmeta.reporting.html.pictures import draw_pictures

    best, _ = run_private(sweep, options, count, draw_pictures)
    words = f"the chosen run: {best.path}; nothing else of the search may be shown"
    console.print(words, highlight=False, soft_wrap=True)
    return DONE
