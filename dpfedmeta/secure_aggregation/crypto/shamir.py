"""Shamir's secret sharing modulo 2^256 + 297, and its decoding where some shares are wrong.

Any `threshold` shares give the secret, fewer say nothing of it. As values of a polynomial shares are a Reed-Solomon
code, and few errors are found (Gao, "A new algorithm for decoding Reed-Solomon codes", 2003). Polynomials are lists of
coefficients modulo PRIME, the lowest first, without zeros behind the last one; [] is 0.
"""

import itertools
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
