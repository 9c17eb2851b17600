"""Prototypical networks (Snell, Swersky, Zemel 2017, https://arxiv.org/abs/1703.05175): no inner step at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.core.params import library_of
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.algorithms.proto_maml import ProtoMaml
from dpfedmeta.learning.meta.adaptation import InnerRule
from dpfedmeta.learning.models.weight_shapes import ADAPTERS
from dpfedmeta.learning.record_dp.closed_heads import members_of
from dpfedmeta.learning.targets.classification import OWN_CLASSES

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.meta.algorithm import ClientContext
    from dpfedmeta.learning.models.spec import NetworkSpec

# Clients of one call over an adapter: more do not stay in a processor's cache.
_SIDE_BY_SIDE = 16


@dataclass(frozen=True)
class CosinePrototypes:
    """The linear head that classifies by the direction of the class mean: W_k = c_k / |c_k| and b_k = 0."""

    def network(self, weights: Mapping[str, Tensor]) -> Params:
        """All of them."""
        return dict(weights)

    def rates(self, weights: Mapping[str, Tensor], lr: float) -> float | Params:
        """Return `lr`; there is no step."""
        return lr

    def start(self, head: Params, features: Callable[[], Tensor], labels: Tensor, ways: int) -> Params:
        """c_k / |c_k|; a class without a support record has 0, so its logit is 0."""
        if not len(labels):
            return head
        found = features()
        members = members_of(labels, ways, found)
        sums = members.T @ found
        directions = sums / library_of(sums).sqrt((sums * sums).sum(1)[:, None] + 1e-12)
        return {"head.weight": directions, "head.bias": 0.0 * members.sum(0)}


@dataclass(frozen=True, kw_only=True)
class ProtoNet(ProtoMaml):
    """A client sends the gradient of its query loss with prototypes of its support set as the head.

    Guarantee:
        None by itself: a message is secret and unbounded until it is clipped, summed and released.
    """

    rule: ClassVar[InnerRule] = CosinePrototypes()

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings; meta.steps and meta.lr are not used.

        Raises:
            InputError: The settings learn a head, or divide a client's records.
        """
        made = super().planned(settings, task)
        adaptation = replace(made.adaptation, adapt="head", steps=0, rule=cls.rule)
        return replace(made, adaptation=adaptation)

    def side_by_side(self, network: NetworkSpec) -> int | None:
        """Return how many clients a CPU computes in one call where run.chunk leaves it open; None: one."""
        return _SIDE_BY_SIDE if network.name in ADAPTERS else None

    def gradient(self, context: ClientContext, episode: Episode) -> Params:
        """SECRET: one client's meta-gradient; in closed form where a CPU has an adapter of this package."""
        found = self._closed_form(context, episode)
        return super().gradient(context, episode) if found is None else found

    def gradients(self, context: ClientContext, episodes: Episode) -> Params:
        """SECRET: the meta-gradients of E episodes of one form, each tensor [E, *shape]; likewise."""
        found = self._closed_form(context, episodes)
        return super().gradients(context, episodes) if found is None else found

    def _closed_form(self, context: ClientContext, episodes: Episode) -> Params | None:
        """Return them, or None where there is none; the answer depends on public values alone."""
        from dpfedmeta.learning.meta.prototype_gradients import has_closed_form, prototype_gradients

        how = self.adaptation
        # Of a rule or a loss of somebody's own nothing is known.
        known = how.rule == CosinePrototypes() and how.targets == OWN_CLASSES
        if not known or context.device.type != "cpu" or not has_closed_form(context.module):
            return None
        weights = {**context.fixed, **context.learned}
        return prototype_gradients(weights, context.learned, episodes, how.balance)


MEMBER = ProtoNet
