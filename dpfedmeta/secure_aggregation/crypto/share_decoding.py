"""Shares of which some are wrong: as values of a polynomial they are a Reed-Solomon code, and few errors are found.

Gao, "A new algorithm for decoding Reed-Solomon codes" (2003). Polynomials are lists of coefficients modulo PRIME, the
lowest first, without zeros behind the last one; [] is 0.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping, Sequence

from dpfedmeta.secure_aggregation.crypto.shamir import PRIME, powers


def corrected(shares: Mapping[int, int], threshold: int) -> int | None:
    """The secret, where at most (n - threshold)/2 of n shares are wrong; None: more are.

    Args:
        shares: By point.
        threshold: How many right shares give the secret.
    """
    whole = [1]
    for point in shares:
        whole = _times(whole, [-point % PRIME, 1])
    before, now = whole, _through(shares)
    earlier, factor = list[int](), [1]
    while 2 * (len(now) - 1) >= len(shares) + threshold:
        quotient, rest = _divided(before, now)
        before, now = now, rest
        earlier, factor = factor, _minus(earlier, _times(quotient, factor))
    found, rest = _divided(now, factor)
    if rest or len(found) > threshold:
        return None
    return found[0] if found else 0


def _through(shares: Mapping[int, int]) -> list[int]:
    """The polynomial of the lowest degree through these points (Newton's form, multiplied out)."""
    points, found, whole = list(shares), list[int](), [1]
    for point in points:
        at = powers(point, len(whole))
        lacking = shares[point] - sum(map(operator.mul, found, at))
        step = lacking * pow(sum(map(operator.mul, whole, at)) % PRIME, -1, PRIME) % PRIME
        found = _minus(found, [-step * each % PRIME for each in whole])
        whole = _times(whole, [-point % PRIME, 1])
    return found


def _trimmed(values: list[int]) -> list[int]:
    while values and not values[-1]:
        values.pop()
    return values


def _minus(one: Sequence[int], other: Sequence[int]) -> list[int]:
    pairs = itertools.zip_longest(one, other, fillvalue=0)
    return _trimmed([(mine - theirs) % PRIME for mine, theirs in pairs])


def _times(one: Sequence[int], other: Sequence[int]) -> list[int]:
    if not (one and other):
        return []
    found = [0] * (len(one) + len(other) - 1)
    for i, mine in enumerate(one):
        for j, theirs in enumerate(other):
            found[i + j] += mine * theirs
    return _trimmed([value % PRIME for value in found])


def _divided(one: Sequence[int], other: Sequence[int]) -> tuple[list[int], list[int]]:
    """(Quotient, rest)."""
    rest, inverse = list(one), pow(other[-1], -1, PRIME)
    quotient = [0] * max(len(rest) - len(other) + 1, 0)
    for place in range(len(quotient) - 1, -1, -1):
        factor = quotient[place] = rest[place + len(other) - 1] * inverse % PRIME
        for i, value in enumerate(other):
            rest[place + i] = (rest[place + i] - factor * value) % PRIME
    return _trimmed(quotient), _trimmed(rest)
