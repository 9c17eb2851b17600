"""Interface of what records are labelled with: classes, or numbers to predict; and how a kind is added.

A kind (learning/targets/, the key `kind` of a task file) says which loss a network is trained with, what its outputs
mean and how predictions are judged. It is a value that can be sent to a worker process. Its file imports PyTorch only
where something is computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, Protocol

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.plugins import plugin_registry as members
from dpfedmeta.learning.targets.classification import OWN_CLASSES

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.evaluation.baselines import Learner, Scorer

KINDS = "dpfedmeta.learning.targets"
_PARTS = (
    *("numbers", "masked", "score_name", "measure_names", "higher_is_better", "outputs", "sound", "blank", "loss"),
    *("residuals", "predicted", "score", "measures", "baselines", "alone"),
)
Balance = Literal["classes", "records"]


class TargetKind(Hashable, Protocol):
    """Kind of the targets of a task.

    Attributes:
        numbers: Whether targets are numbers (float32) rather than classes (int64).
        score_name: What `score` is called in files: accuracy or error.
        measure_names: Names of all measures; the first is the one that models are compared by.
        higher_is_better: Whether a larger score is the better one.
    """

    numbers: ClassVar[bool]
    score_name: ClassVar[str]
    measure_names: ClassVar[tuple[str, ...]]
    higher_is_better: ClassVar[bool]

    @classmethod
    def planned(cls, task: Task) -> TargetKind:
        """Build the kind from the task file.

        Raises:
            InputError: Something is missing in it, or does not belong to this kind.
        """
        ...

    @property
    def masked(self) -> bool:
        """True if outputs stand for the classes of one client alone, so that no head fits all."""
        ...

    def outputs(self, ways: int) -> int:
        """Number of outputs of the network, for clients that hold so many classes."""
        ...

    def sound(self, targets: Tensor, outputs: int) -> bool:
        """Return whether a client's targets [n] have the form that the loss takes."""
        ...

    def blank(self, count: int) -> Tensor:
        """Return targets [count] in the place of those that are not sound."""
        ...

    def loss(self, outputs: Tensor, targets: Tensor, reduction: Literal["mean", "sum", "none"] = "mean") -> Tensor:
        """The loss of outputs [n, d] against targets [n]; none: of each record.

        Guarantee:
            A sum of one term for each record: nothing of one record enters the term of another one.
        """
        ...

    def residuals(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The derivative of each record's loss by its outputs, [..., n, d]; differentiable once more."""
        ...

    def predicted(self, outputs: Tensor) -> Tensor:
        """Predictions [n] in the form of targets."""
        ...

    def score(self, predicted: Tensor, targets: Tensor) -> float:
        """Judge predictions of one client, by the first measure."""
        ...

    def measures(self, outputs: Tensor, targets: Tensor) -> Mapping[str, float | None]:
        """All measures of one client's outputs, by `measure_names`; None where one is not defined."""
        ...

    def baselines(self, vocabulary: int | None, *, whole: bool) -> Mapping[str, Learner]:
        """Baselines without a network, by the ends of their names in summary.json; `whole`: of ragged clients."""
        ...

    def alone(self, vocabulary: int | None, counts: tuple[int, ...]) -> Mapping[str, Scorer]:
        """Baselines from a person's own records alone, by their words; `counts` are the records of each class."""
        ...


def targets_of(task: Task) -> TargetKind:
    """The kind of a task's targets.

    Raises:
        InputError: There is no such kind, it breaks its protocol, or the task file does not fit it.
    """
    if task.kind == "classification" and not task.labels and task.targets is None:
        return OWN_CLASSES
    member = members.find("kind", task.kind, KINDS)
    members.check_protocol("kind", task.kind, member, "planned")
    made: TargetKind = members.planned("kind", task.kind, member.planned, task)
    members.check_protocol("kind", task.kind, made, *_PARTS)
    if ":" in task.kind:
        _check_residuals(task.kind, made)
    return made


@lru_cache(maxsize=16)
def _check_residuals(name: str, kind: TargetKind) -> None:
    """Refuse a kind whose residuals are not the derivative of its loss: some inner loops use one, others the other.

    Raises:
        InputError: They are not, or one of them fails.
    """
    import torch

    from dpfedmeta.core.plugins.user_code import raised

    records, generator = 8, torch.Generator().manual_seed(0)
    outputs = 2.0 * torch.randn(records, kind.outputs(3), generator=generator).requires_grad_()
    for targets in _sound_targets(kind, records, outputs.shape[1]):
        try:
            (derivative,) = torch.autograd.grad(kind.loss(outputs, targets, "sum"), outputs)
            found = kind.residuals(outputs, targets).detach()
        except Exception as error:  # the user's own code
            raise InputError(f"kind = {name}: its loss or residuals failed in a trial ({raised(error)})") from error
        if found.shape != derivative.shape or not torch.allclose(found, derivative, rtol=1e-3, atol=1e-5):
            raise InputError(
                f"kind = {name}: its residuals are not the derivative of its loss by the outputs, so inner loops would "
                "follow different losses; override both, or none"
            )


def _sound_targets(kind: TargetKind, records: int, outputs: int) -> list[Tensor]:
    """Targets of made-up records that the kind takes."""
    import torch

    made = torch.linspace(-2.0, 2.0, records) if kind.numbers else torch.arange(records) % outputs
    return [each for each in (made, kind.blank(records)) if kind.sound(each, outputs)]


def record_weights(labels: Tensor, ways: int) -> Tensor:
    """The weight of each record in a mean over classes: float32 [n], all of one class together n / (classes held).

    Args:
        labels: [n], in range(ways).
        ways: Classes that labels may name; those without a record count for nothing.
    """
    import torch

    counts = (labels[:, None] == torch.arange(ways, device=labels.device)).sum(0)
    each = len(labels) / ((counts > 0).sum() * counts[labels])
    return each.to(torch.float32)


def mean_loss(outputs: Tensor, labels: Tensor, balance: Balance, targets: TargetKind = OWN_CLASSES) -> Tensor:
    """The loss of outputs [n, ways]: its mean over records, or over classes of the mean over each one's records."""
    if balance == "records":
        return targets.loss(outputs, labels)
    return (record_weights(labels, outputs.shape[-1]) * targets.loss(outputs, labels, "none")).mean()
