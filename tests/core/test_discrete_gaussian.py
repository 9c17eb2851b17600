import mpmath
import numpy as np
import pytest
from scipy import stats

from dpfedmeta.core.random.random_numbers import boundaries, discrete_gaussian, table
from dpfedmeta.core.random.random_sources import KeyedSource, Purpose

VARIANCES = (0.1, 2.25, 625.0)


def exact_sums(variance, count):
    """P(|X| <= k) by 120 digits."""
    with mpmath.workdps(120):
        weights = [mpmath.exp(-mpmath.mpf(k * k) / (2 * mpmath.mpf(variance))) for k in range(count + 600)]
        total = weights[0] + 2 * sum(weights[1:])
        sums, found = mpmath.mpf(0), []
        for k, weight in enumerate(weights[:count]):
            sums += weight if k == 0 else 2 * weight
            found.append(sums / total)
        return found


@pytest.mark.parametrize("variance", VARIANCES)
def test_the_table_is_exact_to_its_last_bit(variance):
    thresholds = table(variance).thresholds
    exact = exact_sums(variance, len(thresholds))
    with mpmath.workdps(120):
        floors = [min(int(mpmath.floor(each * 2**63)), 2**63 - 1) for each in exact]
    assert thresholds.tolist() == floors
    assert boundaries(variance, 127)[0] >> 64 == floors[0]


class Words:
    """Words that are said beforehand."""

    def __init__(self, *words):
        self.words = list(words)

    def __call__(self, count):
        taken, self.words = self.words[:count], self.words[count:]
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)


@pytest.mark.parametrize("k", [0, 1, 4])
def test_a_word_on_a_threshold_asks_for_more(k):
    """The next bits of the exact sum decide: below it the value is k, above it k + 1."""
    on = int(table(2.25).thresholds[k])
    with mpmath.workdps(120):
        following = int(mpmath.floor(exact_sums(2.25, k + 1)[k] * 2**127)) - (on << 64)
    below = Words(2 * on, following - 1)
    above = Words(2 * on + 1, following + 1)
    assert discrete_gaussian(2.25, 1, below).tolist() == [k]
    assert discrete_gaussian(2.25, 1, above).tolist() == [-(k + 1)]
    # Two words in a row that do not decide.
    last = Words(2 * on, following, 0)
    assert discrete_gaussian(2.25, 1, last).tolist() == [k]
    assert [below.words, above.words, last.words] == [[], [], []]


@pytest.mark.parametrize("variance", VARIANCES)
def test_frequencies_are_those_of_the_law(variance):
    drawn = KeyedSource(3).generator(Purpose.MESSAGE_NOISE, 1).discrete_normal(variance, 200_000)
    values = np.arange(-200, 201)
    mass = np.exp(-(values**2) / (2 * variance))
    expected = mass / mass.sum() * len(drawn)
    seen = np.bincount(drawn + 200, minlength=401)
    many = expected > 20
    few = [seen[~many].sum()], [expected[~many].sum()]
    assert stats.chisquare(np.append(seen[many], few[0]), np.append(expected[many], few[1])).pvalue > 1e-6


def test_a_wrong_variance_is_seen():
    drawn = KeyedSource(3).generator(Purpose.MESSAGE_NOISE, 1).discrete_normal(625.0, 200_000)
    assert abs((drawn**2).mean() / 625.0 - 1) < 5 * np.sqrt(2 / 200_000)
    assert abs((drawn**2).mean() / 650.0 - 1) > 5 * np.sqrt(2 / 200_000)


@pytest.mark.parametrize("variance", [0.0, -1.0, float("nan"), float("inf"), 2.0**40])
def test_no_such_variance(variance):
    with pytest.raises(ValueError, match="variance"):
        discrete_gaussian(variance, 3, Words(1, 2, 3))


@pytest.mark.parametrize("count", [1, 8, 9, 16, 17, 40])
def test_however_many_words_lie_on_a_threshold_each_is_decided_by_words_of_its_own(count):
    """In their order, each with its own sign; those between them need none."""
    on = int(table(2.25).thresholds[1])
    with mpmath.workdps(120):
        following = int(mpmath.floor(exact_sums(2.25, 2)[1] * 2**127)) - (on << 64)
    first, more, expected = [], [], []
    for number in range(count):
        below = number % 3 == 0
        first += [2 * on + number % 2, 0]
        more.append(following - 1 if below else following + 1)
        expected += [(1 if below else 2) * (-1 if number % 2 else 1), 0]
    words = Words(*first, *more)
    assert discrete_gaussian(2.25, 2 * count, words).tolist() == expected
    assert words.words == []
