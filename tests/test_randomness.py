import itertools
import pickle

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.randomness import (
    KeyedSource,
    OperatingSystemSource,
    Purpose,
    draw_secret_seed,
    public_generator,
)

# A test of a secret source cannot fix its seed: its limits are wide enough for less than one failure in 10^8.
SURE = 1e-9
SOURCES = [KeyedSource(20), OperatingSystemSource()]


def noise(source):
    return source.generator(Purpose.SERVER_NOISE, 0)


def first_values(generator):
    return tuple(generator.normal(4))


def test_a_key_gives_its_stream_again():
    source = KeyedSource(1)
    one, two = (source.generator(Purpose.QUERY_NOISE, 3, 17) for _ in range(2))
    assert np.array_equal(one.normal(100), two.normal(100))
    assert one.binomial(1000, 0.3) == two.binomial(1000, 0.3)
    assert np.array_equal(one.sample(1000, 10), two.sample(1000, 10))


def test_a_source_is_the_same_in_another_process():
    source = pickle.loads(pickle.dumps(KeyedSource(2**127 + 5)))
    assert first_values(noise(source)) == first_values(noise(KeyedSource(2**127 + 5)))


def test_streams_do_not_depend_on_the_order_of_use():
    source = KeyedSource(1)
    wanted = first_values(source.generator(Purpose.QUERY_NOISE, 1, 2))
    source.generator(Purpose.QUERY_NOISE, 1, 1).normal(1000)
    assert first_values(source.generator(Purpose.QUERY_NOISE, 1, 2)) == wanted


def test_no_two_purposes_seeds_rounds_or_clients_share_a_stream():
    keys = list(itertools.product((0, 1, 2**32, 2**127), Purpose, range(4), (0, 1, 2, 399_999, 10**10)))
    assert len({first_values(KeyedSource(seed).generator(*key)) for seed, *key in keys}) == len(keys)


def test_public_streams_are_keyed_and_apart_from_the_secret_ones():
    keys = list(itertools.product((0, 1, 2), Purpose, (0, 1, 10**10)))
    public = {tuple(public_generator(*key).standard_normal(4)) for key in keys}
    secret = {first_values(KeyedSource(seed).generator(*key)) for seed, *key in keys}
    assert len(public) == len(secret) == len(keys)
    assert not public & secret
    again = public_generator(1, Purpose.WEIGHTS).integers(2**62)
    assert public_generator(1, Purpose.WEIGHTS).integers(2**62) == again


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: type(source).__name__)
class TestBothSources:
    def test_normal_values_have_the_moments_of_a_standard_normal(self, source):
        size = 200_000
        values = noise(source).normal(size)
        assert values.shape == (size,)
        assert values.dtype == np.float64
        z = stats.norm.isf(SURE)
        for power, expected, variance in ((1, 0.0, 1.0), (2, 1.0, 2.0), (3, 0.0, 15.0), (4, 3.0, 96.0)):
            assert abs((values**power).mean() - expected) < z * np.sqrt(variance / size)

    def test_normal_values_pass_a_kolmogorov_smirnov_test(self, source):
        assert stats.kstest(noise(source).normal(100_000), "norm").pvalue > SURE

    def test_normal_values_are_not_correlated(self, source):
        size = 100_000
        values = noise(source).normal(size)
        limit = stats.norm.isf(SURE)
        for lag in (1, 2, size // 2):
            count = size - lag
            assert abs(values[lag:] @ values[:-lag]) / np.sqrt(count) < limit
        half = size // 2
        assert abs((values[:half] ** 2 - 1) @ (values[half:] ** 2 - 1)) / (2 * np.sqrt(half)) < 3 * limit

    @pytest.mark.parametrize("size", [0, 1, 2, 7])
    def test_any_number_of_normal_values(self, source, size):
        values = noise(source).normal(size)
        assert values.shape == (size,)
        assert np.isfinite(values).all()

    @pytest.mark.parametrize(("trials", "probability"), [(400_000, 0.00375), (20, 0.5)])
    def test_binomial_draws_have_their_moments(self, source, trials, probability):
        generator = noise(source)
        draws = np.array([generator.binomial(trials, probability) for _ in range(2000)], dtype=float)
        assert isinstance(generator.binomial(trials, probability), int)
        mean, variance = trials * probability, trials * probability * (1 - probability)
        z = stats.norm.isf(SURE)
        assert abs(draws.mean() - mean) < z * np.sqrt(variance / len(draws))
        assert draws.var() == pytest.approx(variance, rel=1.1 * z * np.sqrt(2 / len(draws)))

    def test_certain_and_impossible_trials(self, source):
        assert noise(source).binomial(50, 0.0) == 0
        assert noise(source).binomial(50, 1.0) == 50
        assert noise(source).binomial(0, 0.3) == 0
        assert noise(source).binomial(10, 1e-15) == 0

    def test_samples_are_distinct_and_uniform(self, source):
        counts, firsts = np.zeros(20), np.zeros(20)
        generator = noise(source)
        draws = 2000
        for _ in range(draws):
            drawn = generator.sample(20, 5)
            assert drawn.dtype == np.int64
            assert len(set(drawn.tolist())) == 5
            counts[drawn] += 1
            firsts[drawn[0]] += 1
        assert counts.sum() == 5 * draws
        assert stats.chisquare(counts).pvalue > SURE
        assert stats.chisquare(firsts).pvalue > SURE

    def test_samples_of_everybody_and_of_a_huge_population(self, source):
        assert sorted(noise(source).sample(50, 50)) == list(range(50))
        assert noise(source).sample(50, 0).shape == (0,)
        huge = noise(source).sample(10**10, 300)
        assert len(set(huge.tolist())) == 300
        assert huge.max() > 2**32


def test_only_the_keyed_source_is_reproducible():
    assert KeyedSource(1).reproducible
    secure = OperatingSystemSource()
    assert not secure.reproducible
    one, two = (secure.generator(Purpose.SERVER_NOISE, 0) for _ in range(2))
    assert not np.array_equal(one.normal(8), two.normal(8))
    assert not np.array_equal(one.sample(10**9, 8), two.sample(10**9, 8))


def test_secret_seeds_are_long_and_new():
    seeds = {draw_secret_seed() for _ in range(100)}
    assert len(seeds) == 100
    assert 2**120 < max(seeds) < 2**128
