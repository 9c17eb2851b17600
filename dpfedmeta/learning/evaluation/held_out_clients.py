"""Evaluation on whole held-out clients, each adapting on its own share; and of one classifier for all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dpfedmeta.core.params import Arrays, Params, arrays_of, tensors_of
from dpfedmeta.core.random.random_sources import Purpose, public_generator
from dpfedmeta.core.worker_pool import Workers
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Episode
from dpfedmeta.data.populations.whole_population import WholePopulation, able_numbers
from dpfedmeta.learning.evaluation.accuracy import Accuracy
from dpfedmeta.learning.evaluation.baselines import Adapted, Learner
from dpfedmeta.learning.evaluation.few_shot import competitors, episodes_digest, outcomes
from dpfedmeta.learning.meta.adaptation import Adaptation
from dpfedmeta.learning.meta.target_kind import TargetKind
from dpfedmeta.learning.meta.whole_clients import head_rows, ways_held
from dpfedmeta.learning.models.functional import apply, channels_last
from dpfedmeta.learning.models.registry import build_network
from dpfedmeta.learning.models.spec import NetworkSpec
from dpfedmeta.learning.targets.classification import OWN_CLASSES

WHOLE_PROTOCOL = (
    "single model, inductive, whole held-out clients: each in turn adapts on its share of its records and is judged on "
    "the others, and when all had their turn they split anew"
)
WHOLE_TRANSDUCTIVE = WHOLE_PROTOCOL.replace("inductive", "TRANSDUCTIVE (statistics from all records together)")
_IMAGES_PER_CHUNK = 500


@dataclass(frozen=True, kw_only=True, eq=False)
class AdaptedWhole(Adapted):
    """A network that adapts with a head of as many classes as the client has, or of all labels of a public list."""

    def predictions(self, episode: Episode, *, transductive: bool) -> list[Tensor]:
        """After each number of steps."""
        masked = self.adaptation.targets.masked
        own = replace(self, weights=head_rows(self.weights, ways_held(episode))) if masked else self
        return Adapted.predictions(own, episode, transductive=transductive)


@dataclass(frozen=True, kw_only=True)
class WholeClientsBenchmark:
    """Whole clients of a part of the data that is public; the same seed gives the same episodes.

    Attributes:
        clients: All of them; those with too few records take no part.
        transductive: Whether normalisation takes its statistics from support and query images together.
        targets: Kind of the labels.
    """

    clients: WholePopulation
    transductive: bool = False
    targets: TargetKind = OWN_CLASSES

    @property
    def score_name(self) -> str:
        """Name of the scores in files."""
        return self.targets.score_name

    def episode(self, number: int) -> Episode:
        """Episode number `number`: of each client in turn, then of each again with another split."""
        return self.clients.split_again(*self._whose(number)).episode()

    def _whose(self, number: int) -> tuple[int, int]:
        """(Client, turn) of an episode."""
        able = able_numbers(self.clients)
        turn, place = divmod(number, len(able))
        generator = public_generator(self.clients.seed, Purpose.EVALUATION, turn)
        return able[int(generator.permutation(len(able))[place])], turn

    @property
    def protocol(self) -> str:
        """Evaluation protocol in words, stating the conditions of the accuracies."""
        return WHOLE_TRANSDUCTIVE if self.transductive else WHOLE_PROTOCOL

    @property
    def sizes(self) -> Mapping[str, int]:
        """None: every client has its own."""
        return {}

    def episodes_digest(self, workers: Workers, episodes: int) -> str | None:
        """Return the digest of the images and labels of the first `episodes` episodes."""
        return episodes_digest(workers, (self,), episodes)

    def accuracy(
        self, workers: Workers, network: NetworkSpec, model: Params, adaptation: Adaptation, episodes: int
    ) -> Accuracy:
        """Compute the accuracy of the model after adaptation, as the mean over clients."""
        learner = AdaptedWhole(network=network, weights=arrays_of(model), adaptation=adaptation, at=(adaptation.steps,))
        return self._accuracies(workers, {"it": learner}, episodes)["it"]

    def compete(
        self,
        workers: Workers,
        network: NetworkSpec,
        trained: Params,
        untrained: Params,
        adaptation: Adaptation,
        episodes: int,
    ) -> dict[str, Accuracy]:
        """The same clients for all: the trained model after and before adaptation, the untrained one, pixels."""
        after = AdaptedWhole(network=network, weights=arrays_of(trained), adaptation=adaptation, at=(adaptation.steps,))
        return self._accuracies(workers, competitors(after, untrained, whole=True), episodes)

    def _accuracies(self, workers: Workers, learners: Mapping[str, Learner], episodes: int) -> dict[str, Accuracy]:
        found = outcomes(workers, self, learners, episodes)
        whose = [self._whose(number)[0] for number in range(episodes)]
        name = self.score_name
        return {each: over_clients(values[:, 0].tolist(), whose, name) for each, values in found.items()}


def over_clients(values: Sequence[float], whose: Sequence[int], score: str = "accuracy") -> Accuracy:
    """The mean over clients, and its interval over them: two splits of one client are no independent draws.

    Args:
        values: Of each episode.
        whose: Client of each episode; with one client alone the interval is over its splits.
        score: What the values are called.
    """
    plain, clients = Accuracy.of(values, score=score), sorted({*whose})
    if len(clients) == 1:
        return replace(plain, each="splits")
    means = [np.mean([value for value, own in zip(values, whose, strict=True) if own == client]) for client in clients]
    own = Accuracy.of([float(mean) for mean in means], counted="clients")
    return replace(plain, mean=own.mean, ci95=own.ci95, values=own.values, each=own.each)


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
