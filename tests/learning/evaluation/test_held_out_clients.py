"""Evaluation on whole held-out clients, against a count by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpfedmeta.core.worker_pool import InProcess
from dpfedmeta.data.episodes.shape import WholeShape
from dpfedmeta.data.populations.whole_population import everybody
from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.learning.evaluation.baselines import Adapted
from dpfedmeta.learning.evaluation.held_out_clients import AdaptedWhole, WholeClientsBenchmark, over_clients
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.inner_loop import adapted_logits
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.targets.classification import Classification
from tests.data.test_whole_population import pool_of

SPEC = NetworkSpec(name="linear", channels=1, image_size=4, ways=9, width=4, norm="none", learn="body")
SHAPE = WholeShape(support_share=0.5, most_ways=9, most_records=50)
HOW = Adaptation(adapt="head", steps=4, lr=2.0, balance="classes")


@pytest.fixture
def benchmark(tmp_path):
    held = {"ann": [7, 2, 1, 4], "bob": [12, 3, 3], "cid": [1, 9], "dan": [2, 2]}
    return WholeClientsBenchmark(clients=everybody(pool_of(tmp_path, held), SHAPE, 3, 1))


def own_accuracy(episode, steps):
    """With a network that is built for as many classes as the client has."""
    own = replace(SPEC, ways=int(episode.support_labels.max()) + 1)
    logits = adapted_logits(build_network(own), initial_weights(own, 0), episode, replace(HOW, steps=steps))
    return float((logits.argmax(1) == episode.query_labels).double().mean())


def test_every_sound_client_has_its_turn_before_any_has_another(benchmark):
    sizes = [len(benchmark.episode(number).support_labels) for number in range(9)]
    assert [sorted(sizes[start : start + 3]) for start in (0, 3, 6)] == [[2, 6, 8]] * 3
    digests = {benchmark.episodes_digest(InProcess(), count) for count in (3, 4, 9)}
    assert len(digests) == 3
    other = replace(benchmark, clients=replace(benchmark.clients, seed=4))
    assert other.episodes_digest(InProcess(), 9) not in digests


def test_accuracies_are_means_over_clients_with_a_head_of_their_own_classes(benchmark):
    weights = initial_weights(SPEC, 0)
    episodes = [benchmark.episode(number) for number in range(6)]
    found = benchmark.compete(InProcess(), SPEC, weights, weights, HOW, 6)
    for name, steps in (("accuracy", 4), ("accuracy_before_adaptation", 0), ("accuracy_untrained", 4)):
        assert found[name].mean == pytest.approx(np.mean([own_accuracy(each, steps) for each in episodes]))
    assert found["accuracy"].mean == benchmark.accuracy(InProcess(), SPEC, weights, HOW, 6).mean
    assert found.keys() > {"accuracy_pixel_prototype", "accuracy_pixel_neighbour"}
    most = [(each.query_labels == each.support_labels.mode().values).double().mean() for each in episodes]
    assert found["accuracy_own_majority"].mean == pytest.approx(np.mean(most))
    assert (benchmark.sizes, "inductive" in benchmark.protocol) == ({}, True)
    assert "TRANSDUCTIVE" in replace(benchmark, transductive=True).protocol


def test_further_splits_of_the_same_clients_do_not_make_the_interval_narrower(benchmark):
    """Each of three clients has the same value in every turn, so more turns say nothing more of clients."""
    values = {0: 0.2, 1: 0.5, 3: 0.8}
    once = Accuracy.of(list(values.values()))
    for turns in (1, 2, 50):
        whose = [client for _ in range(turns) for client in values]
        found = over_clients([values[client] for client in whose], whose)
        assert (found.mean, found.ci95) == pytest.approx((once.mean, once.ci95))
        assert found.episodes == 3 * turns
        # What runs are compared by, and what the worst tenth is of.
        assert found.values == pytest.approx((0.2, 0.5, 0.8))
    # One client alone has splits, and a client with more turns counts as one.
    assert over_clients([0.2, 0.4], [5, 5]).ci95 == Accuracy.of([0.2, 0.4]).ci95
    assert over_clients([0.2, 0.4, 0.9], [5, 5, 6]).mean == pytest.approx(0.6)
    weights = initial_weights(SPEC, 0)
    accuracy = benchmark.accuracy(InProcess(), SPEC, weights, HOW, 9)
    means = [np.mean([own_accuracy(benchmark.episode(number), 4) for number in range(9)
                      if benchmark.episode(number).support_labels.shape == (size,)]) for size in (2, 6, 8)]  # fmt: skip
    assert accuracy.ci95 == pytest.approx(Accuracy.of(means).ci95)


def test_classes_that_a_client_does_not_have_get_no_prediction(benchmark):
    """Weights of a head that learned something, so that a further row would win."""
    weights = initial_weights(SPEC, 0)
    weights["head.bias"] = torch.arange(9.0)
    arrays = {name: value.numpy() for name, value in weights.items()}
    learner = AdaptedWhole(network=SPEC, weights=arrays, adaptation=HOW, at=(0,))
    for number in range(3):
        episode = benchmark.episode(number)
        (labels,) = learner.predictions(episode, transductive=False)
        assert set(labels.tolist()) == {int(episode.support_labels.max())}
    (all_rows,) = Adapted(network=SPEC, weights=arrays, adaptation=HOW, at=(0,)).predictions(
        benchmark.episode(0), transductive=False
    )
    assert set(all_rows.tolist()) == {8}


def test_of_a_public_list_a_client_may_get_a_label_that_it_does_not_have(benchmark):
    weights = initial_weights(SPEC, 0)
    weights["head.bias"] = torch.arange(9.0)
    arrays = {name: value.numpy() for name, value in weights.items()}
    shared = Classification(shared=9)
    learner = AdaptedWhole(network=SPEC, weights=arrays, adaptation=replace(HOW, targets=shared), at=(0,))
    (labels,) = learner.predictions(benchmark.episode(0), transductive=False)
    assert set(labels.tolist()) == {8}
    assert replace(benchmark, targets=shared).score_name == "accuracy"
