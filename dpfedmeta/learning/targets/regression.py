"""Numbers to predict, in a public range, with squared or Huber's loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.params import library_of
from dpfedmeta.data.episodes.targets import TargetRange

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.evaluation.baselines import Learner, Scorer


@dataclass(frozen=True, kw_only=True)
class Regression:
    """One number for each record; a network's output is (number - centre) / scale.

    Attributes:
        range: Its public constants.
    """

    range: TargetRange
    numbers: ClassVar[bool] = True
    score_name: ClassVar[str] = "error"
    measure_names: ClassVar[tuple[str, ...]] = ("mae", "rmse", "r2")
    higher_is_better: ClassVar[bool] = False

    @classmethod
    def planned(cls, task: Task) -> Regression:
        """Build the kind from the task file.

        Raises:
            InputError: It has no public range, or a list of labels.
        """
        if task.targets is None:
            raise InputError(
                f"task {task.name}: targets: missing; kind: regression needs the public constants of its numbers: "
                "targets: {centre: C, scale: S, lowest: A, highest: B}"
            )
        if task.labels:
            raise InputError(f"task {task.name}: labels: numbers have none; drop it, or write kind: classification")
        if not task.targets.lowest < task.targets.highest:
            raise InputError(
                f"task {task.name}: targets: expected lowest < highest, got {task.targets.lowest:g} and "
                f"{task.targets.highest:g}"
            )
        return cls(range=task.targets)

    @property
    def masked(self) -> bool:
        """False: the output means the same for all clients."""
        return False

    def outputs(self, ways: int) -> int:
        """One."""
        return 1

    def sound(self, targets: Tensor, outputs: int) -> bool:
        """Return whether these are numbers of the public range, scaled."""
        import torch

        if targets.dtype != torch.float32 or not bool(torch.isfinite(targets).all()):
            return False
        lowest, highest = self._ends()
        # float32 rounds the ends.
        slack = 1e-6 * max(1.0, abs(lowest), abs(highest))
        return lowest - slack <= float(targets.min()) and float(targets.max()) <= highest + slack

    def _ends(self) -> tuple[float, float]:
        own = self.range
        return (own.lowest - own.centre) / own.scale, (own.highest - own.centre) / own.scale

    def blank(self, count: int) -> Tensor:
        """The centre."""
        import torch

        return torch.zeros(count)

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
        """Half the squared error in scales; Huber's beyond its bound."""
        error = outputs.squeeze(-1) - targets
        each = 0.5 * error.square()
        if self.range.loss == "huber":
            import torch

            beyond = self.range.huber * (error.abs() - 0.5 * self.range.huber)
            each = torch.where(error.abs() <= self.range.huber, each, beyond)
        if reduction == "none":
            return each
        return each.mean() if reduction == "mean" else each.sum()

    def residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Output less target, cut at Huber's bound."""
        error = outputs - targets.unsqueeze(-1)
        return error.clamp(-self.range.huber, self.range.huber) if self.range.loss == "huber" else error

    def predicted(self, outputs: Any) -> Any:
        """The output, a tensor or an array, cut to the public range; what is no number is its lower end."""
        lowest, highest = self._ends()
        return library_of(outputs).nan_to_num(outputs.squeeze(-1), nan=lowest).clip(lowest, highest)

    def score(self, predicted: Tensor, targets: Tensor) -> float:
        """Mean absolute error, in the unit of the targets."""
        return self.range.scale * float((predicted - targets).double().abs().mean())

    def measures(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float | None]:
        """MAE and RMSE in the unit of the targets; R2, None where all targets are the same."""
        error = (self.predicted(outputs) - targets).double()
        centred = (targets.double() - targets.double().mean()).square().sum()
        constant = bool((targets == targets[0]).all())
        return {
            "mae": self.range.scale * float(error.abs().mean()),
            "rmse": self.range.scale * float(error.square().mean().sqrt()),
            "r2": None if constant else 1.0 - float(error.square().sum() / centred),
        }

    def baselines(self, vocabulary: int | None, *, whole: bool) -> Mapping[str, Learner]:
        """The mean of a client's own targets."""
        from dpfedmeta.learning.evaluation.baselines import OwnMean

        return {"own_mean": OwnMean()}

    def alone(self, vocabulary: int | None, counts: tuple[int, ...]) -> Mapping[str, Scorer]:
        """Ridge regression, and the mean of a person's own targets."""
        from dpfedmeta.learning.evaluation.baselines import OwnMean, OwnRidge

        return {"each alone: ridge regression": OwnRidge(), "mean of own targets": OwnMean()}


MEMBER = Regression
