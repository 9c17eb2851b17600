"""Attack the program as it runs: lower bounds on epsilon beside the promised ones."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from dpfedmeta.accounting.rounded import rounded_down, rounded_up
from dpfedmeta.cli.arguments import (
    DONE,
    FAILED,
    check_alone,
    given_settings,
    parser,
    print_json,
    print_line,
)
from dpfedmeta.cli.outputs import BADGE, PICTURE, check_output
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_is_run

SUMMARY = "attack the running program: lower bounds on epsilon, beside the promised epsilon"

NOT_CONFIRMED = "a first sample was above the promise, which happens by chance; a larger second one does not confirm it"
_AUDITS = ("distinguish", "many-runs", "one-run", "one-shot")
_OF_FUNCTION = ("promise", "like", "badge", "releases_alone", "relation")


def options_of() -> argparse.ArgumentParser:
    """The command's own options; everything else is a setting."""
    made = parser(
        "Attack a plan, or the settings of RUN, with canaries, to get lower bounds on epsilon; kept beside the run.",
        settings=True,
        program="dpfedmeta audit [RUN]",
    )
    made.add_argument("--audits", nargs="+", choices=_AUDITS, default=list(_AUDITS), help="which audits (default: all)")
    made.add_argument("--runs", type=int, default=1000, help="runs of distinguish and many-runs (default: 1000)")
    made.add_argument("--canaries", type=int, default=1000, help="canaries of one-run and one-shot (default: 1000)")
    made.add_argument("--confidence", type=float, default=0.95, help="confidence of each lower bound (default: 0.95)")
    made.add_argument(
        "--units", nargs="+", choices=("client", "record"), default=["client", "record"], help="units to audit (both)"
    )
    made.add_argument(
        "--observers",
        nargs="+",
        choices=("server", "public"),
        default=["server", "public"],
        help="observers to audit (both)",
    )
    made.add_argument(
        "--as-planned", action="store_true", help="keep the sizes of the preset or the run (default: small ones)"
    )
    made.add_argument("--whole-runs", action="store_true", help="make each run with its ledger and files; slower")
    made.add_argument("--audit-seed", type=int, help="seed of the audit (default: a new one each time)")
    made.add_argument("--dry-run", action="store_true", help="show what these audits can detect; run nothing")
    made.add_argument("--strict", action="store_true", help="exit code 1 if a second sample is above the promise too")
    made.add_argument("--json", action="store_true", help="print JSON and nothing else")
    made.add_argument("--plot", type=Path, metavar="PNG", help="also draw promised and audited epsilon")
    made.add_argument(
        "--function",
        metavar="MODULE:ROUND",
        help="attack rounds that somebody wrote: round(state, updates by client, generator) -> (state, release). Of "
        "the settings, --rounds (8 here), --clients (10) and --delta (1e-5) go with it",
    )
    made.add_argument(
        "--promise", type=float, metavar="EPSILON", help="(client, public) of all its rounds (--function)"
    )
    made.add_argument(
        "--releases-alone", action="store_true", help="do not compare under the same random numbers (--function)"
    )
    made.add_argument(
        "--relation",
        choices=("add-remove", "zero-out"),
        help="the promise is for a client that comes or goes (add-remove, the default), or whose update counts as "
        "nothing in its place (zero-out) (--function)",
    )
    made.add_argument("--like", metavar="MODULE:MODEL", help="names and shapes of an update (default: MODULE:LIKE)")
    made.add_argument("--badge", type=Path, metavar="SVG", help="also write a badge (--function)")
    return made


def main(words: Sequence[str], console: Console) -> int:
    """Parse, audit, tell."""
    made = options_of()
    # Elsewhere a word without -- is the value of a setting.
    run = Path(words[0]) if words and not words[0].startswith("-") else None
    typed = words[1:] if run else words
    options, given = made.parse_known_args(typed)[0], given_settings(made, typed)
    check_output("--plot", options.plot, PICTURE, words)
    check_output("--badge", options.badge, BADGE, words)
    if options.function is not None:
        beside = {"function", *_OF_FUNCTION, "runs", "audit_seed", "strict", "json"}
        check_alone(made, options, "--function", {*beside, "algo", "dataset", "config"})
        return _of_function(options, run, given, console)
    for name in _OF_FUNCTION:
        if getattr(options, name) not in (None, False):
            raise InputError(f"--{name.replace('_', '-')} belongs to --function")
    if run is not None:
        if options.algo or options.dataset or options.config:
            raise InputError(f"{run}: it has its own settings; leave out --algo, --dataset, --config")
        check_is_run(run)
    elif not (options.algo or options.config):
        raise InputError("name a run first (dpfedmeta audit RUN), or give --algo")
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
            print_line(console, line)
        for each in found.refuted:
            console.print(
                f"refuted: {each.cell} by {each.audit}: {rounded_down(each.audited)} at {each.confidence:.1%} from a "
                f"second sample, promised {rounded_up(each.promised)}",
                style="bold red",
                highlight=False,
            )
        for each in found.not_confirmed:
            print_line(console, f"{each.cell} by {each.audit}: {NOT_CONFIRMED}")
        print_line(console, f"audit seed {found.seed} (--audit-seed repeats it)")
    return FAILED if options.strict and found.refuted else DONE


def _of_function(options: argparse.Namespace, run: Path | None, given: dict[str, str], console: Console) -> int:
    """Attack rounds that somebody wrote."""
    if options.promise is None:
        raise InputError("--function: --promise is missing: the epsilon that all its rounds together keep")
    if run is not None or options.algo or options.dataset or options.config:
        raise InputError("--function: needs no run, --algo, --dataset or --config; leave them out")
    sizes = {"server.rounds": "rounds", "population.clients": "clients"}
    named = {own: _number(name, given.pop(name), int) for name, own in sizes.items() if name in given}
    if options.relation is not None:
        named["relation"] = options.relation
    delta = _number("privacy.client.delta", given.pop("privacy.client.delta", "1e-5"))
    if given:
        raise InputError(f"--{next(iter(given))}: is no setting of a function; known are --rounds, --clients, --delta")
    from dpfedmeta.auditing.rounds.audit_rounds import audit_rounds
    from dpfedmeta.core.plugins.user_code import own_object, raised
    from dpfedmeta.privacy.rounds.promise import PromisedCell

    module = options.function.partition(":")[0]
    function = own_object("--function", options.function)
    like = own_object("--like", options.like or f"{module}:LIKE")
    promise = PromisedCell(epsilon=options.promise, delta=delta)
    try:
        found = audit_rounds(
            function, promise=promise, like=like, seed=options.audit_seed, runs=options.runs,
            same_randomness=not options.releases_alone, **named,
        )  # fmt: skip
    except InputError:
        raise
    except Exception as error:  # whatever somebody's own rounds raise
        raise InputError(f"--function = {options.function}: failed ({raised(error)})") from error
    if options.badge is not None:
        from dpfedmeta.auditing.rounds.audit_rounds import draw_badge

        draw_badge(options.badge, found)
    if options.json:
        print_json(found.as_json())
    else:
        style = "bold red" if found.refuted else None
        print_line(console, str(found), style=style)
        console.print("That nothing is found proves nothing.", highlight=False)
        print_line(console, f"audit seed {found.seed} (--audit-seed repeats it)")
    return FAILED if options.strict and found.refuted else DONE


def _number(name: str, value: str, kind: type[int] | type[float] = float) -> Any:
    try:
        return kind(value)
    except ValueError:
        raise InputError(f"{name} = {value}: expected a {'whole ' if kind is int else ''}number") from None
