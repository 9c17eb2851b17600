"""What one client keeps about the rounds that it joined: it keeps apart, whatever the server asks."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from dpfedmeta.accounting.spacing import Spacing
from dpfedmeta.durable import cut_torn_line
from dpfedmeta.errors import InputError
from dpfedmeta.ledger.hash_chain import HashChain, read_chain

VERSION = 1


class SpacedLedger:
    """One client's participations, on its own disk before it answers.

    Guarantee:
        Over all attempts at all rounds the client answers no more often, and no sooner again, than the spacing that it
        was promised: what correlated noise counts with holds even where the server's sampler errs.
    """

    def __init__(self, path: Path, spacing: Spacing) -> None:
        """Open the client's ledger, or start one.

        Raises:
            InputError: It was edited or truncated, or was started with another spacing.
        """
        self._spacing = spacing
        header = {"version": VERSION, "spacing": asdict(spacing)}
        self._joined: list[tuple[int, ...]] = []
        if path.exists():
            cut_torn_line(path)
        if not path.exists() or not path.stat().st_size:
            # A first line that a crash tore was never counted.
            path.unlink(missing_ok=True)
            self._chain = HashChain.start(path, header, mode=0o600)
            return
        bodies, head = read_chain(path, "client's ledger")
        if bodies[0] != header:
            raise InputError(f"{path}, line 1: this client's ledger was started as {bodies[0]}, not {header}")
        self._chain = HashChain(path, head, mode=0o600)
        try:
            self._joined = [(body["round"], *body.get("again", ())) for body in bodies[1:]]
        except (LookupError, TypeError) as error:
            raise InputError(f"{path}: a line of this client's ledger lacks its round") from error

    def holds(self, round_: int, again: tuple[int, ...] = ()) -> bool:
        """Whether it joined this attempt at the round already: it then answers as it did."""
        return (round_, *again) in self._joined

    def accepts(self, round_: int) -> bool:
        """Whether it may join one more round."""
        latest = max((joined[0] for joined in self._joined), default=None)
        return self._spacing.allows(round_, len(self._joined), latest)

    def join(self, round_: int, again: tuple[int, ...] = ()) -> None:
        """Write one participation; call it before the client answers.

        Raises:
            ValueError: It would be too soon, or once too often.
        """
        if not self.accepts(round_):
            raise ValueError(f"round {round_} is too soon, or once too often, for this client's {self._spacing}")
        self._chain.append({"round": round_, **({"again": list(again)} if again else {})})
        self._joined.append((round_, *again))
