"""Streams of pseudo-random bytes by their keys, and noise whose key is that of one exact message."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

from dpfedmeta.core.random.random_numbers import ByteStream, SecretGenerator, StreamGenerator

_COINS, _MESSAGE = b"dpfedmeta coins", b"dpfedmeta noise"


def key_stream(key: bytes) -> ByteStream:
    """ChaCha20 of this 256-bit key from its first block on; the nonce is 0, since no key has a second stream."""
    encryptor = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    return lambda count: encryptor.update(bytes(count))


@dataclass(frozen=True)
class MessageGenerator:
    """Secret randomness of one attempt whose noise belongs to one exact message (a random_numbers.SecretGenerator).

    Coins and choices come from a stream of the key. Noise comes from `for_message` alone: to draw it without a message
    is an error.

    Attributes:
        key: SECRET: 32 bytes that nothing else has.

    Guarantee:
        As long as keyed BLAKE2b and ChaCha20 are pseudo-random, noises of two different messages under one key are
        independent, and so are those of two calls. One message in one call gets one noise, and so one release. So a
        copy of the key that is asked about other data gives away no difference between two messages.
    """

    key: bytes
    _calls: Iterator[int] = field(default_factory=itertools.count, compare=False, repr=False)

    @cached_property
    def _coins(self) -> StreamGenerator:
        return StreamGenerator(key_stream(blake2b(key=self.key, digest_size=32, person=_COINS).digest()))

    def for_message(self, message: Iterable[bytes]) -> StreamGenerator:
        """The generator of the noise of this message, in the next call of this stream.

        Args:
            message: SECRET: everything that the noise is added to and scaled with, in pieces.
        """
        hashed = blake2b(next(self._calls).to_bytes(8, "little"), key=self.key, digest_size=32, person=_MESSAGE)
        for piece in message:
            # With its length, no two messages read alike.
            hashed.update(len(piece).to_bytes(8, "little"))
            hashed.update(piece)
        return StreamGenerator(key_stream(hashed.digest()))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Return `count` independent uniform words of 64 bits."""
        return self._coins.words(count)

    def binomial(self, trials: int, probability: float) -> int:
        """Return a binomial draw."""
        return self._coins.binomial(trials, probability)

    def sample(self, population: int, size: int) -> npt.NDArray[np.int64]:
        """Return `size` distinct integers of range(population), uniformly, in random order."""
        return self._coins.sample(population, size)

    def normal(self, size: int) -> npt.NDArray[np.float64]:
        """Not possible."""
        raise RuntimeError(_UNBOUND)

    def discrete_normal(self, variance: float, size: int) -> npt.NDArray[np.int64]:
        """Not possible."""
        raise RuntimeError(_UNBOUND)


_UNBOUND = "noise is drawn for an exact message: for_message(generator, message) before normal() or discrete_normal()"


def for_message(generator: SecretGenerator, message: Callable[[], Iterable[bytes]]) -> SecretGenerator:
    """The generator of the noise of one message; the same generator where its stream has no message.

    A stream has none where its seed was chosen (a simulation, whose noise is a function of the seed), where it is the
    operating system's, and where a caller gave it one already.

    Args:
        generator: As a source gives it.
        message: SECRET: everything that the noise is added to and scaled with, in pieces; called where it is needed.
    """
    return generator.for_message(message()) if isinstance(generator, MessageGenerator) else generator
