"""A wire in one process whose server, or one of whose clients, is ended at one question."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.federation.silos import Silos


# Beside modules whose code nobody can see no round could be repeated, so this one imports none.
class Restarting:
    """A wire in this process whose server, or one of whose clients, is ended at one question."""

    def __init__(self, silos: Silos, home: Path, how: str = "", at: int = -1) -> None:
        self.silos, self.home, self.how, self.at, self.count = silos, home, how, at, 0
        self.parties = silos.parties(home)

    def present(self) -> tuple[bytes, ...]:
        """All of them."""
        return tuple(self.parties)

    def ask(self, questions: Mapping[bytes, bytes], seconds: float) -> Mapping[bytes, bytes]:
        """One after the other."""
        answers = {}
        print("?\n" * len(questions), end="")
        for who, question in questions.items():
            now, self.count = self.count == self.at, self.count + 1
            if now and self.how == "server-before":
                raise SystemExit(77)
            if now and self.how == "client-before":
                self._again(who)
            answers[who] = self.parties[who].answer(question)
            if now and self.how == "client-after":
                self._again(who)
            if now and self.how == "server-after":
                raise SystemExit(77)
        return answers

    def _again(self, who: bytes) -> None:
        self.parties[who] = self.silos.client(self.silos.roster.index(who), self.home)

    def close(self) -> None:
        """Nothing to give back."""


# An answer that is lost makes another sum: tests/federation/test_random_faults.py.
QUESTIONS = ("server-before", "server-after", "client-before", "client-after")
