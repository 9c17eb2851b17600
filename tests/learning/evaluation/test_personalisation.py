from dataclasses import replace
from typing import Any

import pytest

from dpfedmeta.core.worker_pool import InProcess, open_workers
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.meta_sgd import MetaSgd
from dpfedmeta.learning.algorithms.proto_maml import ProtoMaml
from dpfedmeta.learning.algorithms.reptile import Reptile
from dpfedmeta.learning.evaluation import (
    Accuracy,
    Benchmark,
    EvaluationQuestion,
    FineTuning,
    adapted_accuracy,
    distribution,
    investigate,
)
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights, with_ways
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.record_dp.closed_heads import PosteriorMeans

SPEC = NetworkSpec(name="mlp", channels=1, image_size=28, ways=3, width=8, norm="none")
HOW = Adaptation(adapt="head", steps=2, lr=0.5)
TUNING = FineTuning(steps=3, lr=0.1, tried={0.1: 0.5}, episodes=2)


@pytest.fixture(scope="module")
def benchmark(tiny_strokes):
    return Benchmark(pool=tiny_strokes.test, shape=EpisodeShape(ways=3, shots=2, queries=4), seed=0, split="test")


def question(at=(0, 1, 2, 5)):
    return EvaluationQuestion(
        network=SPEC, trained=initial_weights(SPEC, 0), untrained=initial_weights(SPEC, 1), adaptation=HOW, at=at,
        fine_tuning=TUNING, has_body=True,
    )  # fmt: skip


@pytest.mark.parametrize("rule", [None, PosteriorMeans(prior=1.0)], ids=str)
def test_before_adaptation_is_the_model_as_it_was_learned(benchmark, rule):
    """A rule in closed form begins with what it ends with, so its zero steps are no model before adaptation."""
    spec = NetworkSpec(
        name="conv4-strided", channels=1, image_size=28, ways=3, width=16, norm="batch", features="support",
        feature_scale=2.0,
    )  # fmt: skip
    how = Adaptation(adapt="head", steps=10, lr=5.0)
    weights, plain = initial_weights(spec, 0), replace(how, steps=0)
    due = adapted_accuracy(InProcess(), spec, weights, benchmark, plain, 30).mean
    how = how if rule is None else replace(plain, rule=rule)
    asked = EvaluationQuestion(
        network=spec, trained=weights, untrained=initial_weights(spec, 1), adaptation=how,
        at=(0, *((10,) if rule is None else ())), fine_tuning=None, has_body=True,
    )  # fmt: skip
    ended = benchmark.compete(InProcess(), spec, weights, asked.untrained, how, 30)
    findings: Any = investigate(InProcess(), benchmark, asked, (0,), 30).as_json()
    for found in ({name: each.as_json() for name, each in ended.items()}, findings):
        assert found["accuracy_before_adaptation"]["mean"] == pytest.approx(due)
        assert found["accuracy"]["mean"] > due + 0.05


def test_findings_hold_everybody_at_every_step(benchmark):
    result: Any = investigate(InProcess(), benchmark, question(), (0, 3), 6).as_json()
    assert result["accuracy"]["episodes"] == 12
    assert result["accuracy"]["steps"] == 2
    assert [row["steps"] for row in result["by_steps"]] == [0, 1, 2, 5]
    assert result["by_steps"][2]["accuracy"]["mean"] == result["accuracy"]["mean"]
    assert result["by_steps"][0]["accuracy"]["mean"] == result["accuracy_before_adaptation"]["mean"]
    assert [row["steps"] for row in result["by_steps"] if "accuracy_fine_tuned" in row] == [0, 1, 2]
    assert result["accuracy_fine_tuned"]["lr"] == 0.1
    assert {f"accuracy_{name}_prototype" for name in ("trained", "untrained", "pixel")} <= set(result)
    assert sum(result["clients"]["accuracy"]["histogram"]["episodes"]) == 12


def test_seeds_are_different_episodes_joined(benchmark):
    found = investigate(InProcess(), benchmark, question((0, 2)), (0, 3), 6)
    result: Any = found.as_json()
    each = [entry["accuracy"]["mean"] for entry in result["seeds"]]
    alone = adapted_accuracy(InProcess(), SPEC, initial_weights(SPEC, 0), benchmark, HOW, 6)
    assert each[0] == alone.mean
    first, second = (seed["accuracy_pixel_prototype"].tolist() for seed in found.by_seed)
    assert first != second
    joined = Accuracy.of(found.values("accuracy")[:, 1].tolist())
    assert result["accuracy"]["mean"] == pytest.approx(sum(each) / 2) == pytest.approx(joined.mean)
    assert result["accuracy"]["ci95"] == joined.ci95


def test_workers_change_nothing(benchmark):
    with open_workers(2) as workers:
        together = investigate(workers, benchmark, question((0, 2)), (0,), 12).as_json()
    assert together == investigate(InProcess(), benchmark, question((0, 2)), (0,), 12).as_json()


def test_the_distribution_over_clients():
    values = [0.2, 0.4, 0.8, *([1.0] * 8)]
    found = distribution(values)
    assert found["worst_tenth"] == pytest.approx(0.3)  # the two worst of eleven
    counts = found["histogram"]["episodes"]
    assert (counts[4], counts[8], counts[16], counts[19]) == (1, 1, 1, 8)
    assert sum(counts) == 11
    # 60 of 75 lies on an edge, whatever its last bit.
    assert distribution([k / 75 for k in (60, 60)])["histogram"]["episodes"][16] == 2


def test_the_slowest_baseline_may_be_left_out(benchmark):
    result: Any = investigate(InProcess(), benchmark, replace(question(), fine_tuning=None), (0,), 4).as_json()
    assert "accuracy_fine_tuned" not in result
    assert all("accuracy_fine_tuned" not in row for row in result["by_steps"])
    assert result["accuracy"]["episodes"] == 4


@pytest.mark.parametrize("method", [Maml, MetaSgd, ProtoMaml, Reptile], ids=lambda own: own.__name__)
@pytest.mark.parametrize("adapt", ["head", "all"])
@pytest.mark.parametrize("ways", [2, 3, 4])
def test_every_method_can_be_investigated_with_any_number_of_classes(method, adapt, ways, tiny_strokes):
    """What a method learns besides the network (rates) has no part in fine-tuning."""
    how = Adaptation(adapt=adapt, steps=2, lr=0.1, rule=method.rule)
    weights = method(order=2, adaptation=how).initial(SPEC, 0)
    network, given = with_ways(SPEC, weights, ways)
    asked = replace(question((0, 2)), network=network, trained=given, untrained=given, adaptation=how)
    test = Benchmark(pool=tiny_strokes.test, shape=EpisodeShape(ways=ways, shots=2, queries=2), seed=0, split="test")
    result: Any = investigate(InProcess(), test, asked, (0,), 2).as_json()
    assert 0.0 <= result["accuracy_fine_tuned"]["mean"] <= 1.0
