import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation import (
    Accuracy,
    Benchmark,
    adapted_accuracy,
    pixel_neighbour_accuracy,
    pixel_prototype_accuracy,
)
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.models.initial_weights import initial_weights, with_ways
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

SHAPE = EpisodeShape(ways=3, shots=2, queries=5)


def network_spec(**changes):
    plain = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=3, width=8, norm="group")
    return replace(plain, **changes)


def benchmark_of(images, path):
    """A benchmark on classes of equal size, [classes, images, side, side]."""
    classes, per_class = images.shape[:2]
    np.save(path, images.reshape(-1, 1, *images.shape[2:]).astype(np.uint8))
    pool = ClassPool(
        path=path,
        names=tuple(map(str, range(classes))),
        first=tuple(range(0, classes * per_class, per_class)),
        counts=(per_class,) * classes,
    )
    return Benchmark(pool=pool, shape=SHAPE, seed=0, split="test")


@pytest.fixture
def separable(tmp_path):
    """Each class lights its own row; each image adds a little noise."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 20, size=(6, 10, 28, 28))
    for number in range(6):
        images[number, :, 4 * number : 4 * number + 3] += 200
    return benchmark_of(images, tmp_path / "separable.npy")


@pytest.fixture
def meaningless(tmp_path):
    return benchmark_of(np.random.default_rng(0).integers(0, 256, size=(12, 20, 28, 28)), tmp_path / "meaningless.npy")


def test_the_interval_is_that_of_the_mean_over_episodes():
    values = [0.2, 0.4, 0.9, 0.5]
    accuracy = Accuracy.of(values)
    mean = sum(values) / 4
    variance = sum((value - mean) ** 2 for value in values) / 3
    assert accuracy.mean == pytest.approx(mean)
    assert accuracy.ci95 == pytest.approx(3.182446 * math.sqrt(variance / 4))
    assert accuracy.episodes == 4
    assert Accuracy.of([1.0, 1.0]) == Accuracy(mean=1.0, ci95=0.0, episodes=2)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    generator = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        accuracy = Accuracy.of(generator.binomial(75, 0.8, size=100) / 75)
        covered += abs(accuracy.mean - 0.8) <= accuracy.ci95
    assert 925 <= covered <= 970


def test_how_an_accuracy_is_written():
    accuracy = Accuracy(mean=0.875, ci95=0.0125, episodes=60)
    assert accuracy.as_json(protocol="p") == {"mean": 0.875, "ci95": 0.0125, "episodes": 60, "protocol": "p"}
    assert str(accuracy) == "87.5% ± 1.2"


def test_a_benchmark_is_a_fixed_sequence_of_episodes(separable):
    one, again, other = separable.episode(3), separable.episode(3), separable.episode(4)
    assert torch.equal(one.query_images, again.query_images)
    assert not torch.equal(one.query_images, other.query_images)
    assert not torch.equal(one.query_images, replace(separable, seed=1).episode(3).query_images)


def test_a_benchmark_that_the_pool_cannot_fill_is_refused(separable):
    with pytest.raises(InputError, match=r"evaluation\.queries"):
        replace(separable, shape=EpisodeShape(ways=3, shots=5, queries=15))


@pytest.mark.parametrize("baseline", [pixel_prototype_accuracy, pixel_neighbour_accuracy])
def test_pixels_separate_what_is_separable_and_nothing_else(baseline, separable, meaningless):
    assert baseline(separable, 10) == Accuracy(mean=1.0, ci95=0.0, episodes=10)
    chance = baseline(meaningless, 200)
    assert abs(chance.mean - 1 / 3) < 2 * chance.ci95


NETWORKS = [
    ("conv4-strided", "group", "raw"),
    ("conv4", "batch", "raw"),
    ("conv4-strided", "none", "raw"),
    ("mlp", "none", "raw"),
    ("conv4-strided", "batch", "support"),
    ("conv3-blur", "group", "record"),
]


@pytest.mark.parametrize(("name", "norm", "features"), NETWORKS)
@pytest.mark.parametrize("adapt", ["all", "head"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_prediction_does_not_depend_on_the_other_queries(tiny_strokes, name, norm, features, adapt, steps):
    spec = network_spec(name=name, norm=norm, features=features)
    network, weights = build_network(spec), initial_weights(spec, 0)
    adaptation = Adaptation(adapt=adapt, steps=steps, lr=0.1)
    episode = draw_episode(tiny_strokes.test, np.random.default_rng(0), SHAPE)
    wanted = adapted_logits(network, weights, episode, adaptation)
    assert wanted.shape == (15, 3)
    kept = 4
    others = torch.rand(episode.query_images.shape, generator=torch.Generator().manual_seed(0))
    others[kept] = episode.query_images[kept]
    changed = adapted_logits(network, weights, replace(episode, query_images=others), adaptation)
    torch.testing.assert_close(changed[kept], wanted[kept], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(changed, wanted, rtol=1e-4, atol=1e-5)
    alone = replace(
        episode,
        query_images=episode.query_images[kept : kept + 1],
        query_labels=episode.query_labels[kept : kept + 1],
    )
    single = adapted_logits(network, weights, alone, adaptation)
    torch.testing.assert_close(single[0], wanted[kept], rtol=1e-4, atol=1e-5)


def test_zero_steps_leave_the_weights_as_they_are(tiny_strokes):
    spec = network_spec()
    network, weights = build_network(spec), initial_weights(spec, 0)
    episode = draw_episode(tiny_strokes.test, np.random.default_rng(0), SHAPE)
    logits = adapted_logits(network, weights, episode, Adaptation(adapt="all", steps=0, lr=1.0))
    plain = torch.func.functional_call(network, weights, (episode.query_images,))
    torch.testing.assert_close(logits, plain, rtol=1e-4, atol=1e-5)


def test_an_untrained_body_with_an_adapted_head_beats_chance(tiny_strokes):
    spec = network_spec(norm="batch", features="support", feature_scale=2.0, width=16)
    benchmark = Benchmark(pool=tiny_strokes.test, shape=SHAPE, seed=0, split="test")
    adaptation = Adaptation(adapt="head", steps=10, lr=5.0)
    accuracy = adapted_accuracy(InProcess(), spec, initial_weights(spec, 0), benchmark, adaptation, 60)
    assert accuracy.mean - accuracy.ci95 > 1 / 3 + 0.05


def test_everybody_in_a_contest_sees_the_same_episodes(separable):
    spec = network_spec(name="mlp", width=32, norm="none")
    trained, untrained = initial_weights(spec, 0), initial_weights(spec, 1)
    adaptation = Adaptation(adapt="all", steps=30, lr=0.5)
    found = separable.compete(InProcess(), spec, trained, untrained, adaptation, 12)

    def alone(params, steps):
        return adapted_accuracy(InProcess(), spec, params, separable, replace(adaptation, steps=steps), 12)

    assert found == {
        "accuracy": alone(trained, 30),
        "accuracy_before_adaptation": alone(trained, 0),
        "accuracy_untrained": alone(untrained, 30),
        "accuracy_pixel_prototype": pixel_prototype_accuracy(separable, 12),
        "accuracy_pixel_neighbour": pixel_neighbour_accuracy(separable, 12),
    }


def test_query_labels_are_never_read(tiny_strokes):
    spec = network_spec()
    network, weights = build_network(spec), initial_weights(spec, 0)
    adaptation = Adaptation(adapt="all", steps=2, lr=0.1)
    episode = draw_episode(tiny_strokes.test, np.random.default_rng(0), SHAPE)
    relabelled = replace(episode, query_labels=episode.query_labels.flip(0))
    assert torch.equal(
        adapted_logits(network, weights, episode, adaptation), adapted_logits(network, weights, relabelled, adaptation)
    )


def test_adaptation_learns_what_is_separable(separable):
    spec = network_spec(name="mlp", width=32, norm="none")
    weights = initial_weights(spec, 0)
    before = {name: value.clone() for name, value in weights.items()}

    def accuracy(steps):
        return adapted_accuracy(InProcess(), spec, weights, separable, Adaptation(adapt="all", steps=steps, lr=0.5), 12)

    assert accuracy(30).mean > 0.95
    assert abs(accuracy(0).mean - 1 / 3) < 0.25
    assert accuracy(30) == accuracy(30)
    assert accuracy(30).episodes == 12
    assert all(torch.equal(weights[name], before[name]) for name in weights)


def test_fewer_classes_than_clients_hold_are_judged_by_a_head_of_their_own_size(separable):
    spec = network_spec(name="mlp", width=32, norm="none", ways=7)
    weights, adaptation = initial_weights(spec, 0), Adaptation(adapt="all", steps=5, lr=0.5)
    network, cut = with_ways(spec, weights, 3)
    expected = adapted_accuracy(InProcess(), network, cut, separable, adaptation, 6)
    assert separable.accuracy(InProcess(), spec, weights, adaptation, 6) == expected
    found = separable.compete(InProcess(), spec, weights, weights, adaptation, 6)
    assert found["accuracy"] == found["accuracy_untrained"] == expected


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ("aabbcd", "2 held-out test clients of 4; the others hold too little for an episode; the interval is over"),
        ("aabbcc", "3 held-out test clients; the interval is over episodes, not over clients"),
        ("", "held-out test classes"),
    ],
)
def test_episodes_of_named_clients_say_of_how_many_they_are(separable, clients, words):
    """600 episodes of 2 people are no 600 people."""
    shape = EpisodeShape(ways=2, shots=2, queries=2)
    pool = replace(separable.pool, clients=tuple(clients))
    assert replace(separable, pool=pool, shape=shape).protocol == f"single model, inductive, {words}" + (
        " episodes, not over clients" if words.endswith("over") else ""
    )
