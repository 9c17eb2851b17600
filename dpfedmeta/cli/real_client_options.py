"""Options of commands that reach real clients: the operator's keys, who the clients are, where they are waited for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfedmeta.federation.entry_points import ServerOptions


def add_real_clients(made: argparse.ArgumentParser, *, required: bool, before: str = "") -> None:
    """Add them to a command; `before` stands before what each is."""
    made.add_argument(
        "--keys", type=Path, required=required, metavar="DIR", help=f"{before}of `federate keys --server`"
    )
    made.add_argument(
        "--roster", type=Path, required=required, metavar="FILE", help=f"{before}the clients' cards, one a line"
    )
    made.add_argument(
        "--listen", default="127.0.0.1", metavar="HOST", help=f"{before}0.0.0.0: on every network (127.0.0.1)"
    )
    made.add_argument("--port", type=int, help=f"{before}to listen on (as in the invitation)")
    made.add_argument("--seconds", type=float, default=60.0, help=f"{before}how long a question waits for answers (60)")
    made.add_argument("--fewest", type=int, help=f"{before}clients that must be connected before they are asked (all)")
    made.add_argument("--wait", type=float, default=600.0, metavar="S", help=f"{before}seconds to wait for them (600)")


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
