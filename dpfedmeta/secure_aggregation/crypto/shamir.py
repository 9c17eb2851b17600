"""Shamir's secret sharing modulo 2^256 + 297: any `threshold` shares give the secret, fewer say nothing of it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

# The smallest prime above 2^256, so that 32 bytes are one element.
PRIME = 2**256 + 297
SHARE_BYTES = 33


def split(secret: int, points: Sequence[int], threshold: int, randomness: Callable[[int], bytes]) -> list[int]:
    """Split a secret into shares, one for each point.

    Args:
        secret: Number below PRIME.
        points: Points at which the polynomial is evaluated: distinct, from 1 to PRIME - 1.
        threshold: Number of shares that give the secret back.
        randomness: Function that returns the next n bytes of a secret source.

    Guarantee:
        Fewer than `threshold` shares are within 2^-255 of independent of the secret, as long as the source is uniform.
    """
    if len(set(points)) < len(points) or any(not 0 < point < PRIME for point in points):
        raise ValueError("points of shares are distinct and not 0")
    if not (0 <= secret < PRIME and 1 <= threshold <= len(points)):
        raise ValueError("a secret below the prime, and a threshold that its shares can reach")
    # 512 bits modulo a prime of 257: 2^-255 from uniform.
    drawn = randomness(64 * (threshold - 1))
    coefficients = [secret] + [int.from_bytes(drawn[i : i + 64], "little") % PRIME for i in range(0, len(drawn), 64)]
    return [sum(map(operator.mul, coefficients, powers(point, threshold))) % PRIME for point in points]


def powers(point: int, count: int) -> list[int]:
    """Powers of a point modulo PRIME, from the power 0 on."""
    found = [1] * count
    for i in range(1, count):
        found[i] = found[i - 1] * point % PRIME
    return found


def weights(points: Sequence[int]) -> list[int]:
    """Lagrange's weights at 0 of these points: the secret is the weighted sum of their shares."""
    whole = 1
    for point in points:
        whole = whole * point % PRIME
    below = []
    for own in points:
        product = own
        for other in points:
            if other != own:
                product *= other - own
        below.append(product % PRIME)
    return [whole * inverse % PRIME for inverse in _inverses(below)]


def _inverses(values: Sequence[int]) -> list[int]:
    """All inverses for the price of one."""
    before, running = [], 1
    for value in values:
        before.append(running)
        running = running * value % PRIME
    inverse, found = pow(running, -1, PRIME), []
    for value, product in zip(reversed(values), reversed(before), strict=True):
        found.append(inverse * product % PRIME)
        inverse = inverse * value % PRIME
    return found[::-1]


def join(shares: Mapping[int, int]) -> int:
    """The secret of exactly `threshold` shares, by their points."""
    total: int = sum(map(operator.mul, shares.values(), weights(list(shares))))
    return total % PRIME
