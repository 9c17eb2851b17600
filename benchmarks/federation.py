"""`scripts/bench.py --federation`: rounds of real client processes over Flower and TLS on this machine.

All processes are forked from one that holds the libraries (multiprocessing's forkserver), so that 50 of them share
their memory; each has one thread. Everything else is as `federate demo` has it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import ssl
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import federation_demo as demo
from benchmarks import solved_plans
from benchmarks.processes import proportional_memory
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.data.dataset import open_dataset
from dpfedmeta.federation.flower.flower_environment import prepare_flower
from dpfedmeta.federation.identity.invitation import ROSTER, make_operator

prepare_flower()

# What a client imports while it solves the plan is shared as well.
import numba  # noqa: E402, F401
import torch._dynamo  # noqa: E402, F401

import dpfedmeta.cli.commands.federate_command  # noqa: E402
import dpfedmeta.federation.flower.superlink  # noqa: E402
import dpfedmeta.reporting.html.page  # noqa: E402
import dpfedmeta.simulation.aggregations.secure  # noqa: E402, F401
from dpfedmeta.__main__ import main as command  # noqa: E402
from dpfedmeta.federation import wire_format as messages  # noqa: E402
from dpfedmeta.federation.client import client  # noqa: E402
from dpfedmeta.federation.flower import flower_client  # noqa: E402, F401
from dpfedmeta.federation.server.client_requests import ClientRequests  # noqa: E402

# struct tcp_info of Linux: bytes that the other side confirmed, and bytes that came.
_ACKNOWLEDGED = 120
# The first round makes the plan again at every client, and the last is followed by the evaluation.
_LEFT_OUT = 1
# Seconds that a question waits: nobody shall be late because the machine is slow.
_PATIENCE = 600.0


class _Meter:
    """What this process sent and got over TLS, handshakes and heartbeats included; without TCP's own headers."""

    def __init__(self) -> None:
        self._open: list[ssl.SSLSocket] = []
        self._before = (0, 0)
        wrapped, closed = ssl.SSLContext.wrap_socket, ssl.SSLSocket.close

        def wrap(context: ssl.SSLContext, *given: Any, **named: Any) -> ssl.SSLSocket:
            found = wrapped(context, *given, **named)
            self._open.append(found)
            return found

        def close(each: ssl.SSLSocket) -> None:
            if each in self._open and each.fileno() >= 0:
                self._before = _added(self._before, _bytes(each))
                self._open.remove(each)
            closed(each)

        vars(ssl)["SSLContext"].wrap_socket = wrap
        vars(ssl)["SSLSocket"].close = close

    def read(self) -> tuple[int, int]:
        """(sent, got) until now."""
        found = self._before
        for each in list(self._open):
            if each.fileno() >= 0:
                found = _added(found, _bytes(each))
        return found


def _added(first: tuple[int, int], second: tuple[int, int]) -> tuple[int, int]:
    return first[0] + second[0], first[1] + second[1]


def _bytes(each: socket.socket) -> tuple[int, int]:
    sent, got = struct.unpack_from("QQ", each.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 200), _ACKNOWLEDGED)
    return sent, got


def _client(words: list[str], folder: Path) -> None:
    """One client; a line for each question, when it came: round, bytes (up, down) of TLS and messages so far, CPU."""
    meter, plain = _Meter(), client.RealClient.answer
    messages_so_far = [0, 0]
    with (folder / "measured.jsonl").open("w", buffering=1) as file:

        def answer(self: client.RealClient, question: bytes) -> bytes:
            asked = messages.Question.opened(question, self._server, self.identity)
            sent, got = meter.read()
            line = {"asked": asked.asked.name, "round": asked.attempt.round, "tls": [sent, got]}
            file.write(json.dumps({**line, "messages": [*messages_so_far], "cpu": time.process_time()}) + "\n")
            found = plain(self, question)
            messages_so_far[0] += len(found)
            messages_so_far[1] += len(question)
            return found

        vars(client)["RealClient"].answer = answer
        _run(words, folder / "output.txt")


def _server(words: list[str], out: Path) -> None:
    """The server; a line for each question to all clients."""
    plain = ClientRequests._ask
    with (out / "measured.jsonl").open("w", buffering=1) as file:

        def ask(self: ClientRequests, asked: Any, attempt: Any, bodies: Any) -> dict[int, bytes]:
            line = {"asked": asked.name, "round": attempt.round, "at": time.monotonic(), "cpu": time.process_time()}
            found = plain(self, asked, attempt, bodies)
            ended = {"ended": time.monotonic(), "answered": len(found), "of": len(bodies)}
            file.write(json.dumps(line | ended) + "\n")
            return found

        vars(sys.modules[ClientRequests.__module__])["ClientRequests"]._ask = ask
        _run(words, out / "server.txt")


def _run(words: list[str], output: Path) -> None:
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)
    command(["federate", *words])


def measured(clients: int, *, plain: bool, rounds: int, out: Path, seconds: float) -> dict[str, Any]:
    """One federation: medians over rounds, and over clients and rounds."""
    options = _options(clients, rounds, out, plain=plain)
    operator = out / "operator"
    make_operator(operator, ["127.0.0.1", "localhost"], demo._free_port(), os.urandom(32))
    made = demo._clients(open_dataset("strokes", None).train, out, clients)
    cards = [demo._enrolled(each) for each in made]
    replace_file(operator / ROSTER, "".join(f"{card}\n" for card in cards).encode())
    words = demo._server_words(options, operator, "strokes", out)
    words += ["--seconds", str(seconds), "--wait", "900", "--no-page", "--evaluation.every", "1000"]
    words += ["--evaluation.episodes", "2", "--evaluation.validation_episodes", "2"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, solved_plans.__name__])
    server = context.Process(target=_server, args=(words, out), daemon=True)
    server.start()
    processes = [
        context.Process(
            target=_client, args=([*demo._client_words(each, operator), "--patience", "900"], each.folder), daemon=True
        )
        for each in made
    ]
    for each in processes:
        each.start()
    try:
        memory = _waited(server, processes, out)
    finally:
        for each in (server, *processes):
            each.kill()
            each.join()
    return {
        "clients": clients,
        "way": "plain" if plain else "secure",
        "rounds": rounds,
        **_of_server(out, rounds),
        **_of_clients([each.folder for each in made], rounds),
        "memory_of_a_client_mb": memory / clients / 2**20,
    }


def _options(clients: int, rounds: int, out: Path, *, plain: bool) -> demo.DemoOptions:
    return demo.DemoOptions(clients=clients, out=out, dataset="strokes", rounds=rounds + 2 * _LEFT_OUT, plain=plain)


def _waited(server: Any, clients: Sequence[Any], out: Path) -> float:
    """Until all have ended; the most bytes of memory that the clients ever held together.

    Raises:
        RuntimeError: The server ended with an error.
    """
    most = 0.0
    while server.exitcode is None:
        most = max(most, sum(proportional_memory(each.pid) for each in clients))
        server.join(5)
    if server.exitcode:
        raise RuntimeError(f"the server ended with {server.exitcode}: {(out / 'server.txt').read_text()[-500:]}")
    for each in clients:
        each.join(300)
    return most


def _of_server(out: Path, rounds: int) -> dict[str, float]:
    lines = [json.loads(line) for line in (out / "measured.jsonl").read_text().splitlines()]
    asked = [line for line in lines if line["asked"] in ("VECTOR", "PHASE")]
    begun = {number: min(x["at"] for x in asked if x["round"] == number) for number in range(rounds + 2 * _LEFT_OUT)}
    cpu = {number: min(x["cpu"] for x in asked if x["round"] == number) for number in begun}
    each = range(_LEFT_OUT, _LEFT_OUT + rounds)
    full = [x["answered"] == x["of"] for x in asked if x["round"] in each]
    return {
        "seconds_per_round": statistics.median(begun[number + 1] - begun[number] for number in each),
        "slowest_round": max(begun[number + 1] - begun[number] for number in each),
        "server_cpu_per_round": statistics.median(cpu[number + 1] - cpu[number] for number in each),
        "questions_answered_by_all": sum(full) / len(full),
    }


def _of_clients(folders: Sequence[Path], rounds: int) -> dict[str, float]:
    names = ("tls_up", "tls_down", "messages_up", "messages_down", "client_cpu_per_round")
    found = {name: list[float]() for name in names}
    for folder in folders:
        lines = [json.loads(line) for line in (folder / "measured.jsonl").read_text().splitlines()]
        first = {line["round"]: line for line in reversed(lines) if line["asked"] in ("VECTOR", "PHASE")}
        for number in range(_LEFT_OUT, _LEFT_OUT + rounds):
            if number in first and number + 1 in first:
                one, next_ = first[number], first[number + 1]
                for place, way in enumerate(("up", "down")):
                    found[f"tls_{way}"].append(next_["tls"][place] - one["tls"][place])
                    found[f"messages_{way}"].append(next_["messages"][place] - one["messages"][place])
                found["client_cpu_per_round"].append(next_["cpu"] - one["cpu"])
    return {name: statistics.median(values) for name, values in found.items()}


def federation_rows(counts: Sequence[int], rounds: int, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Plain and secure, for each number of client processes.

    Args:
        counts: How many clients.
        rounds: That are measured, of each.
        say: Told each row as it comes.
    """
    rows, out = list[dict[str, Any]](), Path()
    plans = [
        demo._server_words(_options(clients, rounds, out, plain=plain), out, "strokes", out)
        for clients in counts
        for plain in (True, False)
    ]
    os.environ[solved_plans.PLANS] = json.dumps(plans)
    for clients in counts:
        for plain in (True, False):
            with tempfile.TemporaryDirectory(prefix="federation-") as folder:
                row = measured(clients, plain=plain, rounds=rounds, out=Path(folder), seconds=_PATIENCE)
            rows.append({**row, "load": os.getloadavg()[0], "cores": os.cpu_count()})
            say(json.dumps(rows[-1]))
    return rows
