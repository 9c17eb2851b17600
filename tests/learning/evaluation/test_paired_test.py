import numpy as np
import pytest
from scipy.stats import ttest_rel

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.files.run_directory import RunDirectory
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation.accuracy import KeptEpisodes, PairedDifference
from dpfedmeta.learning.evaluation.few_shot import Benchmark, episodes_digest
from dpfedmeta.reporting.compare.paired_runs import episodes_of, kept_episodes, pairs


def kept(accuracies, digest="d", **more):
    return KeptEpisodes(digest=digest, seeds=(0,), accuracies=tuple(accuracies), **more)


def test_the_interval_is_that_of_a_paired_t_test():
    generator = np.random.default_rng(1)
    # What both find hard is in the difference of neither.
    hard = generator.normal(0.6, 0.2, 200)
    first, second = hard + generator.normal(0.02, 0.03, 200), hard + generator.normal(0.0, 0.03, 200)
    found, oracle = PairedDifference.of(first, second), ttest_rel(first, second)
    low, high = oracle.confidence_interval(0.95)
    assert (found.mean - found.ci95, found.mean + found.ci95) == pytest.approx((low, high))
    assert oracle.pvalue < 0.05
    assert found.distinguishable
    assert "distinguishable from zero" in str(found)
    same = PairedDifference.of(first, first)
    assert not same.distinguishable
    assert "not distinguishable" in str(same)
    for other in ([0.5], first[:-1]):
        with pytest.raises(InputError, match="same ones"):
            PairedDifference.of(first if len(other) > 1 else [0.4], other)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(2)
    draws = generator.normal(0.01, 0.1, (2000, 30))
    hits = [abs(found.mean - 0.01) <= found.ci95 for found in (PairedDifference.of(d, 0 * d) for d in draws)]
    assert np.mean(hits) == pytest.approx(0.95, abs=0.015)


def test_a_digest_is_that_of_the_episodes(tiny_strokes):
    def of(seed=0, ways=3, episodes=3, pool=tiny_strokes.test):
        shape = EpisodeShape(ways=ways, shots=2, queries=2)
        return episodes_digest(InProcess(), [Benchmark(pool=pool, shape=shape, seed=seed, split="t")], episodes)

    found = [of(), of(seed=1), of(ways=2), of(episodes=4), of(pool=tiny_strokes.val)]
    assert len(set(found)) == len(found)
    assert of() == found[0]


def test_only_the_same_episodes_and_protocol_are_compared(tmp_path):
    a = [kept((0.5, 0.6, 0.7), what="5-way 5-shot"), kept((0.1, 0.2), digest="x", protocol="other")]
    b = [kept((0.4, 0.4, 0.7)), kept((0.3, 0.2), digest="x", protocol="inductive"), kept((0.3, 0.2), digest="y")]
    (pair,) = pairs({"a": a, "b": b})
    assert pair.difference.mean == pytest.approx(0.1)
    assert str(pair).startswith("a - b, 5-way 5-shot: +10.00 points")
    run = RunDirectory(tmp_path)
    run.write_json("episodes.json", {"protocol": "p", **a[0].as_json()})
    run.write_json("evaluation.json", {"protocol": "q", "results": [{"ways": 5, "shots": 1, **a[1].as_json()}, {}]})
    found = kept_episodes(run)
    assert [(each.protocol, each.what, each.accuracies) for each in found] == [
        ("p", "", (0.5, 0.6, 0.7)),
        ("q", "5-way 1-shot", (0.1, 0.2)),
    ]
    assert episodes_of({"protocol": "p", "results": [{"accuracy": {}}]}) == []
    run.write_json("episodes.json", {"episodes_digest": "d", "episodes": 3})
    with pytest.raises(InputError, match=r"episodes\.json"):
        kept_episodes(run)
