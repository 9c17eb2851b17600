"""Classes: a client's own, or one public list that all clients share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from dpfedmeta.core.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.evaluation.baselines import Learner, Scorer


@dataclass(frozen=True, kw_only=True)
class Classification:
    """Softmax over classes, with cross-entropy.

    Attributes:
        shared: Number of labels of the public list, over which outputs are unmasked; None: each client numbers its own
            classes.
    """

    shared: int | None = None
    numbers: ClassVar[bool] = False
    score_name: ClassVar[str] = "accuracy"
    measure_names: ClassVar[tuple[str, ...]] = ("accuracy", "balanced", "auc")
    higher_is_better: ClassVar[bool] = True

    @classmethod
    def planned(cls, task: Task) -> Classification:
        """Build the kind from the task file.

        Raises:
            InputError: It says of numbers what classes do not have.
        """
        if task.targets is not None:
            raise InputError(f"task {task.name}: targets: classes have no range; drop it, or write kind: regression")
        return cls(shared=len(task.labels) or None)

    @property
    def masked(self) -> bool:
        """True if each client has classes of its own."""
        return self.shared is None

    def outputs(self, ways: int) -> int:
        """One for each label of the public list, or for each class of a client."""
        return self.shared or ways

    def sound(self, targets: Tensor, outputs: int) -> bool:
        """Return whether these are numbers of classes."""
        import torch

        return targets.dtype == torch.int64 and 0 <= int(targets.min()) <= int(targets.max()) < outputs

    def blank(self, count: int) -> Tensor:
        """The first class."""
        import torch

        return torch.zeros(count, dtype=torch.int64)

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
        """Cross-entropy."""
        from torch.nn.functional import cross_entropy

        return cross_entropy(outputs, targets, reduction=reduction)

    def residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Probabilities less one for the true class."""
        import torch

        ways = torch.arange(outputs.shape[-1], device=outputs.device)
        return torch.softmax(outputs, -1) - (targets.unsqueeze(-1) == ways).to(outputs.dtype)

    def predicted(self, outputs: Tensor) -> Tensor:
        """The class of the largest output."""
        return outputs.argmax(1)

    def score(self, predicted: Tensor, targets: Tensor) -> float:
        """Share of records that are right."""
        return float((predicted == targets).double().mean())

    def measures(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float | None]:
        """Accuracy; its mean over the classes that occur; area under the ROC curve, None with one class.

        The area is the mean over the classes, each against the others, by their probabilities (softmax).
        """
        right = (self.predicted(outputs) == targets).double()
        occurring = sorted({*targets.tolist()})
        each = [float(right[targets == label].mean()) for label in occurring]
        areas = [area_under_roc(log_odds(outputs, label), targets == label) for label in occurring]
        known = [area for area in areas if area is not None]
        return {
            "accuracy": float(right.mean()),
            "balanced": sum(each) / len(each),
            "auc": sum(known) / len(known) if known else None,
        }

    def baselines(self, vocabulary: int | None, *, whole: bool) -> Mapping[str, Learner]:
        """Neighbours in the records' own numbers; of whole clients also the class that each has most of."""
        from dpfedmeta.learning.evaluation.baselines import OwnMajority, PixelNeighbour, PixelPrototype

        return {
            "pixel_prototype": PixelPrototype(vocabulary=vocabulary),
            "pixel_neighbour": PixelNeighbour(vocabulary=vocabulary),
            **({"own_majority": OwnMajority()} if whole else {}),
        }

    def alone(self, vocabulary: int | None, counts: tuple[int, ...]) -> Mapping[str, Scorer]:
        """Softmax regression, prototypes and the majority of a person's own records."""
        from dpfedmeta.learning.evaluation.baselines import Alone, Majority, PixelPrototype

        return {
            "each alone: softmax regression": Alone(vocabulary=vocabulary),
            "nearest class prototype": PixelPrototype(vocabulary=vocabulary),
            "majority of own classes": Majority(label=counts.index(max(counts))),
        }


def log_odds(outputs: Tensor, label: int) -> Tensor:
    """Return the order of the records by the probability of a class: what softmax does not see moves nothing.

    Args:
        outputs: [n, ways].
        label: The class.
    """
    import torch

    others = torch.cat([outputs[:, :label], outputs[:, label + 1 :]], 1).double()
    return outputs[:, label].double() - torch.logsumexp(others, 1)


def area_under_roc(scores: Tensor, positive: Tensor) -> float | None:
    """Share of pairs of a positive and another record whose scores are in order, ties for a half (Mann and Whitney).

    Args:
        scores: [n], larger for what is taken to be positive.
        positive: [n], true or false.

    Returns:
        The area; None where one of both kinds is missing.
    """
    import numpy as np
    from scipy.stats import rankdata

    count = int(positive.sum())
    others = len(positive) - count
    if not count or not others:
        return None
    # Outputs that diverged are all alike: they tell nobody apart.
    ranks = rankdata(scores.detach().double().nan_to_num(nan=-float("inf")).numpy())
    total = float(ranks[np.asarray(positive.numpy(), dtype=bool)].sum())
    return (total - count * (count + 1) / 2) / (count * others)


OWN_CLASSES = Classification()
MEMBER = Classification
