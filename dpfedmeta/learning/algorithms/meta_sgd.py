"""Meta-SGD (Li, Zhou, Chen, Li 2017, https://arxiv.org/abs/1707.09835): MAML that learns its inner rates too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import InnerRule
from dpfedmeta.learning.models.spec import HEAD
from dpfedmeta.learning.models.weight_shapes import Shapes

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec

_OWN = "rate/"


@dataclass(frozen=True)
class LearnedRates:
    """theta - alpha * gradient (equation 3 of the paper), alpha of the form of what adapts."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """Theta."""
        return {name: value for name, value in weights.items() if not name.startswith(_OWN)}

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """Alpha."""
        return {name.removeprefix(_OWN): value for name, value in weights.items() if name.startswith(_OWN)}

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """Return the head as it was learned."""
        return head


@dataclass(frozen=True, kw_only=True)
class MetaSgd(Maml):
    """MAML with a learned rate for each parameter that adapts; all begin at meta.lr.

    What a client sends holds the gradient by the rates beside that by the initialisation: one message, one clip bound,
    one noise.
    """

    plain_steps: ClassVar[bool] = False
    rule: ClassVar[InnerRule] = LearnedRates()

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings.

        Raises:
            InputError: The settings ask for first order, which has no derivative by the rates.
        """
        if settings.meta.order == 1:
            raise InputError("meta.order = 1: Meta-SGD differentiates through the inner steps; use --meta.order 2")
        return super().planned(settings, task)

    def initial(self, network: NetworkSpec, seed: int) -> Params:
        """The network's weights, and a rate for each that adapts."""
        import torch

        from dpfedmeta.learning.models.registry import build_network
        from dpfedmeta.learning.models.trainable import adapting

        weights = super().initial(network, seed)
        own = adapting(build_network(network), weights, self.adaptation.adapt)
        rates = {_OWN + name: torch.full_like(value, self.adaptation.lr) for name, value in own.items()}
        return {**weights, **rates}

    def shapes(self, network: NetworkSpec) -> Shapes:
        """Return the shapes of a built-in network's weights, and of a rate for each that adapts."""
        own = super().shapes(network)
        adapting = (name for name in own if self.adaptation.adapt == "all" or name.startswith(HEAD))
        return {**own, **{_OWN + name: own[name] for name in adapting}}

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the weights that are learned and sent, by meta.learn, and all learned step sizes."""
        own = {name: value for name, value in weights.items() if name.startswith(_OWN)}
        return {**super().learned(network, self.adaptation.rule.network(weights)), **own}


MEMBER = MetaSgd
