import itertools
import os
import pickle
import subprocess
import sys
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from dpfedmeta.core.random import noise_jit as normal_kernels
from dpfedmeta.core.random.keyed_streams import key_stream
from dpfedmeta.core.random.random_sources import (
    GENERATOR,
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


def stream(seed=9, purpose=Purpose.QUERY_NOISE, round_=3, client=17, again=()):
    """A stream by the components of its key."""
    return KeyedSource(seed).again(again).generator(purpose, round_, client)


# For each component of a key, values that differ in nothing else.
COMPONENTS = {
    "seed": [{"seed": seed} for seed in (*range(60), *(1 << bit for bit in range(6, 128)))],
    "purpose": [{"purpose": purpose} for purpose in Purpose],
    "round": [{"round_": number} for number in (*range(150), *(1 << bit for bit in range(8, 40)))],
    "client": [{"client": number} for number in (*range(150), *(1 << bit for bit in range(8, 70)))],
    "attempt": [{"again": again} for again in ((), *((n,) for n in range(150)), (0, 0), (0, 1), (1, 0), (7, 3, 17))],
}


def test_the_key_stream_is_that_of_rfc_8439():
    """Test vectors 1, 2 (its second block) and 4 (its third) of appendix A.1."""
    zeros = key_stream(bytes(32))
    first = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    second = "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
    assert [zeros(count).hex() for count in (32, 32, 32)][::2] == [first, second]
    other = key_stream(bytes([0, 255, *[0] * 30]))
    assert other(160)[128:].hex() == "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"


def test_the_way_from_a_seed_to_numbers_is_the_one_that_its_name_stands_for():
    """Runs that are resumed rely on it: whoever changes one of these numbers has to change the name as well."""
    assert GENERATOR == "chacha20-blake2b-ziggurat-1"
    source = KeyedSource(0x0123456789ABCDEF_FEDCBA9876543210)
    server = source.generator(Purpose.SERVER_NOISE, 5)
    assert server.normal(4).tolist() == [0.1265160389816707, 0.959112112157191, 1.2968683946835453, 0.307705767593469]
    client = source.again((2, 1)).generator(Purpose.QUERY_NOISE, 5, 399_999)
    assert client.normal(3).tolist() == [1.239224976918206, 0.33834765849156817, -1.9361307885747494]
    cohort = source.generator(Purpose.COHORT, 5)
    assert cohort.binomial(400_000, 0.00375) == 1493
    assert cohort.sample(400_000, 5).tolist() == [231557, 9527, 145400, 257436, 344011]
    assert cohort.sample(6, 6).tolist() == [2, 5, 0, 1, 3, 4]


def test_a_key_gives_its_stream_again():
    source = KeyedSource(1)
    one, two = (source.generator(Purpose.QUERY_NOISE, 3, 17) for _ in range(2))
    assert np.array_equal(one.normal(100), two.normal(100))
    assert one.binomial(1000, 0.3) == two.binomial(1000, 0.3)
    assert np.array_equal(one.sample(1000, 10), two.sample(1000, 10))


def test_a_source_is_the_same_in_another_process():
    source = pickle.loads(pickle.dumps(KeyedSource(2**127 + 5)))
    assert first_values(noise(source)) == first_values(noise(KeyedSource(2**127 + 5)))


def test_a_stream_is_the_same_in_a_fresh_interpreter():
    program = (
        "from dpfedmeta.core.random.random_sources import *; "
        "g = KeyedSource(2**127 + 5).again((4,)).generator(Purpose.COHORT, 2, 3); "
        "print(g.normal(20).tolist(), g.sample(10**6, 20).tolist(), g.binomial(10**6, 0.01))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    here = KeyedSource(2**127 + 5).again((4,)).generator(Purpose.COHORT, 2, 3)
    wanted = f"{here.normal(20).tolist()} {here.sample(10**6, 20).tolist()} {here.binomial(10**6, 0.01)}"
    assert done.stdout.strip() == wanted


def test_streams_do_not_depend_on_the_order_of_use():
    source = KeyedSource(1)
    wanted = first_values(source.generator(Purpose.QUERY_NOISE, 1, 2))
    source.generator(Purpose.QUERY_NOISE, 1, 1).normal(1000)
    assert first_values(source.generator(Purpose.QUERY_NOISE, 1, 2)) == wanted


def test_no_two_purposes_seeds_rounds_or_clients_share_a_stream():
    keys = list(itertools.product((0, 1, 2**32, 2**127), Purpose, range(4), (0, 1, 2, 399_999, 10**10)))
    assert len({first_values(KeyedSource(seed).generator(*key)) for seed, *key in keys}) == len(keys)


@pytest.mark.parametrize("component", COMPONENTS)
def test_streams_whose_keys_differ_in_one_component_have_nothing_in_common(component):
    """Neither as they stand nor shifted: of 53 random bits, no value occurs twice."""
    values = np.concatenate([stream(**given).normal(200) for given in COMPONENTS[component]])
    assert len(np.unique(values)) == len(values)


@pytest.mark.parametrize("component", COMPONENTS)
def test_streams_whose_keys_differ_in_one_component_are_independent(component):
    streams = np.array([stream(**given).normal(800) for given in COMPONENTS[component]])
    pairs = len(streams) * (len(streams) - 1) / 2
    limit = stats.norm.isf(SURE / pairs)
    for values in (streams, np.abs(streams)):
        correlation = np.corrcoef(values)[np.triu_indices(len(values), 1)] * np.sqrt(values.shape[1])
        assert np.abs(correlation).max() < limit
        # All pairs together: independent ones have a mean square of 1.
        assert (correlation**2).mean() == pytest.approx(1.0, abs=6 * np.sqrt(2 / pairs))
    # Across keys the first values are a sample of the normal law like any other.
    assert stats.kstest(streams[:, :5].ravel(), "norm").pvalue > SURE


@pytest.mark.parametrize("component", COMPONENTS)
def test_cohorts_whose_keys_differ_in_one_component_meet_by_chance_only(component):
    streams = [stream(**given) for given in COMPONENTS[component]]
    member = np.zeros((len(streams), 400))
    for row, drawn in zip(member, [each.sample(400, 100) for each in streams], strict=True):
        row[drawn] = 1
    common = (member @ member.T)[np.triu_indices(len(member), 1)]
    law = stats.hypergeom(400, 100, 100)
    assert common.max() < law.isf(SURE / len(common))
    assert common.mean() == pytest.approx(25, abs=6 * law.std() / np.sqrt(len(common)))


def test_every_bit_of_the_seed_matters():
    for seed in (0, 0x9E3779B97F4A7C15F39CC0605CEDC834):
        flipped = {first_values(noise(KeyedSource(seed ^ 1 << bit))) for bit in range(128)}
        assert len(flipped | {first_values(noise(KeyedSource(seed)))}) == 129


def test_a_seed_of_more_or_less_than_128_bits_is_none():
    for seed in (-1, 2**128):
        with pytest.raises(ValueError, match="128 bits"):
            KeyedSource(seed)


def test_no_two_keys_read_alike():
    """Neither by where numbers end, nor by whether they are key or attempt, nor by their type."""
    source, streams = KeyedSource(4), {}
    parts = [(), (0,), (0, 0), (1,), (2,), (12,), (1, 2), (2, 1), (1, 23), (12, 3), (123,), (1, 2, 3), (-1,), (2**64,)]
    for purpose, key, again in itertools.product((Purpose.COHORT, Purpose.MESSAGE_NOISE), parts, parts):
        streams[purpose, key, again] = first_values(source.again(again).generator(purpose, *key))
    assert len(set(streams.values())) == len(streams) == 2 * len(parts) ** 2
    of_numpy = source.again((np.int64(1),)).generator(Purpose.COHORT, np.int64(1), np.int32(2))
    assert first_values(of_numpy) == streams[Purpose.COHORT, (1, 2), (1,)]


def test_a_further_attempt_replaces_the_one_before():
    source = KeyedSource(4).again((1,)).again((2,))
    assert source == KeyedSource(4).again((2,))
    assert source.again(()) == KeyedSource(4)


def test_where_one_read_ends_changes_no_normal_value():
    """A value at the end of a read must not be given up because it needs more words than the others."""
    bytes_of = []
    source = KeyedSource(6)
    generator = noise(source)
    read = generator.read

    def recorded(count):
        bytes_of.append(read(count))
        return bytes_of[-1]

    size = 2_000_000  # some reads end inside a value
    values = type(generator)(recorded).normal(size)
    assert len(bytes_of) > 200
    whole = np.empty(size)
    words = np.frombuffer(b"".join(bytes_of), dtype="<u8").copy()
    normal_kernels.fill_normal(words, whole, normal_kernels.EDGES, normal_kernels.HEIGHTS)
    assert np.array_equal(values, whole)


@pytest.mark.parametrize("byte", [b"\x00", b"\xff"])
def test_the_rarest_bytes_give_a_count_that_is_possible(byte):
    generator = type(noise(KeyedSource(0)))(lambda count: byte * count)
    for trials, probability in ((10, 0.3), (400_000, 0.00375), (0, 0.5), (3, 1.0)):
        assert 0 <= generator.binomial(trials, probability) <= trials


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
        assert stats.kstest(noise(source).normal(200_000), "norm").pvalue > SURE

    def test_normal_values_fill_fine_bins_as_often_as_they_should(self, source):
        """Bins that end where layers do, and others that do not."""
        size = 2_000_000
        values = noise(source).normal(size)
        edges = np.concatenate([-normal_kernels.EDGES[1:], normal_kernels.EDGES[1:-1][::-1]])
        for limits in (edges, np.linspace(-3.6, 3.6, 700)):
            limits = np.concatenate([[-np.inf], limits, [np.inf]])
            expected = size * np.diff(stats.norm.cdf(limits))
            counts = np.histogram(values, limits)[0]
            assert expected.min() > 5
            assert stats.chisquare(counts, expected, sum_check=False).pvalue > SURE

    def test_normal_tails_are_as_heavy_and_as_long_as_they_should(self, source):
        size = 2_000_000
        values = np.abs(noise(source).normal(size))
        for limit in (3.0, 3.5, normal_kernels.TAIL, 3.8, 4.2, 4.8):
            count = int((values > limit).sum())
            assert stats.binomtest(count, size, 2 * stats.norm.sf(limit)).pvalue > SURE
        beyond = values[values > normal_kernels.TAIL]
        assert stats.kstest(stats.norm.sf(beyond) / stats.norm.sf(normal_kernels.TAIL), "uniform").pvalue > SURE
        assert values.max() < 8

    def test_few_values_at_a_time_are_normal_too(self, source):
        values = [source.generator(Purpose.QUERY_NOISE, 0, n).normal(1 + n % 5) for n in range(8000)]
        last = np.array([value[-1] for value in values])
        assert stats.kstest(np.concatenate(values), "norm").pvalue > SURE
        assert stats.kstest(last, "norm").pvalue > SURE

    def test_calls_of_one_generator_never_repeat_each_other(self, source):
        generator = noise(source)
        values = np.concatenate([generator.normal(size) for size in (1, 3, 1, 10_000, 3, 20_000)])
        assert len(np.unique(values)) == len(values)
        one, two = (tuple(generator.sample(10**9, 8)) for _ in range(2))
        assert not set(one) & set(two)

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

    def test_binomial_draws_have_their_law(self, source):
        generator = noise(source)
        for trials, probability in ((12, 0.3), (400_000, 0.00375)):
            law = stats.binom(trials, probability)
            draws = [generator.binomial(trials, probability) for _ in range(2000)]
            limits = np.unique(law.ppf(np.linspace(0.02, 0.98, 30)))
            expected = len(draws) * np.diff([0.0, *law.cdf(limits), 1.0])
            counts = np.bincount(np.searchsorted(limits, draws), minlength=len(expected))
            assert stats.chisquare(counts, expected, sum_check=False).pvalue > SURE

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

    @pytest.mark.parametrize(("population", "size"), [(5, 2), (7, 3), (4, 3), (5, 5), (9, 2), (3, 1)])
    def test_every_order_of_every_subset_is_as_likely_as_every_other(self, source, population, size):
        generator, draws = noise(source), 6000
        seen = Counter(tuple(generator.sample(population, size).tolist()) for _ in range(draws))
        orders = list(itertools.permutations(range(population), size))
        assert set(seen) <= set(orders)
        assert stats.chisquare([seen[order] for order in orders]).pvalue > SURE

    def test_a_large_sample_of_a_large_population_is_uniform_and_in_random_order(self, source):
        population, size = 400_000, 100_000
        drawn = noise(source).sample(population, size)
        assert len(np.unique(drawn)) == len(drawn) == size
        assert (drawn.min(), drawn.max()) >= (0, population - 100)
        counts = np.bincount(drawn // (population // 200), minlength=200)
        # Without replacement counts vary less: by the share that is left out.
        assert stats.chi2(199).sf(((counts - size / 200) ** 2).sum() / (size / 200) / (1 - size / population)) > SURE
        assert stats.chi2(199).cdf(((counts - size / 200) ** 2).sum() / (size / 200) / (1 - size / population)) > SURE
        position = stats.spearmanr(drawn, np.arange(size)).statistic
        assert abs(position) * np.sqrt(size) < stats.norm.isf(SURE)

    def test_memory_of_a_sample_grows_with_its_size(self, source):
        noise(source).sample(10**12, 10)
        tracemalloc.start()
        noise(source).sample(10**12, 10_000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 2_000_000

    def test_more_than_there_are_cannot_be_drawn(self, source):
        for population, size in ((3, 4), (0, 1), (3, -1)):
            with pytest.raises(ValueError, match="distinct"):
                noise(source).sample(population, size)

    def test_samples_of_everybody_and_of_a_huge_population(self, source):
        assert sorted(noise(source).sample(50, 50)) == list(range(50))
        assert noise(source).sample(50, 0).shape == noise(source).sample(0, 0).shape == (0,)
        assert noise(source).sample(1, 1).tolist() == [0]
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
