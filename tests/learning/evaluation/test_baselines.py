import numpy as np
import pytest
import torch

from dpfedmeta.core.params import arrays_of
from dpfedmeta.data.episodes.episode import Episode, draw_episode
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.evaluation.baselines import (
    Adapted,
    Alone,
    FeaturePrototype,
    PixelNeighbour,
    PixelPrototype,
    accuracies,
)
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits, logits_along
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.targets.classification import OWN_CLASSES

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


def offset_episode(offset, records, seed):
    """Two classes of vectors around an offset that float32 holds without rounding: quarters of whole numbers."""
    generator = np.random.default_rng(seed)
    labels = torch.arange(records) % 2

    def drawn():
        values = np.round(4 * (generator.normal(size=(records, 6)) + 2 * labels.numpy()[:, None])) / 4
        return torch.tensor(offset + values, dtype=torch.float32)

    return Episode(support_images=drawn(), support_labels=labels, query_images=drawn(), query_labels=labels)


@pytest.mark.parametrize("offset", [300.0, 9000.0])
@pytest.mark.parametrize("records", [24, 26, 80])
@pytest.mark.parametrize("learner", [PixelPrototype(), PixelNeighbour(), Alone()], ids=lambda own: type(own).__name__)
def test_a_baseline_does_not_depend_on_where_numbers_lie(learner, records, offset):
    for seed in range(5):
        near, far = (offset_episode(where, records, seed) for where in (0.0, offset))
        found, due = (learner.predictions(each, transductive=False)[0] for each in (far, near))
        assert torch.equal(found, due)
        if hasattr(learner, "outputs"):
            measured = [OWN_CLASSES.measures(learner.outputs(each, 2), each.query_labels) for each in (far, near)]
            assert measured[0]["auc"] == pytest.approx(measured[1]["auc"], abs=2e-3)


@pytest.mark.parametrize("records", [24, 80])
def test_feature_prototypes_do_not_depend_on_where_numbers_lie(records):
    spec = NetworkSpec(name="linear", channels=6, image_size=1, ways=2, width=4, norm="none", records="vectors")
    weights = {name: value.numpy() for name, value in initial_weights(spec, 0).items()}
    for seed in range(5):
        near, far = (offset_episode(where, records, seed) for where in (0.0, 9000.0))
        learner = FeaturePrototype(network=spec, weights=weights)
        found, due = (learner.predictions(each, transductive=False)[0] for each in (far, near))
        assert torch.equal(found, due)
