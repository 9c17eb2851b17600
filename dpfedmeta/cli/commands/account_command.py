"""Privacy guarantees of a plan, a run or a run's ledger: the four cells. Needs no data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.cli.account_of_runs import account_of_runs, show_cells
from dpfedmeta.cli.arguments import (
    DONE,
    check_alone,
    parse_with_settings,
    parser,
    print_json,
    print_line,
)
from dpfedmeta.cli.outputs import EVENTS, PICTURE, check_output
from dpfedmeta.cli.words_of_others import misplaced
from dpfedmeta.config.dataset_names import task_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import LEDGER

SUMMARY = "guarantees of a plan or a run, also recomputed from a run's ledger (--verify)"

# In the place of a plan.
_KEPT = ("run", "verify", "statement", "realised", "population", "compare_paper", "compare_presets", "cross_check")


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting."""
    made = parser(
        "Print the guarantees of a plan, or what a run promised and spent.", settings=True, program="dpfedmeta account"
    )
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    made.add_argument("--plot", type=Path, metavar="PNG", help="also draw epsilon against rounds")
    made.add_argument(
        "--solve",
        choices=("noise", "rounds", "cohort", "bits"),
        default="noise",
        help="what to compute from the targets (default: noise). rounds and cohort need a noise as well. bits: the "
        "fewest with which rounding under --aggregation secure costs at most 1 percent",
    )
    made.add_argument(
        "--advise",
        action="store_true",
        help="compare the kinds of noise for these clients, rounds and target: noise, error and assumptions",
    )
    made.add_argument(
        "--explain", action="store_true", help="what the words mean, and for each cell what is seen and the formula"
    )
    made.add_argument(
        "--papers",
        type=Path,
        metavar="DIR",
        help="of a plan, or with --run or --verify: a new folder with papers. They are an entry for the registry of "
        "deployments, answers to NIST SP 800-226, and fields for a DPIA and a model card",
    )
    made.add_argument(
        "--events", type=Path, metavar="JSON", help="likewise: its rounds as an event that dp-accounting reads"
    )
    _add_kept(made)
    return made


def _add_kept(made: argparse.ArgumentParser) -> None:
    """Add what is on disk in the place of a plan: runs, registers, and in a checkout comparisons."""
    other = made.add_mutually_exclusive_group()
    other.add_argument("--run", type=Path, metavar="RUN", help="what a run promised and spent")
    other.add_argument(
        "--verify",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="recompute what a run spent from its ledger alone; several copies of one run, or several loops: "
        "what they spent together",
    )
    other.add_argument(
        "--statement",
        type=Path,
        metavar="PATH",
        help="one page for a person or an authority: on a run, on all runs of a client (its home) or of a register",
    )
    other.add_argument(
        "--realised",
        type=Path,
        metavar="RUN",
        help="what really happened, from the server's private folder; not for publication",
    )
    other.add_argument(
        "--population",
        type=Path,
        metavar="FILE",
        help="what all runs in a register (population.register) spent together",
    )
    made.add_argument(
        "--promise", type=float, nargs=2, metavar=("EPSILON", "DELTA"), help="with --population: begin a register"
    )
    comparisons = {
        "--compare-paper": "published settings, as claimed and as they hold",
        "--compare-presets": "every preset, as its origin would claim and as it holds",
        "--cross-check": "our numbers against other accountants (minutes)",
    }
    for name, meaning in comparisons.items():
        other.add_argument(name, action="store_true", help=f"in a checkout: {meaning}")


def main(words: Sequence[str], console: Console) -> int:
    """Parse, account, print."""
    made = options_of()
    known, _ = made.parse_known_args(words)
    check_output("--plot", known.plot, PICTURE, words)
    check_output("--events", known.events, EVENTS, words)
    chosen = known.verify or [path for path in (known.run, known.realised, known.statement) if path is not None]
    if known.promise and known.population is None:
        raise InputError("--promise: belongs to --population FILE")
    compares = known.compare_paper or known.compare_presets or known.cross_check
    if chosen or compares or known.population:
        if known.algo or known.config:
            raise InputError(
                "--run, --verify, --realised, --population, --compare-..., --cross-check take no --algo or --config"
            )
        made.parse_args(words)
        asked = next(name for name in _KEPT if getattr(known, name))
        shown = ("plot", "explain", "papers", "events") if asked in ("run", "verify") else ()
        check_alone(made, known, f"--{asked.replace('_', '-')}", {*_KEPT, "promise", "json", *shown})
    if known.papers is not None or known.events is not None:
        beside = {"papers", "events", "run", "verify", "algo", "dataset", "config", "solve", "json"}
        check_alone(made, known, "--papers and --events", beside)
    for path in [*chosen, *([known.population] if known.population and not known.promise else [])]:
        if (said := misplaced(path, asked)) is not None:
            raise InputError(said)
    if known.population is not None:
        return _of_population(known, console)
    if compares:
        return _compare(known, console)
    if known.statement is not None and (lines := _of_many_runs(known.statement)):
        if known.json:
            print_json({"statement": lines})
        else:
            print_line(console, "\n".join(lines))
        return DONE
    return account_of_runs(console, known, chosen) if chosen else _of_plan(made, words, console)


def _of_many_runs(path: Path) -> list[str]:
    """The page on a client's home or on a population's register; empty where the path is neither."""
    from dpfedmeta.accounting.ledger.client_ledger import is_own_ledger

    if path.is_file():
        from dpfedmeta.accounting.ledger.population_register import read_register
        from dpfedmeta.cli.run_statement import register_lines

        return register_lines(read_register(path))
    if not is_own_ledger(path / LEDGER):
        return []
    from dpfedmeta.cli.run_statement import site_lines

    return site_lines(path)


def _of_population(options: argparse.Namespace, console: Console) -> int:
    from dpfedmeta.accounting.ledger.population_register import begin_register, read_register
    from dpfedmeta.training.terminal.tables import rounds_words

    path = options.population
    found = read_register(path) if options.promise is None else begin_register(path, *options.promise)
    if options.json:
        runs = [{"run": each.run, "clients": each.plan.clients, "rounds": each.plan.rounds} for each in found.runs]
        print_json({"promised": found.epsilon, "delta": found.delta, "spent": found.spent, "runs": runs})
        return DONE
    lines = [
        f"(client, public), replace-one, at delta = {asked(found.delta)}: epsilon = {rounded_up(found.spent, 4)} of "
        f"{asked(found.epsilon)} is reserved by {len(found.runs)} runs, whether they finished or not",
        *(f"  {each.run}: {rounds_words(each.plan.rounds)} over {each.plan.clients:,} clients" for each in found.runs),
        f"its last line has the hash {found.head}; a copy that goes on elsewhere is noticed by whoever kept that. A "
        "run that was never registered is not counted",
    ]
    print_line(console, "\n".join(lines))
    return DONE


def _compare(options: argparse.Namespace, console: Console) -> int:
    from dpfedmeta.cli.checkout import checkout_module

    chosen = next(name for name in ("compare_paper", "compare_presets", "cross_check") if getattr(options, name))
    module = checkout_module("benchmarks.compare_claims", f"dpfedmeta account --{chosen.replace('_', '-')}")
    code: int = getattr(module, chosen)(console, options.json)
    return code


def _of_plan(made: argparse.ArgumentParser, words: Sequence[str], console: Console) -> int:
    options, settings = parse_with_settings(
        made, words, default_dataset="omniglot", keep_both=lambda given: given.solve in ("rounds", "cohort")
    )
    from dpfedmeta.planning.early_checks import check_first, check_room, room_of

    if options.advise:
        from dpfedmeta.cli.advise import show

        return show(console, settings, options.json)
    from dpfedmeta.planning.privacy.solve import check_solve, make_privacy

    check_solve(settings, options.solve)
    check_first(settings)
    from dpfedmeta.accounting.observers.four_guarantees import guarantees
    from dpfedmeta.planning.caveats import notes_of, word_of_authors

    task, _ = task_of(settings)
    plan = make_privacy(settings, task, options.solve)
    word = word_of_authors(settings)
    if options.papers is not None or options.events is not None:
        from dpfedmeta.cli.papers import account_of_plan, write_all

        return write_all(console, options, account_of_plan(settings, plan, notes_of(settings, task)))
    room = room_of(settings, plan)
    of_plan = None if room is None else {"register": room.words}
    code = show_cells(console, options, plan, guarantees(plan), "What this plan promises", of_plan, word=word)
    for caution in notes_of(settings, task) if not options.json else ():
        print_line(console, f"note: {caution}", style="yellow")
    if room is not None and not options.json:
        print_line(console, room.words)
    check_room(settings, room)
    return code
