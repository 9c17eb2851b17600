"""Ledger of the rounds that one client joined: it keeps them apart, whatever the server asks."""

from dataclasses import asdict
from pathlib import Path

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.ledger.hash_chain import continue_or_start
from dpfedmeta.core.errors import InputError


class SpacedLedger:
    """Ledger of one client's participations, on its own disk before it answers.

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
        self._chain, lines = continue_or_start(path, {"spacing": asdict(spacing)}, "client's ledger")
        try:
            self._joined: list[tuple[int, ...]] = [(line["round"], *line.get("again", ())) for line in lines]
        except (LookupError, TypeError) as error:
            raise InputError(f"{path}: a line of this client's ledger lacks its round") from error

    def holds(self, round_: int, again: tuple[int, ...] = ()) -> bool:
        """Return whether the client joined this attempt at the round already: it then repeats its answer."""
        return (round_, *again) in self._joined

    def accepts(self, round_: int) -> bool:
        """Return whether the client may join this round, after those that it joined so far."""
        latest = max((joined[0] for joined in self._joined), default=None)
        return self._spacing.allows(round_, len(self._joined), latest)

    def join(self, round_: int, again: tuple[int, ...] = ()) -> None:
        """Write one participation; call it before the client answers.

        Raises:
            ValueError: It would be too soon, or once too often.
        """
        if not self.accepts(round_):
            raise ValueError(
                f"round {round_} is too soon after this client's last round, or one more than it may join: "
                f"{self._spacing}"
            )
        self._chain.append({"round": round_, **({"again": list(again)} if again else {})})
        self._joined.append((round_, *again))
