import itertools
import random

import pytest

from dpfedmeta.core.random.keyed_streams import key_stream
from dpfedmeta.secure_aggregation.crypto.shamir import PRIME, corrected, join, split


@pytest.mark.parametrize(("threshold", "count"), [(2, 2), (2, 5), (3, 7), (5, 9), (12, 30)])
def test_half_of_what_is_beyond_the_threshold_may_be_wrong(threshold, count):
    chance = random.Random(count)
    for _ in range(4):
        secret, points = chance.randrange(PRIME), chance.sample(range(1, 2000), count)
        shares = dict(zip(points, split(secret, points, threshold, key_stream(chance.randbytes(32))), strict=True))
        for errors in range((count - threshold) // 2 + 1):
            wrong = {point: chance.randrange(PRIME) for point in chance.sample(points, errors)}
            assert corrected(shares | wrong, threshold) == secret
        beyond = chance.sample(points, (count - threshold) // 2 + 1)
        assert corrected(shares | {point: chance.randrange(PRIME) for point in beyond}, threshold) != secret


def test_against_every_choice_of_shares():
    """What most choices of t shares agree on, by Lagrange's formula."""
    points, threshold = [1, 2, 3, 5, 8, 13, 21], 3
    shares = dict(zip(points, split(7, points, threshold, key_stream(bytes(32))), strict=True))
    for wrong in itertools.combinations(points, 2):
        found = shares | dict.fromkeys(wrong, 0)
        joined = [
            join({point: found[point] for point in chosen}) for chosen in itertools.combinations(points, threshold)
        ]
        assert max(set(joined), key=joined.count) == corrected(found, threshold) == 7


def test_the_secret_0_and_polynomials_of_low_degree():
    assert corrected({1: 0, 2: 0, 3: 0, 4: 5, 5: 0}, 3) == 0
    assert corrected({1: 4, 2: 4, 3: 4, 4: 4, 5: 9}, 3) == 4
