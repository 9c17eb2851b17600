"""A page that a server shows while it runs: rounds, who is connected, epsilon so far; to others less."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.version import __version__
from dpfedmeta.federation.json_log import finite
from dpfedmeta.training.tracking.callbacks import Callback, Row

if TYPE_CHECKING:
    from dpfedmeta.federation.server.client_requests import Heard
    from dpfedmeta.training.tracking.plan_summary import Planned

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
_MOST_ROUNDS = 2000
# By which a browser reaches this machine, or the near end of an SSH tunnel.
_OF_THIS_MACHINE = ("localhost",)


class Progress(Callback):
    """State of a run that the page shows, updated by the run's callbacks.

    Args:
        names: Names of the clients, by identity.
        present: Returns the identities of the connected clients.
        say: Tells the operator in a line where an answer of a client that was asked is absent or invalid.

    Guarantee:
        Holds the plan, rows of rounds.jsonl, and names of connected clients. Who was asked or answered in a round is as
        secret as the cohort, so it is counted only where all clients are asked in every round. What `snapshot` gives to
        others than the operator tells of no secret cohort.
    """

    def __init__(
        self,
        names: Mapping[bytes, str],
        present: Callable[[], Sequence[bytes]],
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._names, self._present, self._say = dict(names), present, say
        self._lock = threading.Lock()
        self._all = False
        self._state: dict[str, Any] = {"status": "waiting", "run": "", "plan": {}, "rounds": [], "heard": None}

    def on_plan(self, planned: Planned) -> None:
        """Record the plan and its guarantees."""
        settings = planned.settings
        population = settings.population
        self._all = sampling_of(population.sampler).fixed_size and population.cohort == population.clients
        cells = [guarantee.as_json() for guarantee in planned.guarantees]
        plan = {
            "algo": settings.algo,
            "rounds": planned.rounds,
            "clients": population.clients,
            "cells": cells,
            "everyone": self._all,
        }
        self._set(plan=plan)

    def on_start(self, path: Path) -> None:
        """Rounds begin, or go on after those that are on disk."""
        run = RunDirectory(path)
        rounds = run.rounds(torn=True) if run.rounds_file.exists() else []
        self._set(status="running", run=path.name, rounds=rounds[-_MOST_ROUNDS:])

    def on_round(self, row: Row) -> None:
        """Record the row of a round."""
        with self._lock:
            self._state["rounds"] = [*self._state["rounds"], dict(row)][-_MOST_ROUNDS:]

    def on_rewind(self, round_: int) -> None:
        """Rounds that are done again."""
        with self._lock:
            self._state["rounds"] = [row for row in self._state["rounds"] if row.get("round", 0) < round_]

    def on_end(self, summary: Row) -> None:
        """The end."""
        self._set(status=str(summary.get("status", "ended")))

    def heard(self, heard: Heard) -> None:
        """Record the counts of the answers to a question, if all clients are asked in every round."""
        if self._all:
            counts = {name: getattr(heard, name) for name in ("round", "clients", "answered", "declined", "absent")}
            self._set(heard=counts | {"invalid": heard.unsound, "asked": heard.asked.name.lower()})
            if heard.absent or heard.unsound:
                self._say(f"round {heard.round}: {heard}")

    def snapshot(self, *, operator: bool) -> dict[str, Any]:
        """All of it now, as JSON can say it; None in place of what is held back.

        Args:
            operator: Whether only the operator gets it.

        Guarantee:
            When a round ends tells who computed: it lasts as long as the slowest of them, whatever the cohort's size,
            and a client that computes may seem gone. So others get rounds, the number of connected clients and their
            names only where all clients are asked in every round. Before there is a plan they get neither.
        """
        there = {*self._present()}
        clients: list[dict[str, Any]] = [
            {"name": name, "connected": identity in there} for identity, name in self._names.items()
        ]
        with self._lock:
            state = self._state
            timely = operator or self._all
            shown = {
                **state,
                "rounds": state["rounds"] if timely else None,
                "there": sum(client["connected"] for client in clients) if timely else None,
                "connected": clients if timely else None,
            }
            found: dict[str, Any] = finite(shown)
            return found

    def _set(self, **values: Any) -> None:
        with self._lock:
            self._state.update(values)

    def health(self) -> dict[str, Any]:
        """What the run is doing, for whoever restarts a server that does not answer; it tells no round."""
        with self._lock:
            return {"status": self._state["status"], "version": __version__}


def _answer(progress: Progress, page: bytes, path: str, operator: bool) -> tuple[int, str, bytes]:
    """(HTTP status, kind of content, content) of a path."""
    if path == "/":
        return 200, "text/html; charset=utf-8", page
    if path == "/state.json":
        return 200, "application/json", json.dumps(progress.snapshot(operator=operator), allow_nan=False).encode()
    if path == "/health":
        return 200, "application/json", json.dumps(progress.health()).encode()
    if path == "/metrics":
        from dpfedmeta.federation.server.metrics import exposition  # a library that only those who scrape need

        return 200, "text/plain; version=0.0.4; charset=utf-8", exposition(progress.snapshot(operator=False))
    return 404, "text/plain; charset=utf-8", b"not here\n"


class Page:
    """The page, /state.json, /health and /metrics, served until it is closed.

    Args:
        progress: What it shows.
        host: To listen on; this machine alone, unless told otherwise: elsewhere it shows what others may see. A request
            that names another host than this, an address or localhost is refused: a name of somebody else that leads
            here (DNS rebinding).
        port: To listen on; 0: any.

    Raises:
        InputError: The address cannot be listened on.
    """

    def __init__(self, progress: Progress, host: str = "127.0.0.1", port: int = 0) -> None:
        named, operator = {host.lower(), *_OF_THIS_MACHINE}, _is_this_machine(host)
        page = files("dpfedmeta.federation.server").joinpath("page.html").read_bytes()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if not _named_so(self.headers.get_all("Host", []), named):
                    # Another site's name may lead to this machine, and its pages could then read this one.
                    self._reply(421, "text/plain; charset=utf-8", b"the page is not served under this name\n")
                else:
                    self._reply(*_answer(progress, page, self.path, operator))

            def _reply(self, status: int, kind: str, content: bytes) -> None:
                self.send_response(status)
                for name, value in (_HEADERS | {"Content-Type": kind, "Content-Length": str(len(content))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing: it is no news who looked."""

        class Server(ThreadingHTTPServer):
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        Handler.timeout = 10
        try:
            self._server = Server((host, port), Handler)
        except OSError as error:
            raise InputError(f"--page: cannot listen on {host}:{port} ({error.strerror}); give another port") from None
        self._server.daemon_threads = True
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_address[1]}/"
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


def _named_so(hosts: Sequence[str], names: Collection[str]) -> bool:
    """Check that a request names its host once, and that the page may be known by that name, an address included.

    The port does not matter: a tunnel has its own.
    """
    if len(hosts) != 1:
        return False
    name = re.sub(r":[0-9]*$", "", hosts[0])
    return name.lower().strip("[]") in names or _is_address(name)


def _is_this_machine(host: str) -> bool:
    """A loopback address: nobody else's connection ends there. By where the page listens, not by who asks: a proxy asks
    from this machine, for anybody."""
    return host.lower() in _OF_THIS_MACHINE or (_is_address(host) and ip_address(host.strip("[]")).is_loopback)


def _is_address(name: str) -> bool:
    """An address is no name that somebody else could point here."""
    try:
        ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True
