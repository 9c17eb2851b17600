"""What one client keeps about its own records: it can decline, whatever the server promised."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path

from dpfedmeta.accounting.gaussian import gaussian_epsilon
from dpfedmeta.accounting.record_layer import RecordLayer
from dpfedmeta.durable import cut_torn_line
from dpfedmeta.errors import InputError
from dpfedmeta.ledger.hash_chain import HashChain, read_chain

VERSION = 1
# A budget that was computed from the same numbers is met exactly; adding squares may differ in the last digits.
_ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True, kw_only=True)
class RecordBudget:
    """What a client lets one of its records spend towards the server (zero-out adjacency)."""

    epsilon: float
    delta: float


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
        header = {"version": VERSION, "budget": asdict(budget)}
        if path.exists():
            cut_torn_line(path)
        if not path.exists() or not path.stat().st_size:
            # A first line that a crash tore was never charged.
            path.unlink(missing_ok=True)
            self._rounds: set[tuple[int, ...]] = set()
            self._chain, self._squared = HashChain.start(path, header, mode=0o600), 0.0
            return
        bodies, head = read_chain(path, "client's ledger")
        if bodies[0] != header:
            raise InputError(f"{path}, line 1: this client's ledger was started as {bodies[0]}, not {header}")
        self._chain = HashChain(path, head, mode=0o600)
        try:
            self._squared = math.fsum(body["mu"] ** 2 for body in bodies[1:])
            self._rounds = {(body["round"], *body.get("again", ())) for body in bodies[1:]}
        except (LookupError, TypeError, ArithmeticError) as error:
            raise InputError(f"{path}: a line of this client's ledger lacks its mu or its round") from error

    @property
    def epsilon(self) -> float:
        """Spent so far."""
        return self._epsilon(self._squared)

    def accepts(self, layer: RecordLayer) -> bool:
        """Whether one more participation under this layer stays within the budget. NaN never does."""
        return self._epsilon(self._squared + max(layer.roles()) ** 2) <= self._budget.epsilon * _ROUNDING

    def holds(self, round_: int, again: tuple[int, ...] = ()) -> bool:
        """Whether this attempt at the round is charged already: the client then answers as it did."""
        return (round_, *again) in self._rounds

    def charge(self, round_: int, layer: RecordLayer, again: tuple[int, ...] = ()) -> None:
        """Write one participation; call it before the records are touched.

        Args:
            round_: Number of the round.
            layer: What the participation does to a record.
            again: Which further attempt at the round it is; () for the first.

        Raises:
            ValueError: It would exceed the budget.
        """
        if not self.accepts(layer):
            raise ValueError(f"round {round_} would exceed this client's record budget of {self._budget}")
        mu = max(layer.roles())
        self._chain.append({"round": round_, "mu": mu, **({"again": list(again)} if again else {})})
        self._rounds.add((round_, *again))
        self._squared += mu**2

    def _epsilon(self, squared: float) -> float:
        return gaussian_epsilon(math.sqrt(squared), self._budget.delta)
