"""Digests of releases that a ledger holds.

A charge holds the digest of the last release before it, and a closing line that of the last release of all. Digests are
of released values alone, and no epsilon depends on them.
"""

from __future__ import annotations

from pathlib import Path

from dpfedmeta.accounting.ledger.charges import Charge
from dpfedmeta.accounting.ledger.ledger import LedgerContent
from dpfedmeta.core.errors import InputError

# Stands in a row where a round released nothing.
ABORTED = "aborted"


def held_releases(ledger: Path, content: LedgerContent) -> dict[int, str]:
    """Digest of the last release before each round, as charges and closing lines hold it.

    What is held of rounds that were done anew later is left out.

    Raises:
        InputError: Two lines hold another release for the same charges.
    """
    held: dict[int, str] = {}
    latest = 0
    for line in content.lines:
        if line is None:
            continue
        round_ = line.round if isinstance(line, Charge) else line.rounds
        if round_ < latest:
            held = {known: digest for known, digest in held.items() if known <= round_}
        if line.release and held.setdefault(round_, line.release) != line.release:
            raise InputError(
                f"{ledger}: holds two releases before round {round_} that were charged once ({held[round_]} and "
                f"{line.release}), which no epsilon covers, or it was edited"
            )
        latest = round_
    return held


def released_before(ledger: Path, content: LedgerContent) -> dict[int, str]:
    """Digests of releases that the ledger holds, by their rounds; one that was aborted has none.

    Raises:
        InputError: As `held_releases` says.
    """
    held = held_releases(ledger, content)
    return {round_ - 1: release for round_, release in held.items() if release != held.get(round_ - 1)}
