import pytest

from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation import Benchmark, choose_fine_tuning
from dpfedmeta.learning.evaluation.few_shot import LEAST_STEPS, STEP_SIZES, beyond
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.spec import NetworkSpec

SPEC = NetworkSpec(name="mlp", channels=1, image_size=28, ways=3, width=8, norm="none")


def test_the_step_size_is_the_best_on_the_episodes_given(tiny_strokes):
    shape = EpisodeShape(ways=3, shots=2, queries=3)
    validation = Benchmark(pool=tiny_strokes.val, shape=shape, seed=0, split="val")
    chosen = choose_fine_tuning(InProcess(), SPEC, initial_weights(SPEC, 0), validation, 3, 4)
    assert set(chosen.tried) >= set(STEP_SIZES)
    assert beyond(chosen.lr, chosen.tried) == ()
    assert chosen.tried[chosen.lr] == max(chosen.tried.values())
    assert (chosen.steps, chosen.episodes) == (LEAST_STEPS, 4)
    assert (chosen.adaptation.adapt, chosen.adaptation.lr) == ("all", chosen.lr)
    assert chosen.as_json()["validation"]["0.1"] == pytest.approx(chosen.tried[0.1])


def test_the_best_step_size_is_looked_for_beyond_the_ends():
    tried = dict.fromkeys(STEP_SIZES, 0.5)
    assert beyond(10.0, tried) == (30.0,)
    assert beyond(30.0, {**tried, 30.0: 0.6}) == (100.0,)
    assert beyond(0.003, tried) == (0.001,)
    assert beyond(0.1, tried) == ()
    assert beyond(300.0, {**tried, 300.0: 0.6}) == ()
