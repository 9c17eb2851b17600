"""What one client keeps about its own records: it can decline, whatever the server promised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from dpfedmeta.accounting.gaussian import gaussian_epsilon
from dpfedmeta.errors import InputError
from dpfedmeta.fresh_source import attempt_bytes
from dpfedmeta.ledger.hash_chain import continue_or_start

VERSION = 1
# A budget that was computed from the same numbers is met exactly; adding squares may differ in the last digits.
_ROUNDING = 1.0 + 1e-9
# (run, (round, what a further attempt adds)).
_Key = tuple[str, tuple[int, ...]]


class Spending(Protocol):
    """What a participation does, as far as a ledger counts: accounting.record_layer.RecordLayer is one."""

    def roles(self) -> tuple[float, ...]:
        """Mu of one participation towards the server, for each role that the unit may have."""
        ...


@dataclass(frozen=True, kw_only=True)
class RecordBudget:
    """What a client lets one of its records spend towards the server (zero-out adjacency).

    Attributes:
        epsilon: None: the server is trusted, and participations alone are counted.
        delta: At which epsilon counts.
        participations: R, how often it takes part at most, in all runs together; None: no limit of its own.
    """

    epsilon: float | None
    delta: float
    participations: int | None = None

    def header(self) -> dict[str, Any]:
        """As a ledger's first line holds it; what came later stands there only where it says something."""
        stated = asdict(self)
        return stated if self.participations is not None else {key: stated[key] for key in ("epsilon", "delta")}


class ClientLedger:
    """One client's participations, on its own disk before it answers.

    Guarantee:
        (record, server), zero-out: after every charged participation, sqrt(sum of mu^2)-GDP with the worse role's mu of
        each, and never more than the budget: a participation that would exceed it is declined.
    """

    def __init__(self, path: Path, budget: RecordBudget) -> None:
        """Open the client's ledger, or start one.

        Raises:
            InputError: It was edited or truncated, or was started with another budget.
        """
        self._budget = budget
        header = {"version": VERSION, "budget": budget.header()}
        self._chain, lines = continue_or_start(path, header, "client's ledger")
        try:
            self._squared = math.fsum(_mu(line) ** 2 for line in lines)
            self._rounds: dict[_Key, str] = {
                (line.get("run", ""), (line["round"], *line.get("again", ()))): line.get("question", "")
                for line in lines
            }
            self._fresh: dict[_Key, str] = {
                (line.get("run", ""), (line["round"], *line.get("again", ()))): line.get("fresh", "") for line in lines
            }
        except (LookupError, TypeError, ArithmeticError) as error:
            raise InputError(f"{path}: a line of this client's ledger lacks its mu or its round") from error

    @property
    def epsilon(self) -> float:
        """Spent so far."""
        return self._epsilon(self._squared)

    @property
    def participations(self) -> int:
        """How many there were, in all runs."""
        return len(self._rounds)

    def accepts(self, layer: Spending) -> bool:
        """Whether one more participation under this layer stays within the budget. NaN never does."""
        most, limit = self._budget.participations, self._budget.epsilon
        if most is not None and self.participations >= most:
            return False
        return limit is None or self._epsilon(self._squared + max(layer.roles()) ** 2) <= limit * _ROUNDING

    def holds(self, round_: int, again: tuple[int, ...] = ()) -> bool:
        """Whether this attempt at the round is charged already: the client then answers as it did."""
        return ("", (round_, *again)) in self._rounds

    def question(self, run: str, key: tuple[int, ...]) -> str | None:
        """What was asked when this attempt at a round of a run was charged; None: it never was."""
        return self._rounds.get((run, key))

    def stream(self, run: str, key: tuple[int, ...]) -> bytes:
        """What the noise of an attempt at a round of a run is keyed by, besides the client's secret key.

        b"" where it was charged without fresh bytes.

        Raises:
            LookupError: It is not charged, so nothing may be drawn for it.
        """
        return attempt_bytes(self._fresh[run, key], self._rounds[run, key])

    def keys(self, run: str) -> list[tuple[int, ...]]:
        """The attempts at rounds of a run that were charged, as they came."""
        return [key for of, key in self._rounds if of == run]

    def charged(self) -> Iterator[tuple[str, tuple[int, ...], str]]:
        """(run, attempt at a round, digest of what was asked) of each participation, as they came."""
        return ((run, key, asked) for (run, key), asked in self._rounds.items())

    def charge(
        self,
        round_: int,
        layer: Spending,
        again: tuple[int, ...] = (),
        *,
        run: str = "",
        question: str = "",
        fresh: str = "",
    ) -> None:
        """Write one participation; call it before the records are touched.

        Args:
            round_: Number of the round.
            layer: What the participation does to a record.
            again: Which further attempt at the round it is; () for the first.
            run: Which run, where a client takes part in several.
            question: Digest of what was asked, so that the same noise never answers another question.
            fresh: Bytes of the operating system for this attempt alone (fresh_source.draw_fresh).

        Raises:
            ValueError: It would exceed the budget.
        """
        if not self.accepts(layer):
            raise ValueError(f"round {round_} would exceed this client's record budget of {self._budget}")
        mu = max(layer.roles())
        beside = {"again": list(again), "run": run, "question": question, "fresh": fresh}
        # A server that is trusted sees the exact message, and JSON has no infinity.
        line = {"round": round_, "mu": mu if math.isfinite(mu) else None}
        self._chain.append(line | {name: value for name, value in beside.items() if value})
        self._rounds[run, (round_, *again)] = question
        self._fresh[run, (round_, *again)] = fresh
        self._squared += mu**2

    def _epsilon(self, squared: float) -> float:
        return gaussian_epsilon(math.sqrt(squared), self._budget.delta)


def _mu(line: dict[str, Any]) -> float:
    return math.inf if line["mu"] is None else float(line["mu"])
