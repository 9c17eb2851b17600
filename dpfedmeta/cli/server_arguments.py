"""Options of commands that are the server of real clients: where it listens, whom it waits for and how long."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    from dpfedmeta.federation.entry_points import ServerOptions


def add_real_clients(made: argparse.ArgumentParser, *, required: bool, before: str = "") -> None:
    """Add the options of a server of real clients to a command; `before` stands before what each is."""
    made.add_argument(
        "--keys", type=Path, required=required, metavar="DIR", help=f"{before}folder of `federate keys --server`"
    )
    made.add_argument(
        "--roster", type=Path, required=required, metavar="FILE", help=f"{before}file of the clients' cards, one a line"
    )
    made.add_argument(
        "--listen", default="127.0.0.1", metavar="HOST", help=f"{before}address to listen on, 0.0.0.0: all (127.0.0.1)"
    )
    made.add_argument("--port", type=int, help=f"{before}port to listen on (as in the invitation)")
    made.add_argument("--seconds", type=float, default=60.0, help=f"{before}seconds to wait for clients' answers (60)")
    made.add_argument("--fewest", type=int, help=f"{before}fewest clients that must be connected to start (all)")
    made.add_argument("--wait", type=float, default=600.0, metavar="S", help=f"{before}seconds to wait for them (600)")


def check_real_clients(options: argparse.Namespace) -> None:
    """Refuse values of these options that no server could use, before anything heavy is imported.

    Raises:
        InputError: Says which option.
    """
    check_seconds("--seconds", options.seconds)
    check_seconds("--wait", options.wait)
    if options.listen.count(":") == 1:
        raise InputError(f"--listen {options.listen}: expected an address alone; the port goes to --port")
    check_port("--port", options.port)


def server_options(options: argparse.Namespace) -> ServerOptions:
    """Return the given options of the server, without a page."""
    from dpfedmeta.federation.entry_points import ServerOptions

    return ServerOptions(
        keys=options.keys,
        roster=options.roster,
        host=options.listen,
        port=options.port,
        page=None,
        seconds=options.seconds,
        fewest=options.fewest,
        wait=options.wait,
        data_folder=options.data_dir,
    )


def check_seconds(option: str, seconds: float) -> None:
    """Refuse seconds that are no time to wait."""
    if not 0 < seconds < math.inf:
        raise InputError(f"{option} {seconds:g}: expected a number of seconds above 0")


def check_port(option: str, port: int | None) -> None:
    """Refuse what is no port; None: none is given."""
    if port is not None and not 0 <= port <= 65535:
        raise InputError(f"{option} {port}: expected a port, a number up to 65535")
