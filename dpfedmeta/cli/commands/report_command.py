"""Write report.html for a run, or a side-by-side comparison of several."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, parser, print_line
from dpfedmeta.cli.outputs import COMPARISON, LATEX, PICTURE, TABLE_OF_RUNS, check_output
from dpfedmeta.cli.words_of_others import no_run
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import check_output_folder

if TYPE_CHECKING:
    from dpfedmeta.core.files.run_directory import RunDirectory

SUMMARY = "report.html of a run, or a comparison of several; tables and pictures for a paper"

_WATCH_SECONDS = 10.0


def options_of() -> argparse.ArgumentParser:
    """The command's own options."""
    made = parser(
        "Report on one run, or compare several; runs that differ only by seed are pooled.",
        settings=False,
        program="dpfedmeta report",
    )
    made.add_argument("runs", type=Path, nargs="+", help="run directories, or the folder of a sweep")
    made.add_argument("--out", type=Path, default=Path("comparison.html"), help="page of a comparison")
    made.add_argument("--epsilon-plot", type=Path, help="also draw accuracy against epsilon into this PNG file")
    made.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=_WATCH_SECONDS,
        metavar="SECONDS",
        help=f"rewrite the pages every SECONDS seconds ({_WATCH_SECONDS:g}) while the runs go on",
    )
    made.add_argument("--latex", type=Path, metavar="FILE.tex", help="table of the settings for a paper (booktabs)")
    made.add_argument("--csv", type=Path, metavar="FILE.csv", help="one row for each run, with all its numbers")
    made.add_argument("--pdf", type=Path, metavar="FOLDER", help="write each picture as a vector PDF to this folder")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse and write."""
    options = _options(words)
    from dpfedmeta.cli.sweeps.sweep_folder import is_sweep
    from dpfedmeta.core.files.run_directory import RunDirectory
    from dpfedmeta.reporting.compare.seed_groups import check_different

    runs = [RunDirectory(path) for path in options.runs if not is_sweep(path)]
    check_different(runs)  # before pages and pictures are imported, which takes seconds
    from dpfedmeta.cli.sweeps.results import PAGE, settings_of_sweep, write_results
    from dpfedmeta.reporting.compare.latex_tables import write_paper
    from dpfedmeta.reporting.compare.paired_runs import kept_episodes, pairs
    from dpfedmeta.reporting.compare.seed_groups import code_words, group_runs
    from dpfedmeta.reporting.html.page import write_comparison, write_report
    from dpfedmeta.reporting.plots.epsilon_plot import epsilon_plot

    sweeps = [path for path in options.runs if is_sweep(path)]
    inside = [run for path in sweeps for setting in settings_of_sweep(path) for run in setting.group.runs]
    if inside:
        check_different([*runs, *inside])
    for run in runs:
        print_line(console, f"report: {write_report(run)}")
    for path in sweeps:
        write_results(path)
        print_line(console, f"sweep: {path / PAGE}")
    if options.watch is not None:
        _watch(runs, options.watch, console)
    for_paper = (options.latex, options.csv, options.pdf)
    if len(options.runs) > 1 or options.epsilon_plot is not None or any(for_paper):
        groups = group_runs([*runs, *inside])
        if len(options.runs) > 1:
            print_line(console, f"comparison: {write_comparison(groups, options.out)}")
        for line in code_words(groups):
            print_line(console, line)
        if options.epsilon_plot is not None:
            epsilon_plot(options.epsilon_plot, groups)
            print_line(console, f"accuracy against epsilon: {options.epsilon_plot}")
        for line in write_paper(groups, *for_paper):
            print_line(console, line)
        if len(runs) > 1:
            for pair in pairs({str(run.path): kept_episodes(run) for run in runs}):
                print_line(console, str(pair))
    return DONE


def _options(words: Sequence[str]) -> argparse.Namespace:
    """Parse the options; everything that can be wrong with them is reported before any file is read.

    Raises:
        InputError: A file or folder does not fit.
    """
    from dpfedmeta.cli.sweeps.sweep_folder import is_sweep
    from dpfedmeta.core.files.run_checks import check_has_ledger

    options = options_of().parse_args(words)
    if options.watch is not None and not 1 <= options.watch <= 3600:
        raise InputError(f"--watch {options.watch:g}: a number of seconds from 1 to 3600")
    check_output("--out", options.out, COMPARISON, words)
    check_output("--epsilon-plot", options.epsilon_plot, PICTURE, words)
    check_output("--latex", options.latex, LATEX, words)
    check_output("--csv", options.csv, TABLE_OF_RUNS, words)
    for path in options.runs:
        if not path.is_dir():
            raise InputError(no_run(path))
    if options.pdf is not None:
        if options.pdf.suffix.lower() == ".pdf":
            raise InputError(f"--pdf {options.pdf}: each picture becomes a PDF of its own; name a folder for them")
        check_output_folder("--pdf", options.pdf)
    for path in options.runs:
        if not is_sweep(path):
            check_has_ledger(path)
    return options


def _watch(runs: Sequence[RunDirectory], seconds: float, console: Console) -> None:
    """Until no run goes on, or Ctrl-C."""
    from dpfedmeta.core.files.run_directory import REPORT
    from dpfedmeta.reporting.html.page import watch
    from dpfedmeta.training.results.snapshot import stage_of

    live = [run for run in runs if stage_of(run) == "running"]
    for run in live:
        words = "is updated while the run goes on; an open page reloads itself (Ctrl-C stops the updates, not the run)"
        print_line(console, f"{run.path / REPORT} {words}")
    try:
        watch(live, seconds)
    except KeyboardInterrupt:
        return
    for run in live:
        print_line(console, f"{run.path}: {stage_of(run)}; the page shows its final state")
