"""A whole round on this machine, for simulations and benchmarks: clients, server and bytes as between machines.

Clients live in worker processes, a share of them in each, and only messages leave these.
"""

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import fresh_processes
from dpfedmeta.secure_aggregation.crypto.keys import Identity, Randomness
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted
from dpfedmeta.secure_aggregation.crypto.unmasking import Corrected, correction
from dpfedmeta.secure_aggregation.protocol_client import Client
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.protocol_server import Server, Sum
from dpfedmeta.secure_aggregation.round_parameters import Agreement, Identities, Round

Vector = npt.NDArray[np.integer]
# Answers that travel together between processes.
_AT_ONCE = 16
# The phases in which a client sends something, hence can be silent.
SPEAKING = (
    ProtocolPhase.KEYS,
    ProtocolPhase.SHARES,
    ProtocolPhase.AGREE,
    ProtocolPhase.MASKED,
    ProtocolPhase.CONSENT,
    ProtocolPhase.REVEAL,
)


@dataclass(kw_only=True)
class Traffic:
    """Bytes of every seat, by phase.

    Attributes:
        up: From clients to the server.
        down: From the server to clients.
    """

    up: dict[ProtocolPhase, dict[int, int]] = field(default_factory=dict)
    down: dict[ProtocolPhase, dict[int, int]] = field(default_factory=dict)

    def of(self, seat: int) -> int:
        """All bytes that one client sent or got."""
        return sum(sizes.get(seat, 0) for way in (self.up, self.down) for sizes in way.values())


@dataclass(frozen=True, kw_only=True)
class InProcessRound:
    """Result of `run_round`.

    Attributes:
        sum: The release.
        traffic: Bytes that each party sent.
    """

    sum: Sum
    traffic: Traffic


class Here:
    """Clients in this process.

    Args:
        round_: What they agreed to.
        vectors: By seat.
        identities: Private keys by seat.
        verify: Whether clients check signatures of their neighbours' keys; see `Client`.
        randomness: A source of bytes for each seat; None for the operating system's.
    """

    def __init__(
        self,
        round_: Round,
        vectors: Mapping[int, Vector],
        identities: Mapping[int, bytes],
        verify: bool,
        randomness: Callable[[int], Randomness] | None,
    ) -> None:
        self._vectors = vectors
        self._clients = {
            seat: Client(
                round_=round_,
                seat=seat,
                identity=identities[seat],
                verify=verify,
                randomness=os.urandom if randomness is None else randomness(seat),
            )
            for seat in vectors
        }
        self._told: dict[int, bytes] = {}

    def answers(self, phase: ProtocolPhase, inbox: Mapping[int, bytes]) -> Iterator[bytes]:
        """Yield the clients' answers to the server's messages. A client that aborts answers no more."""
        for seat, message in inbox.items():
            try:
                yield self._one(phase, seat, message)
            except Aborted:
                continue

    def _one(self, phase: ProtocolPhase, seat: int, message: bytes) -> bytes:
        client = self._clients[seat]
        if phase is ProtocolPhase.KEYS:
            return client.advertise()
        if phase is ProtocolPhase.SHARES:
            return client.share(message)
        if phase is ProtocolPhase.AGREE:
            return client.agree(message)
        if phase is ProtocolPhase.MASKED:
            return client.mask(message, self._vectors[seat])
        return client.consent(message) if phase is ProtocolPhase.CONSENT else client.unmask(message)


class PipedClients:
    """Clients in a process at the other end of a pipe, which answers as `Here` would, in parts; [] is the last."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe

    def ask(self, what: object) -> None:
        """Without waiting for the answer."""
        self.pipe.send(what)

    def told(self) -> Any:
        """The next part of the answer to what was asked first.

        Raises:
            RuntimeError: The process died.
            Exception: What the process met.
        """
        try:
            found = self.pipe.recv()
        except EOFError:
            raise RuntimeError("a worker process was killed (out of memory?); the round was not released") from None
        if isinstance(found, BaseException):
            raise found
        return found


def _live(pipe: Connection) -> None:
    """A worker process: it answers until the pipe is closed."""
    here: Here | None = None
    while True:
        try:
            what, *rest = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        try:
            if what == "clients":
                here = Here(*rest)
            elif what == "answer" and here is not None:
                answers = here.answers(*rest)
                while part := list(itertools.islice(answers, _AT_ONCE)):
                    pipe.send(part)
                pipe.send([])
            else:
                pipe.send(correction(*rest))
        except Exception as error:
            pipe.send(error)


@contextmanager
def _processes(count: int) -> Iterator[list[PipedClients]]:
    spawn = fresh_processes()
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_live, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, 10)
            stack.callback(ours.close)
            found.append(PipedClients(ours))
        yield found


def run_round(
    vectors: Sequence[Vector],
    *,
    agreement: Agreement,
    silent: Mapping[int, ProtocolPhase] | None = None,
    run: bytes | None = None,
    round_: int = 0,
    attempt: int = 0,
    processes: int = 1,
    verify: bool = True,
    randomness: Callable[[int], Randomness] | None = None,
) -> InProcessRound:
    """Run one round among clients who follow the protocol.

    Args:
        vectors: Whole numbers, shape [dimension], by seat.
        agreement: Numbers of the round.
        silent: Phase from which on a client sends nothing, by seat: KEYS, SHARES, AGREE, MASKED, CONSENT or REVEAL.
        run: 32 bytes; random where absent.
        round_: Number of the round.
        attempt: Number of the attempt.
        verify: Whether clients check signatures of their neighbours' keys; see `Client`.
        processes: Worker processes for clients and for unmasking; 1: this one alone.
        randomness: A source of bytes for each seat, and for -1 the one that identities are drawn from; the operating
            system where absent. It must be picklable where there are worker processes.

    Returns:
        The sum and the traffic. The sum is exact: the vectors of all who were not silent before or in MASKED, added up
        modulo 2^bits.

    Raises:
        Aborted: Too few were left; nothing is released.
        InputError: Vectors that do not fit the agreement.
    """
    silent = silent or {}
    _check(vectors, agreement, silent)
    source = os.urandom if randomness is None else randomness(-1)
    keys = [source(32) for _ in range(agreement.clients + 1)]
    people = [Identity(key) for key in keys]
    identities = Identities(keys={seat: person.public for seat, person in enumerate(people[:-1])})
    held = Round(
        run=run or source(32),
        round=round_,
        attempt=attempt,
        agreement=agreement,
        identities=identities,
        server=people[-1].public,
    )
    server = Server(round_=held, identity=keys[-1])
    seats = range(agreement.clients)
    if processes == 1:
        here = Here(held, dict(enumerate(vectors)), dict(enumerate(keys[:-1])), verify, randomness)
        traffic = _talk(server, seats, silent, here.answers)
        return InProcessRound(sum=server.sum(), traffic=traffic)
    with _processes(processes) as others:
        for i, other in enumerate(others):
            own = seats[i::processes]
            other.ask(("clients", held, {s: vectors[s] for s in own}, {s: keys[s] for s in own}, verify, randomness))
        traffic = _talk(server, seats, silent, lambda phase, inbox: _among(others, phase, inbox))
        return InProcessRound(sum=server.sum(lambda _, tasks: _shared(others, list(tasks))), traffic=traffic)


def _check(vectors: Sequence[Vector], agreement: Agreement, silent: Mapping[int, ProtocolPhase]) -> None:
    if len(vectors) != agreement.clients:
        raise InputError(f"got {len(vectors)} vectors for {agreement.clients} clients")
    for seat, phase in silent.items():
        if not 0 <= seat < agreement.clients or phase not in SPEAKING:
            names = ", ".join(speaking.name for speaking in SPEAKING)
            raise InputError(
                f"silent: seat {seat} in {phase.name}; seats are 0 to {agreement.clients - 1}, clients speak in {names}"
            )


def _talk(
    server: Server,
    seats: Sequence[int],
    silent: Mapping[int, ProtocolPhase],
    ask: Callable[[ProtocolPhase, Mapping[int, bytes]], Iterable[bytes]],
) -> Traffic:
    """All phases, in order."""
    traffic = Traffic()
    inbox: dict[int, bytes] = dict.fromkeys(seats, b"")
    while inbox:
        phase = server.phase
        traffic.down[phase] = {seat: len(message) for seat, message in inbox.items()}
        speaking = {seat: message for seat, message in inbox.items() if silent.get(seat, phase + 1) > phase}
        traffic.up[phase] = {server.receive(message): len(message) for message in ask(phase, speaking)}
        inbox = server.close()
    return traffic


def _among(others: Sequence[PipedClients], phase: ProtocolPhase, inbox: Mapping[int, bytes]) -> Iterator[bytes]:
    """Answers as they come, so that the server works while clients do."""
    for i, other in enumerate(others):
        other.ask(("answer", phase, {seat: message for seat, message in inbox.items() if seat % len(others) == i}))
    waiting = list(others)
    while waiting:
        ready = wait([other.pipe for other in waiting])
        for other in [other for other in waiting if other.pipe in ready]:
            part = other.told()
            yield from part
            if not part:
                waiting.remove(other)


def _shared(others: Sequence[PipedClients], tasks: Sequence[tuple[object, ...]]) -> Iterator[Corrected]:
    # One task at a time each: a pipe that is full in both directions would wait for ever.
    for first in range(0, len(tasks), len(others)):
        asked = list(zip(others, tasks[first:], strict=False))
        for other, task in asked:
            other.ask(("correct", *task))
        for other, _ in asked:
            yield other.told()
