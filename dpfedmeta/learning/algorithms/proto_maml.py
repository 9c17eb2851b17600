"""ProtoMAML (Triantafillou et al. 2020, https://arxiv.org/abs/1903.03096): MAML from class prototypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Adapts, InnerRule

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.data.task import Task


@dataclass(frozen=True)
class Prototypes:
    """The linear head that classifies by the nearest class mean (Snell et al. 2017, https://arxiv.org/abs/1703.05175):
    W_k = 2 c_k and b_k = -|c_k|^2 (section 3 of the paper), with c_k the mean of the features of class k."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All of them."""
        return dict(weights)

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """Return `lr`: one step size for all parameters."""
        return lr

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """2 c_k and -|c_k|^2; a class without a support record begins at 0."""
        import torch

        if not len(labels):
            return head
        found = features()
        members = (labels[:, None] == torch.arange(ways, device=labels.device)).to(found.dtype)
        means = members.T @ found / members.sum(0).clamp_min(1.0)[:, None]
        return {"head.weight": 2.0 * means, "head.bias": -means.square().sum(1)}


@dataclass(frozen=True, kw_only=True)
class ProtoMaml(Maml):
    """MAML with that head before the first step; the gradient flows through the prototypes into the body."""

    plain_steps: ClassVar[bool] = False
    computes_head: ClassVar[bool] = True
    default_adapt: ClassVar[Adapts] = "head"
    rule: ClassVar[InnerRule] = Prototypes()

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings.

        Raises:
            InputError: The settings learn a head, which no client would start from.
        """
        if settings.meta.learn == "all":
            raise InputError("meta.learn = all: ProtoMAML computes each client's head; use --meta.learn body")
        return super().planned(settings, task)


MEMBER = ProtoMaml
