"""Adaptation of a client to its support set: parameters, number of steps, step size and start. Needs no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params

Adapts = Literal["all", "head"]


class InnerRule(Protocol):
    """Changes that an algorithm makes to the inner loop; a picklable value."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """Those weights that belong to the network: an algorithm may learn others besides."""
        ...

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """The step size, one for all or one for each parameter that adapts."""
        ...

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """theta_0 of the head, from the support set if it likes; `features` passes it through the body."""
        ...


@dataclass(frozen=True)
class PlainRule:
    """Every step at one rate, from the learned initialisation (Finn et al. 2017, https://arxiv.org/abs/1703.03400)."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All of them."""
        return dict(weights)

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """Return `lr`: one step size for all parameters."""
        return lr

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """Return the head as it was learned."""
        return head


PLAIN = PlainRule()


@dataclass(frozen=True, kw_only=True)
class Adaptation:
    """Inner loop of a client: parameters that adapt, number of steps, step size and rule.

    Attributes:
        adapt: All parameters, or the head only.
        steps: K, the number of gradient steps.
        lr: Step size of the mean support loss.
        rule: Changes that the algorithm makes to the steps.
    """

    adapt: Adapts
    steps: int
    lr: float
    rule: InnerRule = PLAIN

    @property
    def one_body(self) -> bool:
        """True if all clients share the body, so that one call computes several.

        Convolutions that adapt differ from client to client; one call could compute them only as many small ones.
        """
        return self.adapt == "head"

    def as_json(self) -> dict[str, object]:
        """For files."""
        return {"adapt": self.adapt, "steps": self.steps, "lr": self.lr}
