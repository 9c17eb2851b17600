"""A wire inside one process: for simulations of a federation, and for tests of everything but the transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpfedmeta.federation.channel import Channel, Party
from dpfedmeta.federation.wire_format import MOST_BYTES


@dataclass(frozen=True, kw_only=True, eq=False)
class InProcessChannel(Channel):
    """Parties that answer one after the other (a federation.channel.Channel).

    Attributes:
        parties: By identity.
    """

    parties: Mapping[bytes, Party]

    def present(self) -> tuple[bytes, ...]:
        """All of them."""
        return tuple(self.parties)

    def ask(self, questions: Mapping[bytes, bytes], seconds: float) -> Mapping[bytes, bytes]:
        """Send the questions and return all answers: parties in the same process are never late."""
        answers = {
            identity: self.parties[identity].answer(question)
            for identity, question in questions.items()
            if identity in self.parties
        }
        return {identity: answer for identity, answer in answers.items() if len(answer) <= MOST_BYTES}

    def close(self) -> None:
        """Nothing to give back."""
