import math

import numpy as np
import pytest
import torch
from scipy.special import stdtrit

from dpfedmeta.core.worker_pool import InProcess, open_workers
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.learning.evaluation import SharedClassifier
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.initial_weights import initial_weights
from dpfedmeta.learning.models.spec import NetworkSpec

NONE = Adaptation(adapt="all", steps=1, lr=0.1)
SPEC = NetworkSpec(name="linear", channels=1, image_size=8, ways=2, width=1, norm="none")


@pytest.fixture(scope="module")
def pool(tmp_path_factory):
    """600 dark and 400 light images, one in ten of the wrong kind."""
    path = tmp_path_factory.mktemp("pool") / "images.npy"
    light = np.concatenate([np.arange(600) % 10 == 0, np.arange(400) % 10 != 0])
    np.save(path, np.broadcast_to((255 * light).astype(np.uint8)[:, None, None, None], (1000, 1, 8, 8)))
    return ClassPool(path=path, names=("dark", "light"), first=(0, 600), counts=(600, 400))


def brightness():
    weights = initial_weights(SPEC, 0)
    return {
        "head.weight": torch.tensor([[-1.0], [1.0]]),
        "head.bias": torch.tensor([0.5, -0.5]),
        **{n: v for n, v in weights.items() if not n.startswith("head.")},
    }


def test_the_accuracy_of_a_known_classifier(pool):
    found = SharedClassifier(pool=pool, seed=0).accuracy(InProcess(), SPEC, brightness(), NONE, 7)
    assert found.mean == pytest.approx(0.9)
    assert found.ci95 == pytest.approx(stdtrit(999, 0.975) * math.sqrt(0.09 / 999))
    assert found.as_json()["images"] == 1000


def test_fewer_images_are_a_sample_of_both_classes(pool):
    found = SharedClassifier(pool=pool, seed=0, images=200).accuracy(InProcess(), SPEC, brightness(), NONE, 7)
    assert found.episodes == 200
    assert 0.8 < found.mean < 0.98


@pytest.mark.slow
def test_workers_change_nothing(pool):
    held_out_evaluation = SharedClassifier(pool=pool, seed=0)
    with open_workers(2) as workers:
        together = held_out_evaluation.accuracy(workers, SPEC, brightness(), NONE, 7)
    assert together == held_out_evaluation.accuracy(InProcess(), SPEC, brightness(), NONE, 7)


def test_a_prediction_depends_on_no_other_image(pool):
    whole = SharedClassifier(pool=pool, seed=0).accuracy(InProcess(), SPEC, brightness(), NONE, 7)
    parts = [
        SharedClassifier(pool=ClassPool(path=pool.path, names=("dark", "light"), first=(0, 600), counts=(a, b)), seed=0)
        for a, b in ((600, 0), (0, 400))
    ]
    hits = [part.accuracy(InProcess(), SPEC, brightness(), NONE, 7) for part in parts]
    assert whole.mean * 1000 == pytest.approx(sum(h.mean * h.episodes for h in hits))


def test_the_contest_is_against_the_untrained(pool):
    untrained = {name: torch.zeros_like(value) for name, value in brightness().items()}
    found = SharedClassifier(pool=pool, seed=0).compete(InProcess(), SPEC, brightness(), untrained, NONE, 7)
    assert found["accuracy"].mean > found["accuracy_untrained"].mean
