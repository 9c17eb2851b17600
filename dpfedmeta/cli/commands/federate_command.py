"""A federation of real clients: keys, the server, a client, or all of it on this machine (demo)."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dpfedmeta.accounting.relations.relations import RELATIONS
from dpfedmeta.cli import plan_sites
from dpfedmeta.cli.arguments import BAD_INPUT, DONE, check_alone, code_of_run, parser, print_line, settings_from
from dpfedmeta.cli.server_arguments import (
    add_real_clients,
    check_port,
    check_real_clients,
    check_seconds,
    server_options,
)
from dpfedmeta.config.load import resolve
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_checks import check_outside_runs
from dpfedmeta.core.pydantic_errors import nearest

if TYPE_CHECKING:
    from dpfedmeta.federation.client.client_budget import Promise
    from dpfedmeta.federation.json_log import JsonLog

SUMMARY = "clients that hold their own data: plan, keys, server, client, demo (all of it here)"

_WHAT = {
    "plan": "what so many sites with so many records can be promised, what noise that costs, what to change",
    "keys": "make the keys of a client (a secret key and its card), or of a server (--server)",
    "server": "train with clients that hold their own data; the same command resumes a run that was stopped",
    "client": "take part with a folder of images or a table, within a privacy budget that you set",
    "demo": "in a checkout: a server and clients as processes of this machine, with TLS and keys of their own",
}

# What a client limits; under --change-limit a part that is not given stays as its home has it.
_PARTS = ("unit", "epsilon", "delta", "participations", "relation")
_USUAL = {"unit": "record", "delta": 1e-5}
# Demands on a plan besides.
_FLOORS = ("adversarial", "colluding")


def main(words: Sequence[str], console: Console) -> int:
    """Parse and call what is named first."""
    if not words or words[0] in ("-h", "--help"):
        lines = [f"  {name:8}{what}" for name, what in _WHAT.items()]
        print("\n".join(["usage: dpfedmeta federate WHAT ...", "", *lines, "", "WHAT --help lists its options."]))
        return DONE if words else 2
    if words[0] not in _WHAT:
        raise InputError(f"{words[0]}: no command of federate{nearest(words[0], _WHAT)}; known are {', '.join(_WHAT)}")
    parts: dict[str, Callable[[Sequence[str], Console], int]] = {
        "plan": plan_sites.main,
        "keys": _keys,
        "server": _server,
        "client": _client,
        "demo": _demo,
    }
    return parts[words[0]](words[1:], console)


def parsers_of() -> dict[str, argparse.ArgumentParser]:
    """The options of each part; those of the server stand beside settings."""
    return {
        "plan": plan_sites.options_of(),
        "keys": _keys_parser(),
        "server": _server_parser(),
        "client": _client_parser(),
        "demo": _demo_parser(),
    }


def _say(console: Console) -> Callable[[str], None]:
    return lambda line: print_line(console, line)


def _json_log() -> JsonLog:
    from dpfedmeta.federation.json_log import JsonLog

    return JsonLog(lambda line: print(line, flush=True))


def _add_log(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--log",
        choices=("text", "json"),
        default="text",
        help="json: a JSON object a line, for log collectors (text)",
    )


def _keys_parser() -> argparse.ArgumentParser:
    made = parser("Make keys.", settings=False, program="dpfedmeta federate keys")
    made.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FILE|DIR",
        help="file for the secret key; with --server: folder for all keys",
    )
    made.add_argument("--name", help="name of the client (default: the file's name, or that of a rotated key)")
    made.add_argument("--rotate", type=Path, metavar="KEY", help="replace this key; what was spent stays counted")
    made.add_argument(
        "--home", type=Path, metavar="DIR", help="with --rotate: home folder of the old key (default: beside the key)"
    )
    made.add_argument("--server", action="store_true", help="make keys and certificates of a server")
    made.add_argument("--flower", action="store_true", help="also write files for Flower's own SuperNode")
    made.add_argument(
        "--host",
        nargs="+",
        default=["localhost", "127.0.0.1"],
        help="host names or addresses at which clients reach the server",
    )
    made.add_argument("--port", type=int, default=9443, help="port of the server (9443)")
    return made


def _keys(words: Sequence[str], console: Console) -> int:
    made = _keys_parser()
    options = made.parse_args(words)
    check_outside_runs("--out", options.out)
    from dpfedmeta.core.files.atomic_files import replace_file
    from dpfedmeta.federation.identity.credentials import card_line, read_identity
    from dpfedmeta.federation.identity.invitation import INVITATION, make_operator

    random = os.urandom(32)
    if options.server:
        check_alone(made, options, "--server", {"out", "server", "host", "port"})
        make_operator(options.out, options.host, options.port, random)
        _say(console)(f"{options.out}: keys of the server; give every client {options.out / INVITATION}")
        return DONE
    if options.rotate is not None:
        return _rotated(options, random, console)
    public = options.out.with_suffix(".card")
    if options.out.is_file() and not public.exists():
        random = read_identity(options.out)  # cut off before its card, which comes last
    else:
        _check_names(options)
    if options.home is not None:
        raise InputError("--home: the home of a key that is replaced; it goes with --rotate KEY")
    card = card_line(random, options.name or options.out.stem)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    _write_keys(options, random)
    replace_file(public, f"{card}\n".encode())
    _say(console)(f"{options.out}: the secret key, keep it; give the operator {public}, a line for the roster")
    return DONE


def _check_names(options: argparse.Namespace) -> None:
    """Refuse names under which a file would take the place of a key, or of another client's card.

    Raises:
        InputError: Says which.
    """
    endings = (".card", ".flower", ".home")
    if options.out.suffix in endings:
        raise InputError(
            f"--out {options.out}: {', '.join(endings)} are endings of what lies beside a key; give it another one, as "
            f"{options.out.with_suffix('.pem')}"
        )
    if options.out.is_file():
        raise InputError(f"{options.out}: there is a key already; it is not replaced")
    replaced = None if options.rotate is None else options.rotate.with_suffix(".card")
    for path in (options.out.with_suffix(ending) for ending in endings[: 1 + options.flower]):
        if path.exists() and path != replaced:
            raise InputError(
                f"{path}: exists already, perhaps of another key; give --out another name before its last dot, or move "
                "the file away"
            )


def _rotated(options: argparse.Namespace, random: bytes, console: Console) -> int:
    """A new key in place of an old one; its home, with all that was spent, goes along.

    The same command goes on with a rotation that was cut off.
    """
    from dpfedmeta.core.files.atomic_files import replace_file
    from dpfedmeta.federation.client.client_home import check_rotation, rotate
    from dpfedmeta.federation.identity.credentials import card_line, named_on_card, read_identity
    from dpfedmeta.secure_aggregation.crypto.keys import Identity

    begun = options.out.is_file()
    if not begun:
        _check_names(options)
    old, home = read_identity(options.rotate), options.home or options.rotate.with_suffix(".home")
    following = options.home or options.out.with_suffix(".home")
    known = check_rotation(old, home, following)
    if begun:
        random = read_identity(options.out)
        if random == old or Identity(random).public.hex() not in known:
            _check_names(options)
    name = options.name or named_on_card(options.rotate.with_suffix(".card")) or options.rotate.stem
    card, public = card_line(random, name), options.out.with_suffix(".card")
    options.out.parent.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        _write_keys(options, random)
        replace_file(public, f"{card}\n".encode())

    rotate(old, random, home, following, write)
    say = _say(console)
    say(f"{options.out}: the new secret key of {name}; its ledger continues in {following}")
    say(f"give the operator {public}, this line of the roster, in place of the old one of {name}:")
    say(card)
    return DONE


def _write_keys(options: argparse.Namespace, random: bytes) -> None:
    from dpfedmeta.federation.identity.credentials import write_identity, write_node_keys

    node = options.out.with_suffix(".flower")
    if not options.out.exists():
        write_identity(options.out, random)
    # The public half comes last: without it the command was cut off here.
    if options.flower and not node.with_suffix(".flower.pub").exists():
        node.unlink(missing_ok=True)
        write_node_keys(node, random)


def _server(words: Sequence[str], console: Console) -> int:
    options, rest = _server_parser().parse_known_args(words)
    from dpfedmeta.federation.identity.credentials import checked_fewest, read_roster
    from dpfedmeta.federation.identity.invitation import operator_identity
    from dpfedmeta.planning.early_checks import check_first

    check_real_clients(options)
    check_port("--page", options.page)
    cards = read_roster(options.roster)
    checked_fewest(options.fewest, len(cards))
    operator_identity(options.keys)
    given = settings_from(rest)
    given.setdefault("population.clients", str(len(cards)))
    settings = resolve(options.algo, options.dataset, options.config, given)
    if settings.run.name is None:
        settings = replace(settings, run=replace(settings.run, name=options.keys.absolute().name))
    check_first(settings, options.data_dir, simulated=False)
    from dpfedmeta.core.files.run_directory import REPORT
    from dpfedmeta.federation.entry_points import run_server
    from dpfedmeta.training.terminal.progress import Terminal

    chosen = replace(
        server_options(options), page_host=options.page_listen, page=None if options.no_page else options.page
    )
    again = shlex.join(["dpfedmeta", "federate", "server", *words]).replace("{", "{{").replace("}", "}}")
    log = _json_log() if options.log == "json" else None
    say = _say(console) if log is None else log.say
    with Terminal(console, again) as terminal:
        run, status = run_server(chosen, settings, cards, callbacks=[log or terminal], say=say)
    say(f"report: {run.path / REPORT}")
    return code_of_run(run.path, status)


def _server_parser() -> argparse.ArgumentParser:
    made = parser("Train over real clients.", settings=True, program="dpfedmeta federate server")
    add_real_clients(made, required=True)
    made.add_argument("--page", type=int, default=0, metavar="PORT", help="port of the status page (any free port)")
    made.add_argument(
        "--page-listen",
        default="127.0.0.1",
        metavar="HOST",
        help="address of the status page (127.0.0.1); on another one it shows nothing that tells of a secret cohort",
    )
    made.add_argument("--no-page", action="store_true", help="serve no status page")
    _add_log(made)
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    return made


def _client_parser() -> argparse.ArgumentParser:
    made = parser("Take part with a folder of images or a table.", settings=False, program="dpfedmeta federate client")
    made.add_argument(
        "--data",
        type=Path,
        required=True,
        metavar="PATH",
        help="folder of images (CLASS/IMAGE, or train/CLASS/IMAGE), or a .csv, .parquet or .npz file with classes",
    )
    made.add_argument("--invitation", type=Path, metavar="FILE", help="file from the server's operator")
    made.add_argument("--identity", type=Path, metavar="KEY", help="secret key from `federate keys`")
    made.add_argument(
        "--check",
        type=Path,
        metavar="YAML",
        help="what a plan (`federate plan --out`) promises and a limit (or --home) allows. It computes a round and "
        "sends nothing; ONLY NOISE if it is that",
    )
    made.add_argument("--home", type=Path, metavar="DIR", help="folder for ledger, log and model (beside the key)")
    made.add_argument("--unit", choices=("record", "client"), help="what is protected (record)")
    made.add_argument("--epsilon", type=float, help="largest epsilon towards the server, over all runs")
    made.add_argument("--delta", type=float, help="delta of this epsilon (1e-5)")
    made.add_argument(
        "--relation",
        choices=tuple(RELATIONS),
        help="how a record differs, for which epsilon is the limit (row-deleted if plans have rows, else zero-out)",
    )
    made.add_argument("--participations", type=int, metavar="R", help="most rounds to take part in, over all runs")
    made.add_argument(
        "--change-limit",
        action="store_true",
        help="replace those parts of the home's limit that are given now; what was spent stays counted. With --check: "
        "look at it first",
    )
    made.add_argument(
        "--adversarial",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="least share of a cohort that masks must withstand as adversarial (0)",
    )
    made.add_argument(
        "--colluding", type=int, default=0, metavar="C", help="least number of colluding clients to assume (0)"
    )
    made.add_argument(
        "--server", metavar="HOST:PORT", help="address of the server, if the one in the invitation does not reach it"
    )
    made.add_argument(
        "--patience", type=float, default=600.0, metavar="S", help="seconds to wait for a server before giving up (600)"
    )
    made.add_argument("--dry-run", action="store_true", help="show what would be promised and sent; send nothing")
    made.add_argument("--stay", action="store_true", help="after a run, wait for further runs")
    _add_log(made)
    return made


def _client(words: Sequence[str], console: Console) -> int:
    made = _client_parser()
    options = made.parse_args(words)
    if options.check is not None:
        check_alone(made, options, "--check", {"data", "check", "home", "change_limit", *_PARTS, *_FLOORS})
        return _checked(options, console)
    for name in ("invitation", "identity"):
        if getattr(options, name) is None:
            raise InputError(f"--{name} is needed to take part; --check YAML looks at the data without it")
    from dpfedmeta.data.user_sources.sound_rows import own_digests
    from dpfedmeta.federation.client.promise_checks import check_floors, check_promise
    from dpfedmeta.federation.identity.credentials import read_identity
    from dpfedmeta.federation.identity.invitation import checked_address, read_invitation

    # What is wrong is said before anything heavy is imported, and before a server is waited for.
    own_digests(options.data)
    read_invitation(options.invitation)
    read_identity(options.identity)
    home = options.home or options.identity.with_suffix(".home")
    # A second start need not name again what the home holds; the ledger refuses a part that differs from it.
    of_home = options.epsilon is None and options.participations is None
    limit = _limit(options, home if options.change_limit or of_home else None)
    check_promise(**limit)
    check_floors(options.adversarial, options.colluding)
    if options.change_limit and options.dry_run:
        raise InputError("--change-limit: sets the limit, and --dry-run changes nothing; give one of them, or --check")
    server = None if options.server is None else checked_address(options.server)
    check_seconds("--patience", options.patience)
    from dpfedmeta.federation.entry_points import ClientOptions, run_client

    chosen = ClientOptions(
        data=options.data,
        invitation=options.invitation,
        identity=options.identity,
        home=home,
        promise=_promise(options, limit),
        kept=frozenset(name for name in _PARTS if getattr(options, name) is None),
        server=server,
        patience=options.patience,
        dry_run=options.dry_run,
        stay=options.stay,
        change_limit=options.change_limit,
    )
    say = _json_log().say if options.log == "json" else _say(console)
    if of_home and not options.change_limit:
        say(f"home {home}: {chosen.promise.words} is its limit")
    model = run_client(chosen, say)
    if model is not None:
        say(f"adapted model: {model}")
    return DONE


def _limit(options: argparse.Namespace, home: Path | None) -> dict[str, Any]:
    """The client's limit, as the options say it; what they leave out is as in the ledger of a home, or as usual."""
    from dpfedmeta.federation.client.client_budget import limit_of

    given = {name: value for name in _PARTS if (value := getattr(options, name)) is not None}
    before = {} if home is None else limit_of(home)
    if given.get("unit", before.get("unit")) != before.get("unit"):
        before |= {"relation": None}  # of a record; the ledger refuses another unit, in words
    return {**dict.fromkeys(_PARTS), **_USUAL, **before, **given}


def _promise(options: argparse.Namespace, limit: Mapping[str, Any]) -> Promise:
    from dpfedmeta.federation.client.client_budget import Floors, Promise

    return Promise(**limit, floors=Floors(adversarial=options.adversarial, colluding=options.colluding))


def _checked(options: argparse.Namespace, console: Console) -> int:
    """Show what a plan promises, and try a round on a client's data; nothing leaves the machine."""
    from dpfedmeta.cli.run_statement import cell_lines
    from dpfedmeta.federation.client.client_home import home_of
    from dpfedmeta.federation.pre_flight import pre_flight
    from dpfedmeta.planning.caveats import notes_of

    home = home_of(options.data, options.home)
    limited = any(getattr(options, name) != _client_parser().get_default(name) for name in (*_PARTS, *_FLOORS))
    promise = _promise(options, _limit(options, home)) if limited else None
    found = pre_flight(options.data, options.check, promise, home, change=options.change_limit)
    plan = found.signed.plan
    notes = notes_of(plan.settings, found.signed.task)
    lines = (*cell_lines(plan.planned, plan.privacy.server_sees), *(f"note: {note}" for note in notes), *found.lines)
    for line in lines:
        print_line(console, line)
    return DONE if found.sound else BAD_INPUT


def _demo_parser() -> argparse.ArgumentParser:
    made = parser("A whole federation on this machine.", settings=False, program="dpfedmeta federate demo")
    made.add_argument("--clients", type=int, default=8, metavar="N", help="number of client processes (8)")
    made.add_argument("--out", type=Path, help="folder for all files (runs/federation-TIME)")
    made.add_argument("--dataset", choices=("omniglot", "strokes"), help="omniglot if it is here, else strokes")
    made.add_argument("--rounds", type=int, default=20, help="training rounds (20)")
    made.add_argument("--plain", action="store_true", help="no secure aggregation: the server sees each message")
    made.add_argument("--data-dir", type=Path, help="folder with omniglot/ ... (default: DPFEDMETA_DATA)")
    return made


def _demo(words: Sequence[str], console: Console) -> int:
    options = _demo_parser().parse_args(words)
    if options.out is not None:
        check_outside_runs("--out", options.out)
    from dpfedmeta.cli.checkout import checkout_module

    demo = checkout_module("benchmarks.federation_demo", "dpfedmeta federate demo")
    chosen = demo.DemoOptions(
        clients=options.clients,
        out=options.out,
        dataset=options.dataset,
        rounds=options.rounds,
        plain=options.plain,
        data_folder=options.data_dir,
    )
    code: int = demo.run_demo(chosen, _say(console))
    return code
