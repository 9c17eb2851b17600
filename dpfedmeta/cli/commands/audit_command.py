"""Attack the program as it runs: lower bounds on epsilon beside the promised ones."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from dpfedmeta.cli.arguments import DONE, FAILED, given_settings, parser, print_json
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.atomic_files import PICTURE_ENDINGS, check_output
from dpfedmeta.core.files.run_directory import check_is_run

SUMMARY = "attacks on the program as it runs: lower bounds beside the promised epsilon"

NOT_CONFIRMED = "a first sample was above the promise, as happens by chance; a second, larger one does not confirm it"
_AUDITS = ("distinguish", "many-runs", "one-run", "one-shot")


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting."""
    made = parser(
        "Attack a plan, or the settings of RUN, with canaries: what that proves of epsilon, kept beside the run.",
        settings=True,
        program="dpfedmeta audit [RUN]",
    )
    made.add_argument("--audits", nargs="+", choices=_AUDITS, default=list(_AUDITS), help="which (default: all)")
    made.add_argument("--runs", type=int, default=1000, help="of the audits of many runs (default: 1000)")
    made.add_argument("--canaries", type=int, default=1000, help="of the audits of one run (default: 1000)")
    made.add_argument("--confidence", type=float, default=0.95, help="of each lower bound (default: 0.95)")
    made.add_argument("--units", nargs="+", choices=("client", "record"), default=["client", "record"])
    made.add_argument("--observers", nargs="+", choices=("server", "public"), default=["server", "public"])
    made.add_argument("--as-planned", action="store_true", help="keep the sizes of the preset or the run")
    made.add_argument("--whole-runs", action="store_true", help="every run with its ledger and files; slower")
    made.add_argument("--audit-seed", type=int, help="of worlds, coins and noise (default: new each time)")
    made.add_argument("--dry-run", action="store_true", help="what these audits can see at this size; runs nothing")
    made.add_argument(
        "--strict", action="store_true", help="exit code 1 where a second sample is above the promise too"
    )
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    made.add_argument("--plot", type=Path, metavar="PNG", help="also draw promised and audited epsilon")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, audit, tell."""
    made = options_of()
    # Elsewhere a word without -- is the value of a setting.
    run = Path(words[0]) if words and not words[0].startswith("-") else None
    typed = words[1:] if run else words
    options, given = made.parse_known_args(typed)[0], given_settings(made, typed)
    check_output("--plot", options.plot, PICTURE_ENDINGS)
    if run is not None:
        if options.algo or options.dataset or options.config:
            raise InputError(f"{run}: it has its own settings; leave out --algo, --dataset, --config")
        check_is_run(run)
    elif not (options.algo or options.config):
        raise InputError("name a run first of all, or give --algo")
    return _audited(options, run, given, console)


def _audited(options: argparse.Namespace, run: Path | None, given: dict[str, str], console: Console) -> int:
    from dpfedmeta.auditing.audit_request import AuditRequest, check_promises_something, fresh_seed

    request = AuditRequest(
        algo=options.algo, dataset=options.dataset or (None if run or options.config else "strokes"),
        config=options.config, given=given, audits=tuple(options.audits), runs=options.runs, canaries=options.canaries,
        confidence=options.confidence, units=tuple(options.units), observers=tuple(options.observers),
        as_planned=options.as_planned, whole=options.whole_runs,
        seed=fresh_seed() if options.audit_seed is None else options.audit_seed,
    )  # fmt: skip
    if run is None:
        check_promises_something(request.settings())
    from dpfedmeta.api.audit import audit_of_run, made
    from dpfedmeta.training.terminal.progress_bar import share_bar

    errors = Console(stderr=True, emoji=False)
    with share_bar(errors) as watch:
        if run is not None:
            found = audit_of_run(request, run, watch, expected=options.dry_run)
        else:
            found = made(request, watch, expected=options.dry_run)
    if options.plot is not None:
        found.draw(options.plot)
    if options.json:
        print_json(found.as_json())
    else:
        console.print(found.table())
        for line in found.unseen():
            console.print(line, highlight=False, soft_wrap=True)
        for each in found.refuted:
            console.print(
                f"refuted: {each.cell} by {each.audit}: {each.audited:.3g} at {each.confidence:.1%} from a second "
                f"sample, promised {each.promised:.3g}",
                style="bold red",
                highlight=False,
            )
        for each in found.not_confirmed:
            console.print(f"{each.cell} by {each.audit}: {NOT_CONFIRMED}", highlight=False, soft_wrap=True)
        console.print(f"audit seed {found.seed} (--audit-seed repeats it)", highlight=False, soft_wrap=True)
    return FAILED if options.strict and found.refuted else DONE
