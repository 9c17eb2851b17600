"""Rounds for the tests of this folder: small crowds, a server whose lists a test may rewrite, deterministic bytes."""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256

import numpy as np

from dpfedmeta.core.random.keyed_streams import key_stream
from dpfedmeta.secure_aggregation import Agreement, Client, Identities, Round, Server, agreed
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Aborted
from dpfedmeta.secure_aggregation.protocol_messages import EVERYONE, SERVER, ProtocolPhase, opened, signed

DIMENSION = 5


def stream(*name):
    return key_stream(sha256(repr(name).encode()).digest())


@lru_cache(maxsize=8)
def people(clients):
    """Private keys of the seats, and the server's."""
    read = stream("people")
    return tuple(read(32) for _ in range(clients + 1))


def agreement(clients=6, *, malicious=False, bits=16, dimension=DIMENSION, adversarial=0.15, dropout=0.2, **more):
    return agreed(
        clients=clients,
        dimension=dimension,
        bits=bits,
        adversarial=adversarial,
        dropout=dropout,
        malicious=malicious,
        **more,
    )


def ring(clients, degree, threshold, fewest, **more):
    """A graph that is not complete, of so few clients that no parameters would allow it."""
    numbers = {"dimension": DIMENSION, "bits": 16, "colluding": 0, "malicious": False, **more}
    return Agreement(clients=clients, degree=degree, threshold=threshold, fewest=fewest, **numbers)


def a_round(numbers, *, run=b"r" * 32, number=3, attempt=0):
    *seats, server = (Identity(key).public for key in people(numbers.clients))
    identities = Identities(keys=dict(enumerate(seats)))
    return Round(run=run, round=number, attempt=attempt, agreement=numbers, identities=identities, server=server)


def vector(seat, numbers):
    return np.random.default_rng([seat, 1]).integers(0, 2**numbers.bits, numbers.dimension, dtype=np.uint64)


def plain_sum(seats, numbers):
    return sum(1 * vector(seat, numbers) for seat in seats) % np.uint64(2**numbers.bits)


class Table:
    """Everybody at one table, phase by phase.

    Attributes:
        clients: By seat.
        server: The honest one.
        sent: What the server sent last, by seat.
    """

    def __init__(self, numbers, *, verify=True, name="table", **which):
        self.numbers = numbers
        self.round = a_round(numbers, **which)
        keys = people(numbers.clients)
        self.clients = {
            seat: Client(
                round_=self.round, seat=seat, identity=keys[seat], verify=verify, randomness=stream(name, seat)
            )
            for seat in range(numbers.clients)
        }
        self.server = Server(round_=self.round, identity=keys[-1])
        self.identity = Identity(keys[-1])
        self.sent = dict.fromkeys(self.clients, b"")

    def says(self, seat, message):
        """What a client answers in this phase."""
        client = self.clients[seat]
        return {
            ProtocolPhase.KEYS: lambda: client.advertise(),
            ProtocolPhase.SHARES: lambda: client.share(message),
            ProtocolPhase.AGREE: lambda: client.agree(message),
            ProtocolPhase.MASKED: lambda: client.mask(message, vector(seat, self.numbers)),
            ProtocolPhase.CONSENT: lambda: client.consent(message),
            ProtocolPhase.REVEAL: lambda: client.unmask(message),
        }[self.server.phase]()

    def phase(self, *, silent=()):
        """Everybody but the silent answers; the phase is closed."""
        for seat, message in self.sent.items():
            if seat not in silent:
                self.server.receive(self.says(seat, message))
        self.sent = self.server.close()
        return self.sent

    def until(self, phase, **silent):
        """Up to the phase, in which nobody has answered yet."""
        while self.server.phase is not phase:
            self.phase(silent=silent.get(self.server.phase.name, ()))
        return self

    def through(self, **silent):
        """To the sum."""
        while self.sent:
            self.phase(silent=silent.get(self.server.phase.name, ()))
        return self.server.sum()

    def bound(self, seat):
        return self.clients[seat]._bound

    def rewritten(self, seat, phase, change, decode, encode=lambda body, numbers: body.encode()):
        """A server's message to a seat, changed by a server that signs what it likes."""
        bound = b"" if phase is ProtocolPhase.KEY_LIST else self.bound(seat)
        body = opened(self.round, phase, SERVER, seat, self.sent[seat], self.round.server, bound)
        changed = encode(change(decode(body)), self.numbers)
        return signed(self.round, phase, SERVER, seat, changed, self.identity, bound)


__all__ = ["EVERYONE", "Aborted", "Table", "a_round", "agreement", "people", "plain_sum", "ring", "stream", "vector"]
