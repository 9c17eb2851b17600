"""Fewest canaries that prove anything: for requests, which are checked before SciPy is imported."""

from __future__ import annotations

from dpfedmeta.core.errors import InputError

# Fewer guesses than this reject nothing at 5% over all shares that are guessed (estimators.one_run).
FEWEST_GUESSES = 8


def check_canaries(canaries: int) -> None:
    """Refuse fewer than half of which may be guessed.

    Raises:
        InputError: No bound would come out.
    """
    if canaries < 2 * FEWEST_GUESSES:
        raise InputError(f"canaries = {canaries}: too few for any bound; give {2 * FEWEST_GUESSES} or more")
