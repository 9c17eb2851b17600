"""Evaluation of one classifier for all: its accuracy on images that no client holds."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from dpfedmeta.core.params import Arrays, Params, arrays_of, tensors_of
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.models.functional import apply, channels_last
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec

_IMAGES_PER_CHUNK = 500


@dataclass(frozen=True, kw_only=True)
class SharedClassifier:
    """The same classes as in training, on other images; no adaptation.

    Attributes:
        pool: The images to classify.
        seed: Which of them, where fewer than all are asked for.
        images: How many at most; None: all.
    """

    pool: ClassPool
    seed: int
    images: int | None = None

    @property
    def protocol(self) -> str:
        """Evaluation protocol in words, stating the conditions of the accuracies."""
        return "single model, no adaptation, held-out test images"

    @property
    def score_name(self) -> str:
        """Accuracy."""
        return "accuracy"

    @property
    def sizes(self) -> dict[str, int]:
        """None: it is not by episodes."""
        return {}

    def episodes_digest(self, workers: Workers, episodes: int) -> str | None:
        """There are none."""
        return None

    def accuracy(
        self, workers: Workers, network: NetworkSpec, model: Params, adaptation: Adaptation, episodes: int
    ) -> Accuracy:
        """Over the images; nothing adapts and there are no episodes."""
        arrays = arrays_of(model)
        order = public_generator(self.seed, Purpose.EVALUATION).permutation(self.pool.size)[: self.images]
        starts = range(0, len(order), _IMAGES_PER_CHUNK)
        tasks = ((network, arrays, self.pool, order[start : start + _IMAGES_PER_CHUNK]) for start in starts)
        return Accuracy.of([hit for part in workers.map(_hits, tasks) for hit in part], counted="images")

    def compete(
        self,
        workers: Workers,
        network: NetworkSpec,
        trained: Params,
        untrained: Params,
        adaptation: Adaptation,
        episodes: int,
    ) -> dict[str, Accuracy]:
        """The trained and the untrained model."""
        return {
            "accuracy": self.accuracy(workers, network, trained, adaptation, episodes),
            "accuracy_untrained": self.accuracy(workers, network, untrained, adaptation, episodes),
        }


def _hits(spec: NetworkSpec, model: Arrays, pool: ClassPool, rows: npt.NDArray[np.int64]) -> list[float]:
    images, labels = pool.records_at(np.sort(rows))
    with torch.no_grad():
        logits = apply(build_network(spec), tensors_of(model), channels_last(torch.from_numpy(images)), None)
    return (logits.argmax(1) == torch.from_numpy(labels)).double().tolist()
