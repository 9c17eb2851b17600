"""What a round of secure aggregation costs a server and the protocol of its clients, over Flower and TLS.

    python -m benchmarks.secure_round --clients 50 --rounds 3 --json round.json

A real server; clients in one process that go through the whole protocol with keys of their own, with a vector of zeros
in place of one that is trained. So training, ledgers and the start of 50 processes are in no number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from benchmarks import federation as real
from benchmarks import load, results
from benchmarks.stub_clients import Stub, attend_all
from dpfedmeta.federation.client.secagg_session import MaskedRound
from dpfedmeta.federation.client.signed_participation import SignedParticipation
from dpfedmeta.federation.identity.invitation import read_invitation
from dpfedmeta.federation.offers.signed_plan import SignedPlan, opened_plan
from dpfedmeta.federation.wire_format import Offer, ProtocolStep, Question, QuestionKind, Said, Start, answer
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase

_BETWEEN = 0.02
# One plan is the same at all of them, and takes seconds to make.
_plan: Callable[[bytes, bytes, bytes], SignedPlan] = lru_cache(maxsize=1)(opened_plan)


class MaskingStub(Stub):
    """A client that keeps to the protocol and masks zeros."""

    def __init__(self, private: bytes, server: bytes) -> None:
        super().__init__(private, server)
        self._private = private
        self._masked: MaskedRound | None = None
        self._joined: SignedParticipation | None = None

    def answer(self, question: bytes) -> bytes:
        """The answer to one question, in its form."""
        asked = Question.opened(question, self._server, self.identity)
        if asked.asked is QuestionKind.PLAN:
            offer = Offer.decode(asked.body)
            self._joined = _joined(_plan(offer.text, offer.signature, self._server), offer.number)
        if asked.asked is not QuestionKind.PHASE:
            return super().answer(question)
        assert self._joined is not None
        step = ProtocolStep.decode(asked.body)
        if step.phase == ProtocolPhase.KEYS:
            start = Start.decode(step.said, self._joined.signed.privacy.clients)
            self._masked = MaskedRound(self._joined, asked.attempt, step.protocol, start, self._private)
        assert self._masked is not None
        return answer(Said.PHASE, question, self._masked.answer(ProtocolPhase(step.phase), step.said), self._own)


def _joined(signed: SignedPlan, number: int) -> SignedParticipation:
    """As much of a client's participation as the protocol asks for."""
    whole = signed.privacy.at(0).whole
    assert whole is not None
    zeros = np.zeros(whole.dimension, dtype="<u4")
    kept = SimpleNamespace(
        survivors=lambda attempt: None,
        may_reveal=lambda attempt, survivors: True,
        once=lambda attempt, asked, made: zeros.tobytes(),
    )
    return cast(SignedParticipation, SimpleNamespace(signed=signed, number=number, kept=kept))


def _attending(invitation: Path, privates: Sequence[bytes]) -> None:
    asyncio.run(attend_all(privates, read_invitation(invitation), _BETWEEN, MaskingStub))


def measured(clients: int, rounds: int, out: Path) -> dict[str, Any]:
    """CPU seconds of a round: the server's, and of all clients together.

    Raises:
        RuntimeError: The server ended with an error.
    """
    used = []
    with load.begun(clients, rounds, out, _attending, plain=False) as (server, stubs):
        while server.exitcode is None:
            used.append((time.monotonic(), load._cpu(stubs.pid)))
            server.join(0.25)
    return {"clients": clients, "rounds": rounds, **real._of_server(out, rounds), "clients_cpu": _of_stubs(used, out)}


def _of_stubs(used: Sequence[tuple[float, float]], out: Path) -> float:
    """CPU seconds of all clients in a round, without the first and the last one."""
    lines = [json.loads(line) for line in (out / "measured.jsonl").read_text().splitlines()]
    asked = [line for line in lines if line["asked"] == "PHASE"]
    last = max(line["round"] for line in asked)
    begun, ended = (min(line["at"] for line in asked if line["round"] == number) for number in (1, last))
    times, spent = np.array(used).T
    spent_by = np.interp([begun, ended], times, spent)
    return float(spent_by[1] - spent_by[0]) / int(last - 1)


def main() -> None:
    """One row."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument(
        "--rounds", type=int, default=3, help="that are measured; one before and one after them are not"
    )
    parser.add_argument("--json", type=Path, help="also keep the row")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="secure-round-") as folder:
        row = {**measured(words.clients, words.rounds, Path(folder)), "load": os.getloadavg()[0]}
    print(json.dumps(row))
    if words.json is not None:
        results.write(words.json, row)


if __name__ == "__main__":
    main()
