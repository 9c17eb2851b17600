"""Randomness as data: one generator per (seed, purpose, round or client).

Two families never mix. *Public* generators are keyed by ``run.seed`` and drive data, population and
initial weights. *Secret* generators drive noise and cohorts (privacy rule 5); they read a cryptographic
generator, keyed by a seed that nobody wrote down, or the operating system's.
"""

from __future__ import annotations

import json
import os
import random
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cache
from hashlib import blake2b
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpfedmeta.core.random.keyed_streams import MessageGenerator, key_stream
from dpfedmeta.core.random.random_numbers import SecretGenerator as SecretGenerator
from dpfedmeta.core.random.random_numbers import StreamGenerator

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

# How KeyedSource comes from a seed to numbers. Another way needs another name: a seed serves one only.
GENERATOR = "chacha20-blake2b-ziggurat-1"
SEEDS = 2**128  # how many secret seeds there are
_PERSON = b"dpfedmeta stream"


class Purpose(IntEnum):
    """Purpose of a generator; part of its key, so that two purposes never share a stream."""

    COHORT = 1
    SERVER_NOISE = 2
    SUPPORT_NOISE = 3
    QUERY_NOISE = 4
    CLIENT_DATA = 5
    WEIGHTS = 6
    EVALUATION = 7
    TASK_DATA = 8
    AVAILABILITY = 9
    LOCAL_BATCHES = 10
    MESSAGE_NOISE = 11
    ROUNDING = 12
    ROTATION = 13
    SILENCE = 14
    CANARY = 15
    NAME_HASHES = 16


# What a client draws itself; its generators are keyed by (round, client).
CLIENT_PURPOSES = (
    Purpose.SUPPORT_NOISE,
    Purpose.QUERY_NOISE,
    Purpose.LOCAL_BATCHES,
    Purpose.MESSAGE_NOISE,
    Purpose.ROUNDING,
)
# What draws noise that is added to something secret.
NOISE_PURPOSES = frozenset({Purpose.SERVER_NOISE, *CLIENT_PURPOSES} - {Purpose.ROUNDING})


def public_generator(seed: int, purpose: Purpose, *key: int) -> np.random.Generator:
    """A reproducible generator for things that are public in a simulation: data, population, weights."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, int(purpose), *key])))


@contextmanager
def global_generators_at(*, python: int, numpy: int, torch: int) -> Iterator[None]:
    """The global generators of `random`, numpy and torch (on the CPU) begin at these seeds; put back afterwards.

    For code of others, which draws from them and cannot be handed another one.
    """
    import torch as library  # here, since who draws noise needs none of it

    before = random.getstate(), np.random.get_state(), library.get_rng_state()  # noqa: NPY002
    try:
        random.seed(python)
        np.random.seed(numpy)  # noqa: NPY002
        library.default_generator.manual_seed(torch)
        yield
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])  # noqa: NPY002
        library.set_rng_state(before[2])


class SecretSource(Protocol):
    """Hands out secret generators by key. Picklable, so that clients can run in worker processes."""

    @property
    def reproducible(self) -> bool:
        """True if the same key gives the same stream again."""
        ...

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """The generator of (purpose, key)."""
        ...

    @property
    def needs_fresh(self) -> bool:
        """True if an attempt can draw only with fresh bytes, which are kept beside its charge."""
        ...

    def again(self, key: tuple[int, ...], fresh: bytes = b"") -> SecretSource:
        """The source of one attempt at a round: it shares no stream with another attempt.

        Args:
            key: What a further attempt adds; () for the first one.
            fresh: Bytes of the attempt's own (fresh_seeds.attempt_bytes), where the source needs them.
        """
        ...

    def of_clients(self, round_: int, clients: Sequence[int]) -> SecretSource:
        """Return only what a machine needs to compute these clients in this round: their own streams."""
        ...


_staying: ContextVar[bool] = ContextVar("seeds stay in this process", default=False)


@contextmanager
def seeds_stay() -> Iterator[None]:
    """Inside, whatever is pickled holds no secret seed: an attempt is an error."""
    before = _staying.set(True)
    try:
        yield
    finally:
        _staying.reset(before)


def check_may_leave() -> None:
    """Called where a secret seed is pickled.

    Raises:
        RuntimeError: It would leave this machine.
    """
    if _staying.get():
        raise RuntimeError("a secret seed was about to be sent to another machine; send it its clients' keys")


def drawn_by(purpose: Purpose, key: Callable[[], bytes], *, by_message: bool) -> SecretGenerator:
    """The generator of one stream.

    Args:
        purpose: What it is for.
        key: SECRET: its key.
        by_message: Whether noise is drawn for one exact message.
    """
    if by_message and purpose in NOISE_PURPOSES:
        return MessageGenerator(key())
    # A cipher costs more than most clients draw: they get several generators and many use none.
    stream = cache(lambda: key_stream(key()))
    return StreamGenerator(lambda count: stream()(count))


@dataclass(frozen=True)
class KeyedSource:
    """Secret generators keyed by one seed alone, for simulations: noise is a function of the seed, whatever the data.

    A stream is ChaCha20's (RFC 8439) under a key of its own: BLAKE2b, keyed with the 128-bit seed, of (purpose, key,
    attempt) written so that no two of them read alike.

    Guarantee:
        Streams tell nothing about each other or the seed, as long as ChaCha20 and keyed BLAKE2b are pseudo-random.
        Whoever knows the seed can subtract the noise, and a seed that was chosen (run.noise_seed) is known. Nor does it
        hold where two answers are given from one seed: they share their noise. A run without a chosen seed draws from a
        fresh_seeds.FreshSource, and one with ``--secure-rng`` from the operating system.
    """

    seed: int
    attempt: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ValueError("a secret seed is a number of 128 bits")

    def __getstate__(self) -> dict[str, object]:
        check_may_leave()
        return dict(self.__dict__)

    @property
    def reproducible(self) -> bool:
        """Always true."""
        return True

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """The generator of (seed, purpose, key)."""
        return drawn_by(purpose, lambda: _stream_key(self.seed, purpose, key, self.attempt), by_message=False)

    @property
    def needs_fresh(self) -> bool:
        """Never: a simulation repeats."""
        return False

    def again(self, key: tuple[int, ...], fresh: bytes = b"") -> KeyedSource:
        """The same seed for a further attempt, whose streams have keys that no other attempt has."""
        return replace(self, attempt=key)

    def of_clients(self, round_: int, clients: Sequence[int]) -> ClientKeys:
        """The keys of these clients' streams, which say nothing about the seed or another stream."""
        attempt = json.dumps([int(part) for part in self.attempt])
        keyed = blake2b(key=self.seed.to_bytes(16, "little"), digest_size=32, person=_PERSON)
        keys = {}
        for client in map(int, clients):
            found = []
            for purpose in CLIENT_PURPOSES:
                hashed = keyed.copy()
                # As in _stream_key, without its cost: rank 0 does this for everybody's clients.
                hashed.update(f"[{int(purpose)}, [{int(round_)}, {client}], {attempt}]".encode())
                found.append(hashed.digest())
            keys[client] = b"".join(found)
        return ClientKeys(round=int(round_), keys=keys)


@dataclass(frozen=True, kw_only=True)
class ClientKeys:
    """The streams of some clients in one attempt at one round, for a machine that must not know the seed.

    Guarantee:
        Holds, of each of these clients, the keys of its own streams of this attempt (256 bits for each purpose).
        Neither the seed nor the server's noise, the cohort, other clients or other rounds follow from them.

    Attributes:
        round: Number of the round.
        keys: By client, one key after the other, in the order of CLIENT_PURPOSES.
        by_message: Whether noise is drawn for one exact message (fresh_seeds.FreshSource).
    """

    round: int
    keys: Mapping[int, bytes]
    by_message: bool = False

    @property
    def reproducible(self) -> bool:
        """Always true."""
        return True

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """The generator of (purpose, key), as the server's source gives it.

        Raises:
            LookupError: It is none of these clients' in this round.
        """
        round_, client = key
        if round_ != self.round or purpose not in CLIENT_PURPOSES:
            raise LookupError(f"no key of round {round_} for {purpose.name}")
        own, start = self.keys[client], 32 * CLIENT_PURPOSES.index(purpose)
        return drawn_by(purpose, lambda: own[start : start + 32], by_message=self.by_message)

    @property
    def needs_fresh(self) -> bool:
        """The keys are of one attempt already."""
        return False

    def again(self, key: tuple[int, ...], fresh: bytes = b"") -> ClientKeys:
        """Not possible: the keys are of one attempt."""
        raise LookupError("keys of clients are of one attempt")

    def of_clients(self, round_: int, clients: Sequence[int]) -> ClientKeys:
        """Return the keys of these clients alone."""
        return replace(self, keys={client: self.keys[client] for client in clients})


def _stream_key(seed: int, purpose: Purpose, key: Sequence[int], attempt: Sequence[int]) -> bytes:
    name = json.dumps([int(purpose), [int(part) for part in key], [int(part) for part in attempt]])
    return blake2b(name.encode(), key=seed.to_bytes(16, "little"), digest_size=32, person=_PERSON).digest()


@dataclass(frozen=True)
class OperatingSystemSource:
    """Noise and cohorts from the operating system: nothing to keep secret, nothing to reproduce."""

    @property
    def reproducible(self) -> bool:
        """Always false: a round that is done again is a new release and is charged again."""
        return False

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """A fresh generator; the key does not matter."""
        return StreamGenerator(os.urandom)

    @property
    def needs_fresh(self) -> bool:
        """Never: all of it is fresh, and nothing can be drawn again."""
        return False

    def again(self, key: tuple[int, ...], fresh: bytes = b"") -> OperatingSystemSource:
        """Every attempt is fresh."""
        return self

    def of_clients(self, round_: int, clients: Sequence[int]) -> OperatingSystemSource:
        """Every machine has an operating system of its own."""
        return self


def draw_secret_seed() -> int:
    """A 128-bit seed from the operating system."""
    return secrets.randbelow(SEEDS)
