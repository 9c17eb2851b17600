"""Evaluate runs on held-out test classes: adaptation by steps, shots and ways, by client, beside baselines."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from dpfedmeta.api.evaluation_request import ENOUGH_EPISODES, EvaluationRequest, check_sizes
from dpfedmeta.cli.arguments import DONE, parser, print_line
from dpfedmeta.cli.outputs import PICTURE, check_output
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run, check_outside_runs
from dpfedmeta.data.storage.downloads import check_data_folder

if TYPE_CHECKING:
    from dpfedmeta.core.worker_pool import Workers
    from dpfedmeta.simulation.distributed.torchrun_env import Launch

SUMMARY = "evaluate runs on held-out test classes: by steps, shots and ways, beside baselines"


def options_of() -> argparse.ArgumentParser:
    """The command's options."""
    made = parser(
        "Evaluate personalised adaptation on held-out test classes; several runs on the same episodes.",
        settings=False,
        program="dpfedmeta evaluate",
    )
    made.add_argument("runs", type=Path, nargs="+", help="run directories of one benchmark")
    made.add_argument("--shots", type=int, nargs="+", help="support images per class (default: as trained)")
    made.add_argument("--ways", type=int, nargs="+", help="classes per episode (default: as trained)")
    made.add_argument(
        "--steps",
        type=int,
        nargs="+",
        help="accuracy after these numbers of gradient steps, besides 0 and the run's own (default: each up to that)",
    )
    made.add_argument("--seeds", type=int, nargs="+", help="different episodes, pooled (default: the run's seed)")
    made.add_argument("--episodes", type=int, default=ENOUGH_EPISODES, help="episodes per setting and seed (600)")
    made.add_argument(
        "--transductive", action="store_true", help="normalisation statistics from support and query images together"
    )
    made.add_argument(
        "--no-fine-tuning",
        action="store_true",
        help="leave out the slowest baseline, fine-tuning without meta-learning",
    )
    made.add_argument(
        "--out",
        type=Path,
        metavar="DIR|PNG",
        help="folder for everything that is written (default: the run), or only the picture that compares the runs",
    )
    _add_people(made)
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    made.add_argument("--workers", type=int, help="worker processes (default: one for each core)")
    return made


def _add_people(made: argparse.ArgumentParser) -> None:
    """Options of an evaluation on people's own records."""
    made.add_argument(
        "--on",
        type=Path,
        metavar="PATH",
        help="judge one run on people's own records instead: a table with the columns client and class, a folder "
        "CLIENT/CLASS/IMAGE, or one client's data. No guarantee covers what this shows",
    )
    made.add_argument(
        "--own-test",
        action="store_true",
        help="judge one run on what its training clients kept back (population.own_test), likewise",
    )
    made.add_argument("--repeats", type=int, metavar="N", help="with --on: random splits of each client's records (20)")


def _on_people(options: argparse.Namespace, console: Console) -> int:
    """Judge a run on people's own records."""
    if options.own_test and (options.on, options.shots, options.seeds, options.repeats) != (None,) * 4:
        raise InputError("--own-test: the run says who is judged on what; leave out --on, --shots, --seeds, --repeats")
    asked = "--own-test" if options.own_test else "--on"
    shots, seeds = options.shots or [None], options.seeds or [0]
    if len(options.runs) > 1 or len(shots) > 1 or len(seeds) > 1:
        raise InputError(f"{asked}: judges one run, with one number of --shots and one of --seeds")
    others = (options.ways, options.steps, options.transductive, options.workers, options.no_fine_tuning)
    if any(other not in (None, False) for other in others) or options.episodes != ENOUGH_EPISODES:
        raise InputError(f"{asked}: goes with --shots, --seeds, --repeats, --out and --data-dir alone")
    repeats = 20 if options.repeats is None else options.repeats
    if repeats < 2 or (shots[0] is not None and shots[0] < 1) or seeds[0] < 0:
        raise InputError(
            "--on: --repeats has to be at least 2, --shots at least 1, and a seed a whole number from 0 on"
        )
    check_data_folder(options.data_dir)
    check_is_run(options.runs[0])
    if options.out is not None:
        check_outside_runs("--out", options.out)  # before minutes of work
    from dpfedmeta.api.evaluate_people import NO_PROMISE, evaluate_people, keep_people
    from dpfedmeta.learning.evaluation.people import RecordSplit
    from dpfedmeta.training.terminal.evaluation_tables import people_tables
    from dpfedmeta.training.terminal.progress_bar import share_bar

    split = RecordSplit(shots=shots[0], repeats=repeats, seed=seeds[0])
    with share_bar(console) as watch:
        found = evaluate_people(options.runs[0], options.on, split, options.data_dir, watch)
    for printed in people_tables(found.scores, found.targets):
        console.print(printed, highlight=False, soft_wrap=isinstance(printed, str), markup=False)
    print_line(console, found.protocol)
    paths = keep_people(found, options.out)
    print_line(console, NO_PROMISE)
    print_line(console, f"kept in {paths[0]} and {paths[1].name}")
    return DONE


def main(words: Sequence[str], console: Console) -> int:
    """Parse and evaluate."""
    return on_workers(words, console, None, None)


def on_workers(words: Sequence[str], console: Console, workers: Workers | None, launch: Launch | None) -> int:
    """The same on workers that are there already, as a launch brings them."""
    options = options_of().parse_args(words)
    if options.out is not None and options.out.suffix == ".png" and not options.out.is_dir():
        check_output("--out", options.out, PICTURE, words)
    if options.on is not None or options.own_test:
        return _on_people(options, console)
    if options.repeats is not None:
        raise InputError("--repeats: splits the records of people (--on PATH); for test classes give --episodes")
    request = EvaluationRequest(
        runs=tuple(options.runs),
        shots=tuple(options.shots or ()),
        ways=tuple(options.ways or ()),
        steps=tuple(options.steps or ()),
        seeds=tuple(options.seeds or ()),
        episodes=options.episodes,
        transductive=options.transductive,
        fine_tuning=not options.no_fine_tuning,
        out=options.out,
        data_folder=options.data_dir,
        workers=options.workers,
    )
    check_data_folder(request.data_folder)
    check_sizes(request)
    from dpfedmeta.api.print_evaluation import evaluate_runs

    if workers is not None and request.workers is not None:
        raise InputError("--workers: under torchrun its processes are the workers (--nproc-per-node); leave it out")
    evaluate_runs(request, console, workers)
    return DONE
