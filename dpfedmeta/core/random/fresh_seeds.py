"""Secret randomness that is fresh in every attempt, with noise of its own for every message; and a run's kept key."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256

from dpfedmeta.core.errors import DAMAGED_JSON, InputError
from dpfedmeta.core.files.atomic_files import SECRET
from dpfedmeta.core.files.run_directory import RunDirectory, write_text
from dpfedmeta.core.random.random_sources import (
    CLIENT_PURPOSES,
    GENERATOR,
    SEEDS,
    ClientKeys,
    KeyedSource,
    OperatingSystemSource,
    Purpose,
    SecretGenerator,
    SecretSource,
    check_may_leave,
    draw_secret_seed,
    drawn_by,
)

# How FreshSource comes from a key to numbers. Another way needs another name: a key serves one only.
FRESH_GENERATOR = "chacha20-blake2b-ziggurat-by-message-1"
_FRESH_BYTES = 16
_ATTEMPT, _STREAM = b"dpfedmeta fresh", b"dpfedmeta own"
_SEED = "noise_seed.json"
# Runs from before the file named it.
_FIRST_GENERATOR = "philox"


def draw_fresh() -> str:
    """Fresh bytes of the operating system for one attempt, in hexadecimal, as a ledger keeps them beside a charge."""
    return secrets.token_hex(_FRESH_BYTES)


def attempt_bytes(fresh: str, asked: str) -> bytes:
    """Return the bytes that key the streams of an attempt besides the secret key.

    Args:
        fresh: As `draw_fresh` gave it; empty: the attempt has none, and no stream.
        asked: Digest of the question.
    """
    return sha256(f"{fresh} {asked}".encode()).digest() if fresh else b""


@dataclass(frozen=True)
class FreshSource:
    """Secret generators of a key that was drawn and never chosen (a random_sources.SecretSource).

    A stream is ChaCha20's under a key that follows by keyed BLAKE2b from the secret key, the fresh bytes that an
    attempt's charge has beside it, the question, the purpose and who draws. Noise has a key of its own for every exact
    message besides (keyed_streams.MessageGenerator).

    Guarantee:
        A round that is done again from the same charge, with the same question and the same exact message, gets the
        same noise, hence is the same release. Any other round has noise that is independent of it, whatever was
        restored from a backup, copied, or run twice. The exception is the memory of a process that is copied after it
        drew an attempt's fresh bytes and answers twice: that too gives the same noise to the same message alone, and
        one more release than was charged.
        Whoever knows the key can subtract the noise, as with any key.

    Attributes:
        seed: SECRET: the key, 128 bits.
        attempt: SECRET: key of one attempt; empty: of none, and nothing can be drawn.
    """

    seed: int
    attempt: bytes = b""

    def __post_init__(self) -> None:
        if not 0 <= self.seed < SEEDS:
            raise ValueError("a secret seed is a number of 128 bits")

    def __getstate__(self) -> dict[str, object]:
        check_may_leave()
        return dict(self.__dict__)

    @property
    def reproducible(self) -> bool:
        """Always true: from the same charge."""
        return True

    @property
    def needs_fresh(self) -> bool:
        """Always true."""
        return True

    def again(self, key: tuple[int, ...], fresh: bytes = b"") -> FreshSource:
        """The source of one attempt.

        Args:
            key: What a further attempt adds; () for the first.
            fresh: `attempt_bytes` of its charge.

        Raises:
            LookupError: It has none: what it drew, nobody can draw again.
        """
        if not fresh:
            raise LookupError("an attempt without fresh bytes in its charge cannot be repeated")
        name = json.dumps([int(part) for part in key]).encode() + fresh
        own = blake2b(name, key=self.seed.to_bytes(16, "little"), digest_size=32, person=_ATTEMPT)
        return replace(self, attempt=own.digest())

    def generator(self, purpose: Purpose, *key: int) -> SecretGenerator:
        """The generator of (attempt, purpose, key)."""
        return drawn_by(purpose, lambda: self._key(purpose, key), by_message=True)

    def of_clients(self, round_: int, clients: Sequence[int]) -> ClientKeys:
        """The keys of these clients' streams, which say nothing about the seed or another stream."""
        keys = {
            client: b"".join(self._key(purpose, (int(round_), client)) for purpose in CLIENT_PURPOSES)
            for client in map(int, clients)
        }
        return ClientKeys(round=int(round_), keys=keys, by_message=True)

    def _key(self, purpose: Purpose, key: Sequence[int]) -> bytes:
        if not self.attempt:
            raise LookupError("secret randomness is drawn for one attempt: call again(key, fresh) first")
        name = json.dumps([int(purpose), [int(part) for part in key]]).encode()
        return blake2b(name, key=self.attempt, digest_size=32, person=_STREAM).digest()


def new_source(chosen: int | None, *, secure_rng: bool = False) -> SecretSource:
    """Secret randomness of something new.

    Args:
        chosen: The seed of a simulation, or None.
        secure_rng: Whether everything is the operating system's, and nothing can be drawn again.
    """
    if secure_rng:
        return OperatingSystemSource()
    return FreshSource(draw_secret_seed()) if chosen is None else KeyedSource(chosen)


def name_of(source: KeyedSource | FreshSource) -> str:
    """Return the name of the generator that turns the seed into numbers, as a file that keeps the seed states it."""
    return FRESH_GENERATOR if isinstance(source, FreshSource) else GENERATOR


def keep_secret(run: RunDirectory, source: SecretSource) -> None:
    """Write the noise seed, if there is one, and what it is for, for the server alone."""
    if isinstance(source, KeyedSource | FreshSource):
        content = {"seed": source.seed, "generator": name_of(source)}
        write_text(run.secret / _SEED, json.dumps(content) + "\n", mode=SECRET)


def secret_of_run(run: RunDirectory, chosen: int | None, *, secure: bool) -> SecretSource:
    """The noise seed again, or the operating system under --secure-rng.

    A run of an earlier version that drew its seed goes on with noise that is fresh in every attempt: from the same
    key, in streams that it never drew from.

    Args:
        run: The run.
        chosen: Its run.noise_seed, where it is a simulation.
        secure: Whether its ledger states that everything is the operating system's.

    Raises:
        InputError: The seed is lost, or another generator drew from it; no round can be done again identically.
    """
    if secure:
        return OperatingSystemSource()
    path = run.secret / _SEED
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        seed, generator = content["seed"], content.get("generator", _FIRST_GENERATOR)
    except (OSError, *DAMAGED_JSON) as error:
        raise InputError(f"{path}: the noise seed is lost or damaged, so the run cannot go on; restore it") from error
    if type(seed) is not int or not 0 <= seed < SEEDS:
        raise InputError(f"{path}: does not hold a noise seed; restore it from a backup")
    if generator not in ([GENERATOR] if chosen is not None else [GENERATOR, FRESH_GENERATOR]):
        raise InputError(
            f"{path}: noise and cohorts of this run come from the generator {str(generator)[:40]!r}, but this version "
            f"has only {GENERATOR!r}, so they cannot be drawn again; go on with the version that began the run, or "
            "start a new run"
        )
    return FreshSource(seed) if chosen is None else KeyedSource(seed)
