from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits, adapted_params
from dpfedmeta.learning.models.frozen import frozen_network, mixes_queries, restored_network
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

SHAPE = EpisodeShape(ways=3, shots=2, queries=4)
NETWORKS = [
    ("conv4-strided", "group", "raw"),
    ("conv4", "batch", "raw"),
    ("conv4-strided", "batch", "support"),
    ("conv3-blur", "group", "record"),
    ("conv3-blur", "none", "support"),
    ("mlp", "none", "raw"),
    ("linear", "none", "support"),
]


class WithBatchNorm(nn.Module):
    def __init__(self, channels, ways):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(channels, 4, 3, stride=4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.last = nn.LazyLinear(ways)
        self.last(self.layers(torch.zeros(2, channels, 28, 28)))

    def forward(self, images):
        return self.last(self.layers(images))


def with_batch_norm(*, channels, image_size, ways, width, norm):
    return WithBatchNorm(channels, ways)


def adapted(dataset, spec, adapt, steps):
    network, weights = build_network(spec), initial_weights(spec, 0)
    episode = draw_episode(dataset.test, np.random.default_rng(0), SHAPE)
    how = Adaptation(adapt=adapt, steps=steps, lr=0.3)
    params = adapted_params(network, weights, episode.support_images, episode.support_labels, how)
    return network, params, episode, adapted_logits(network, weights, episode, how)


@pytest.mark.parametrize(("name", "norm", "features"), NETWORKS)
@pytest.mark.parametrize(("adapt", "steps"), [("head", 3), ("all", 3), ("all", 0)])
def test_a_frozen_network_predicts_what_the_adapted_one_does(tiny_strokes, name, norm, features, adapt, steps):
    spec = NetworkSpec(name=name, channels=1, image_size=28, ways=3, width=8, norm=norm, features=features)
    network, params, episode, wanted = adapted(tiny_strokes, spec, adapt, steps)
    frozen = frozen_network(network, params, episode.support_images)
    torch.testing.assert_close(frozen(episode.query_images), wanted, rtol=1e-4, atol=1e-4)
    # One image alone gives the same, and neither the support images nor a gradient are in it.
    torch.testing.assert_close(frozen(episode.query_images[2:3])[0], wanted[2], rtol=1e-4, atol=1e-4)
    assert not any(value.requires_grad for value in frozen.state_dict(keep_vars=True).values())
    assert all(value.shape[:1] != (6,) for value in frozen.state_dict().values() if value.ndim == 4)
    again = restored_network(build_network(spec), frozen.state_dict())
    assert torch.equal(again(episode.query_images), frozen(episode.query_images))


def test_batch_normalisation_of_the_users_own_is_frozen_at_the_support_images(tiny_strokes):
    spec = NetworkSpec(
        name="tests.learning.models.test_frozen:with_batch_norm",
        channels=1,
        image_size=28,
        ways=3,
        width=8,
        norm="none",
    )
    network, params, episode, _ = adapted(tiny_strokes, spec, "all", 2)
    assert mixes_queries(network)
    frozen = frozen_network(network, params, episode.support_images)
    torch.testing.assert_close(
        frozen(episode.support_images),
        torch.func.functional_call(network, params, (episode.support_images,)),
        rtol=1e-4,
        atol=1e-4,
    )
    both = frozen(episode.query_images)
    torch.testing.assert_close(frozen(episode.query_images[:1]), both[:1], rtol=1e-4, atol=1e-5)
    restored = restored_network(build_network(spec), frozen.state_dict())
    assert torch.equal(restored(episode.query_images), both)


def test_freezing_leaves_the_network_as_it_was(tiny_strokes):
    spec = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=3, width=8, norm="batch")
    network, params, episode, wanted = adapted(tiny_strokes, spec, "head", 2)
    frozen_network(network, params, episode.support_images)
    torch.testing.assert_close(
        adapted_logits(network, params, episode, Adaptation(adapt="head", steps=0, lr=1.0)), wanted
    )
    assert not mixes_queries(network)


class Twice(WithBatchNorm):
    def forward(self, images):
        norm = self.layers[1]
        return self.last(torch.relu(norm(norm(self.layers[0](images)))).flatten(1))


def test_a_normalisation_that_runs_twice_is_refused():
    with pytest.raises(InputError, match="runs 2 times"):
        frozen_network(Twice(1, 3), {}, torch.rand(4, 1, 28, 28))


def test_tensors_that_do_not_fit_are_refused(tiny_strokes):
    spec = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=3, width=8, norm="batch")
    network, params, episode, _ = adapted(tiny_strokes, spec, "head", 1)
    tensors = frozen_network(network, params, episode.support_images).state_dict()
    name = next(name for name in tensors if name.endswith(".centre"))
    with pytest.raises(InputError, match="statistics of"):
        restored_network(network, {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(InputError, match=r"head\.weight"):
        restored_network(network, {**tensors, "head.weight": torch.zeros(2, 2)})
    with pytest.raises(InputError, match="size mismatch"):
        restored_network(build_network(replace(spec, width=4)), tensors)
