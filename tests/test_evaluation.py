import math
from dataclasses import replace

import pytest
import torch

from dpfedmeta.data import Episode, EpisodeShape
from dpfedmeta.evaluation import (
    Accuracy,
    Benchmark,
    adapted_accuracy,
    pixel_neighbour_accuracy,
    pixel_prototype_accuracy,
)
from dpfedmeta.federation.backend import InProcess
from dpfedmeta.meta import Adaptation, adapted_logits
from dpfedmeta.models import NetworkSpec, build_network, initial_weights

SHAPE = EpisodeShape(ways=3, shots=2, queries=4)


def spec_of(norm, features="raw", name="conv4-strided"):
    return NetworkSpec(
        name=name, channels=1, image_size=28, ways=3, width=4, norm=norm, features=features, feature_scale=2.0
    )


def test_the_interval_is_that_of_the_mean():
    accuracy = Accuracy.of([0.0, 1.0, 1.0, 1.0])
    assert accuracy.mean == 0.75
    assert accuracy.ci95 == pytest.approx(1.96 * 0.5 / math.sqrt(4))


@pytest.mark.parametrize("adapt", ["all", "head"])
@pytest.mark.parametrize(
    ("norm", "features", "name"),
    [
        ("batch", "support", "conv4-strided"),
        ("batch", "raw", "conv4"),
        ("group", "record", "conv3-blur"),
        ("none", "raw", "mlp"),
    ],
)
def test_a_prediction_does_not_depend_on_the_other_query_images(tiny_strokes, norm, features, name, adapt):
    spec = spec_of(norm, features, name)
    network, weights = build_network(spec), initial_weights(spec, 0)
    episode = Benchmark(pool=tiny_strokes.test, shape=SHAPE, seed=0, split="test").episode(0)
    adaptation = Adaptation(adapt=adapt, steps=3, lr=0.1)
    alone = Episode(
        support_images=episode.support_images,
        support_labels=episode.support_labels,
        query_images=torch.cat([episode.query_images[:1], torch.rand(11, 1, 28, 28) * 50]),
        query_labels=episode.query_labels,
    )
    together, changed = (adapted_logits(network, weights, e, adaptation) for e in (episode, alone))
    assert torch.allclose(together[0], changed[0], rtol=1e-4, atol=1e-5)


def test_zero_steps_leave_the_weights_as_they_are(tiny_strokes):
    spec = spec_of("group")
    network, weights = build_network(spec), initial_weights(spec, 0)
    episode = Benchmark(pool=tiny_strokes.test, shape=SHAPE, seed=0, split="test").episode(0)
    logits = adapted_logits(network, weights, episode, Adaptation(adapt="all", steps=0, lr=1.0))
    plain = torch.func.functional_call(network, weights, (episode.query_images,))
    assert torch.allclose(logits, plain, atol=1e-5)


def test_adaptation_beats_chance_and_the_same_seed_gives_the_same_accuracy(tiny_strokes):
    spec = replace(spec_of("batch", "support"), width=16)
    benchmark = Benchmark(pool=tiny_strokes.test, shape=SHAPE, seed=0, split="test")
    arguments = (InProcess(), spec, initial_weights(spec, 0), benchmark, Adaptation(adapt="head", steps=10, lr=5.0), 60)
    first, second = adapted_accuracy(*arguments), adapted_accuracy(*arguments)
    assert first == second
    assert first.mean > 1 / 3 + 0.1
    assert first.episodes == 60


def test_pixel_baselines_solve_what_pixels_can_solve(tiny_strokes, monkeypatch):
    labels = torch.arange(3)
    images = torch.eye(3)[:, None, None, :].expand(3, 1, 1, 3)
    separable = Episode(
        support_images=images.repeat_interleave(2, 0),
        support_labels=labels.repeat_interleave(2),
        query_images=images.repeat_interleave(4, 0),
        query_labels=labels.repeat_interleave(4),
    )
    benchmark = Benchmark(pool=tiny_strokes.test, shape=SHAPE, seed=0, split="test")
    monkeypatch.setattr(Benchmark, "episode", lambda self, number: separable)
    assert pixel_prototype_accuracy(benchmark, 3).mean == 1.0
    assert pixel_neighbour_accuracy(benchmark, 3).mean == 1.0
