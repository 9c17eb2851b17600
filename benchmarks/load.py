"""`scripts/bench.py --federation --stubs`: a real server under the load of many clients that compute nothing.

Each client has a key and two TLS connections of its own and answers every question with the right form and zeros, so
what is measured is the server: its memory, its CPU seconds and its seconds a round.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from benchmarks import federation as real
from benchmarks import federation_demo as demo
from benchmarks.stub_clients import attend_all
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.federation.identity.credentials import card_line
from dpfedmeta.federation.identity.invitation import INVITATION, ROSTER, make_operator, read_invitation

# Seconds between two clients that connect: this one process speaks TLS for all of them.
_BETWEEN = 0.02


def _attending(invitation: Path, privates: Sequence[bytes]) -> None:
    """All stubs, in one process and one thread."""
    asyncio.run(attend_all(privates, read_invitation(invitation), _BETWEEN))


def _cpu(process: int | None) -> float:
    """CPU seconds that a process used so far, all of its threads together."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(process: int | None) -> float:
    """Bytes that a process holds in memory, those that it shares with others included."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def _first_questions(out: Path, clients: int) -> dict[str, float]:
    """Seconds of the question that carries the plan, and answers of all questions that did not come."""
    lines = [json.loads(line) for line in (out / "measured.jsonl").read_text().splitlines()]
    plans = [line for line in lines if line["asked"] == "PLAN"]
    return {
        "seconds_of_plan": sum(line["ended"] - line["at"] for line in plans),
        "answers_lost": sum(line["of"] - line["answered"] for line in lines),
    }


@contextmanager
def begun(
    clients: int, rounds: int, out: Path, attend: Callable[[Path, Sequence[bytes]], None], *, plain: bool
) -> Iterator[tuple[ForkServerProcess, ForkServerProcess]]:
    """A server, and a process in which all its clients attend; both end with the block.

    Raises:
        RuntimeError: The server ended with an error.
    """
    privates = [os.urandom(32) for _ in range(clients)]
    operator = out / "operator"
    make_operator(operator, ["127.0.0.1", "localhost"], demo._free_port(), os.urandom(32))
    cards = (card_line(private, f"stub-{number}") for number, private in enumerate(privates))
    replace_file(operator / ROSTER, "".join(f"{card}\n" for card in cards).encode())
    words = demo._server_words(real._options(clients, rounds, out, plain=plain), operator, "strokes", out)
    words += ["--seconds", "600", "--wait", "900", "--no-page", "--evaluation.every", "1000"]
    words += ["--evaluation.episodes", "2", "--evaluation.validation_episodes", "2"]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([real.__name__])
    server = context.Process(target=real._server, args=(words, out), daemon=True)
    stubs = context.Process(target=attend, args=(operator / INVITATION, privates), daemon=True)
    server.start()
    stubs.start()
    try:
        yield server, stubs
        if server.exitcode:
            raise RuntimeError(f"the server ended with {server.exitcode}: {(out / 'server.txt').read_text()[-500:]}")
    finally:
        for each in (server, stubs):
            each.kill()
            each.join()


def load_row(clients: int, rounds: int) -> dict[str, Any]:
    """Seconds of a round, and the most memory that the server held.

    Raises:
        RuntimeError: The server ended with an error.
    """
    memory, used = list[float](), list[tuple[float, float]]()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        with begun(clients, rounds, out, _attending, plain=True) as (server, stubs):
            while server.exitcode is None:
                memory.append(_resident(server.pid))
                used.append((_cpu(server.pid), _cpu(stubs.pid)))
                server.join(1)
        return {
            "clients": clients,
            "rounds": rounds,
            **real._of_server(out, rounds),
            "server_memory_mb": max(memory) / 2**20,
            "server_cpu": max(server for server, _ in used),
            "stubs_cpu": max(stubs for _, stubs in used),
            **_first_questions(out, clients),
            "load": os.getloadavg()[0],
        }
