import numpy as np
import pytest
import torch

from dpfedmeta.core.params import arrays_of
from dpfedmeta.data.episodes.episode import draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation.baselines import Adapted, FeaturePrototype, PixelPrototype, accuracies
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits, logits_along
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

SPEC = NetworkSpec(name="conv4-strided", channels=1, image_size=28, ways=3, width=8, norm="batch", features="support")
HOW = Adaptation(adapt="all", steps=4, lr=0.3)


@pytest.fixture(scope="module")
def episode(tiny_strokes):
    return draw_episode(tiny_strokes.test, np.random.default_rng(0), EpisodeShape(ways=3, shots=2, queries=5))


@pytest.mark.parametrize("adapt", ["all", "head"])
def test_one_path_is_asked_on_its_way(episode, adapt):
    network, weights = build_network(SPEC), initial_weights(SPEC, 0)
    along = logits_along(network, weights, episode, Adaptation(adapt=adapt, steps=9, lr=0.3), (0, 1, 4))
    for steps, logits in zip((0, 1, 4), along, strict=True):
        alone = adapted_logits(network, weights, episode, Adaptation(adapt=adapt, steps=steps, lr=0.3))
        torch.testing.assert_close(logits, alone)


@pytest.mark.parametrize("adapt", ["all", "head"])
def test_transductive_predictions_depend_on_the_other_queries_and_inductive_ones_do_not(episode, adapt):
    network, weights = build_network(SPEC), initial_weights(SPEC, 0)
    how = Adaptation(adapt=adapt, steps=2, lr=0.3)
    kept = torch.arange(15) == 4

    def logits(queries, transductive):
        changed = type(episode)(
            support_images=episode.support_images,
            support_labels=episode.support_labels,
            query_images=queries,
            query_labels=episode.query_labels,
        )
        return logits_along(network, weights, changed, how, (2,), transductive=transductive)[0][4]

    others = torch.where(kept[:, None, None, None], episode.query_images, 1 - episode.query_images)
    inductive = [logits(queries, False) for queries in (episode.query_images, others)]
    transductive = [logits(queries, True) for queries in (episode.query_images, others)]
    torch.testing.assert_close(*inductive, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(*transductive, rtol=1e-2, atol=1e-3)


def test_a_contestant_answers_once_for_each_number_of_steps(episode):
    weights = arrays_of(initial_weights(SPEC, 0))
    adapted = Adapted(network=SPEC, weights=weights, adaptation=HOW, at=(0, 2, 4))
    assert len(accuracies(adapted, episode, transductive=False)) == 3


def test_prototypes_of_the_identity_are_those_of_pixels(episode):
    spec = NetworkSpec(name="linear", channels=1, image_size=28, ways=3, width=28, norm="none")
    features = FeaturePrototype(network=spec, weights=arrays_of(initial_weights(spec, 0)))
    found = accuracies(features, episode, transductive=False)
    assert found == accuracies(PixelPrototype(), episode, transductive=False)
