"""`scripts/bench.py --federation --stubs`: a real server under the load of many clients that compute nothing.

Each client is a thread with a key and a TLS connection of its own that answers every question with the right form and
zeros, so what is measured is the server: its memory and its seconds a round.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import federation as real
from benchmarks import federation_demo as demo
from dpfedmeta.core.files.atomic_files import replace_file
from dpfedmeta.federation.flower.flower_client import attend
from dpfedmeta.federation.flower.http_client import Wire
from dpfedmeta.federation.identity.credentials import card_line
from dpfedmeta.federation.identity.invitation import INVITATION, ROSTER, make_operator, read_invitation
from dpfedmeta.federation.wire_format import Question, QuestionKind, Said, answer, packed_floats
from dpfedmeta.secure_aggregation.crypto.keys import Identity

# Bytes of a task before the weights: the clip bound.
_BOUND_BYTES = 8
# Seconds between two clients that connect: this one process speaks TLS for all of them.
_BETWEEN = 0.15


class Stub:
    """A client that accepts every plan and sends zeros (a federation.channel.Party).

    Attributes:
        over: Whether the learned model was handed out.
    """

    def __init__(self, private: bytes, server: bytes) -> None:
        self._own, self._server, self.over = Identity(private), server, False

    @property
    def identity(self) -> bytes:
        """Its public key."""
        return self._own.public

    def answer(self, question: bytes) -> bytes:
        """The answer to one question, in its form."""
        asked = Question.opened(question, self._server, self.identity)
        if asked.asked is QuestionKind.PLAN:
            return answer(Said.ACCEPTED, question, b"", self._own)
        if asked.asked is QuestionKind.VECTOR:
            zeros = np.zeros((len(asked.body) - _BOUND_BYTES) // 4, dtype=np.float32)
            return answer(Said.VECTOR, question, packed_floats(zeros), self._own)
        self.over = True
        return answer(Said.ADAPTED, question, b"", self._own)


def _attending(invitation: Path, privates: Sequence[bytes]) -> None:
    """All stubs in one process, a thread each."""
    told = read_invitation(invitation)
    threads = []
    for private in privates:
        stub = Stub(private, told.identity)
        wire = Wire(server=told.server, authority=told.authority, private=private, patience=900.0)
        over = {"over": lambda stub=stub: stub.over}
        threads.append(threading.Thread(target=attend, args=(stub, wire), kwargs=over, daemon=True))
        threads[-1].start()
        time.sleep(_BETWEEN)
    for each in threads:
        each.join()


def _resident(process: int | None) -> float:
    """Bytes that a process holds in memory, those that it shares with others included."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return float(pages * os.sysconf("SC_PAGE_SIZE"))


def load_row(clients: int, rounds: int) -> dict[str, Any]:
    """Seconds of a round, and the most memory that the server held.

    Raises:
        RuntimeError: The server ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        privates = [os.urandom(32) for _ in range(clients)]
        operator = out / "operator"
        make_operator(operator, ["127.0.0.1", "localhost"], demo._free_port(), os.urandom(32))
        cards = (card_line(private, f"stub-{number}") for number, private in enumerate(privates))
        replace_file(operator / ROSTER, "".join(f"{card}\n" for card in cards).encode())
        options = real._options(clients, rounds, out, plain=True)
        words = demo._server_words(options, operator, "strokes", out)
        words += ["--seconds", "600", "--wait", "900", "--no-page", "--evaluation.every", "1000"]
        words += ["--evaluation.episodes", "2", "--evaluation.validation_episodes", "2"]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([real.__name__])
        server = context.Process(target=real._server, args=(words, out), daemon=True)
        stubs = context.Process(target=_attending, args=(operator / INVITATION, privates), daemon=True)
        memory = list[float]()
        server.start()
        stubs.start()
        try:
            while server.exitcode is None:
                memory.append(_resident(server.pid))
                server.join(1)
            if server.exitcode:
                text = (out / "server.txt").read_text()
                raise RuntimeError(f"the server ended with {server.exitcode}: {text[-500:]}")
            return {
                "clients": clients,
                "rounds": rounds,
                **real._of_server(out, rounds),
                "server_memory_mb": max(memory) / 2**20,
            }
        finally:
            for each in (server, stubs):
                each.kill()
                each.join()
