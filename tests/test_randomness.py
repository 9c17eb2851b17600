import numpy as np
import pytest
from scipy import stats

from dpfedmeta.randomness import KeyedSource, OperatingSystemSource, Purpose, draw_secret_seed, public_generator

SOURCES = [KeyedSource(7), OperatingSystemSource()]


@pytest.mark.parametrize("source", SOURCES)
def test_normal_values_are_standard_normal(source):
    values = source.generator(Purpose.SERVER_NOISE, 0).normal(100_001)
    assert values.shape == (100_001,)
    assert stats.kstest(values, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.02


@pytest.mark.parametrize("source", SOURCES)
def test_binomial_and_samples(source):
    generator = source.generator(Purpose.COHORT, 1)
    counts = [generator.binomial(1000, 0.1) for _ in range(500)]
    assert np.mean(counts) == pytest.approx(100, abs=5)
    assert np.std(counts) == pytest.approx(np.sqrt(90), rel=0.15)
    assert generator.binomial(10, 1e-12) == 0
    drawn = generator.sample(10**10, 50)
    assert len(set(drawn.tolist())) == 50
    assert drawn.min() >= 0


def test_a_key_gives_its_stream_again_and_no_two_keys_share_one():
    source = KeyedSource(2**100)
    first = source.generator(Purpose.QUERY_NOISE, 3, 4).normal(8)
    assert np.array_equal(first, source.generator(Purpose.QUERY_NOISE, 3, 4).normal(8))
    for other in (
        source.generator(Purpose.SUPPORT_NOISE, 3, 4),
        source.generator(Purpose.QUERY_NOISE, 4, 3),
        KeyedSource(2**100 + 1).generator(Purpose.QUERY_NOISE, 3, 4),
    ):
        assert not np.array_equal(first, other.normal(8))


def test_the_operating_system_does_not_repeat_itself():
    source = OperatingSystemSource()
    assert not source.reproducible
    assert not np.array_equal(*(source.generator(Purpose.SERVER_NOISE, 0).normal(8) for _ in range(2)))
    assert draw_secret_seed() != draw_secret_seed()


def test_public_streams_differ_by_seed_purpose_and_key():
    base = public_generator(0, Purpose.CLIENT_DATA, 5).random(4)
    assert np.array_equal(base, public_generator(0, Purpose.CLIENT_DATA, 5).random(4))
    for seed, purpose, key in ((1, Purpose.CLIENT_DATA, 5), (0, Purpose.WEIGHTS, 5), (0, Purpose.CLIENT_DATA, 6)):
        assert not np.array_equal(base, public_generator(seed, purpose, key).random(4))
