import itertools
import os

import pytest

from dpfedmeta.secure_aggregation.crypto.shamir import PRIME, join, split, weights


def is_prime(number):
    """Miller-Rabin with the first 20 primes as bases."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71):
        x = pow(base, odd, number)
        if x not in (1, number - 1) and all((x := x * x % number) != number - 1 for _ in range(twos - 1)):
            return False
    return True


def test_the_field():
    assert is_prime(PRIME)
    assert not any(is_prime(2**256 + i) for i in range(1, 297, 2))


def test_any_threshold_of_shares_gives_the_secret_and_fewer_do_not():
    for secret in (0, 1, 2**256 - 1, PRIME - 1):
        shares = dict(zip((1, 2, 5, 9, 1500), split(secret, (1, 2, 5, 9, 1500), 3, os.urandom), strict=True))
        for chosen in itertools.combinations(shares, 3):
            assert join({point: shares[point] for point in chosen}) == secret
        for chosen in itertools.combinations(shares, 2):
            assert join({point: shares[point] for point in chosen}) != secret


def test_fewer_shares_fit_every_secret():
    # Two shares of a threshold of 3: for any other secret there is a third share that gives it.
    one, two = split(42, (1, 2), 2, os.urandom)
    for secret in (0, 7, PRIME - 1):
        lagrange = weights([1, 2, 3])
        third = (secret - lagrange[0] * one - lagrange[1] * two) * pow(lagrange[2], -1, PRIME) % PRIME
        assert join({1: one, 2: two, 3: third}) == secret


def test_a_polynomial_by_hand():
    # 5 + 7 x + 2 x^2 at 1, 2 and 10
    drawn = (7).to_bytes(64, "little") + (2).to_bytes(64, "little")
    assert split(5, (1, 2, 10), 3, lambda size: drawn[:size]) == [14, 27, 275]
    assert join({1: 14, 2: 27, 10: 275}) == 5


@pytest.mark.parametrize(
    ("secret", "points", "threshold"),
    [(1, (1, 1, 2), 2), (1, (0, 1), 2), (1, (1, PRIME), 2), (PRIME, (1, 2), 2), (1, (1, 2), 3), (-1, (1, 2), 2)],
)
def test_points_that_give_secrets_away_are_refused(secret, points, threshold):
    with pytest.raises(ValueError, match=r"points|secret"):
        split(secret, points, threshold, os.urandom)
