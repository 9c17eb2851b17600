"""The wire between a server and its clients, as each of them sees it; what the bytes say is no matter here."""

from collections.abc import Mapping
from typing import Protocol

# Bytes of an identity: a public Ed25519 key.
IDENTITY_BYTES = 32


class Channel(Protocol):
    """The server's view of the wire. There is no privacy in it: what it carries is signed, noised or masked already."""

    def present(self) -> tuple[bytes, ...]:
        """Identities of the clients that are connected now: public Ed25519 keys of 32 bytes."""
        ...

    def ask(self, questions: Mapping[bytes, bytes], seconds: float) -> Mapping[bytes, bytes]:
        """Send the questions and return the answers that come back in time.

        Args:
            questions: Question to each client, by identity.
            seconds: How long to wait for all of them together.

        Returns:
            Answers by identity. A client that is missing, failed, came late, or answered with more bytes than the
            channel's stated limit is absent; a message that is too long is dropped, and never read into memory twice.
        """
        ...

    def close(self) -> None:
        """Give back what the wire holds."""
        ...


class Party(Protocol):
    """The client's view of the wire."""

    def answer(self, question: bytes) -> bytes:
        """The answer to one question. It never raises for what a server may send: a refusal is an answer."""
        ...
