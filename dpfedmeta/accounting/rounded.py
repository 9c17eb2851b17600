"""Epsilon and delta as people read them: an upper bound is rounded up, and a lower bound down."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal

# Significant digits of what somebody asked for, which a message repeats, and of a delta.
ASKED = 6


def rounded_up(value: float | None, digits: int = 3) -> str:
    """Return an epsilon or a delta for people.

    Guarantee:
        The number that is printed is never below the value, so whoever quotes it states a bound that holds.

    Args:
        value: Epsilon or delta; None is an infinite one, as in JSON.
        digits: Significant digits; from 10 to that power on, whole numbers.

    Returns:
        "inf" where nothing is promised.
    """
    return _rounded(value, digits, ROUND_CEILING)


def rounded_down(value: float | None, digits: int = 3) -> str:
    """Return what an audit found at least: never above the value."""
    return _rounded(value, digits, ROUND_FLOOR)


def asked(value: float | None) -> str:
    """Return a target, or a delta: rounded up, with more digits than an epsilon that was computed."""
    return rounded_up(value, ASKED)


def _rounded(value: float | None, digits: int, towards: str) -> str:
    if value is None or not math.isfinite(value):
        return "inf" if value is None else f"{value:g}"
    # The shortest text that is this float; its decimal expansion would move 0.1 up.
    exact = Decimal(repr(float(value)))
    kept = Context(prec=max(digits, exact.adjusted() + 1), rounding=towards).create_decimal(exact)
    return f"{float(kept):.{max(digits, kept.adjusted() + 1)}g}"
