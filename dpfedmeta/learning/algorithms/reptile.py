"""Reptile (Nichol, Achiam, Schulman 2018, https://arxiv.org/abs/1803.02999): the way that the inner loop goes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.learning.algorithms.maml import Maml
from dpfedmeta.learning.meta.adaptation import Order, first_order_only, undivided_only
from dpfedmeta.learning.meta.algorithm import ClientContext, ClientNoise, Sends

if TYPE_CHECKING:
    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients


@dataclass(frozen=True, kw_only=True)
class Reptile(Maml):
    """Reptile: a client sends theta_0 - theta_K, which the server's optimizer takes as a gradient."""

    order: Order = 1
    sends: ClassVar[Sends] = "update"
    default_order: ClassVar[Order] = 1

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings.

        Raises:
            InputError: The settings ask for second order, or for divisions without record-level privacy.
        """
        first_order_only(settings)
        if not settings.record.enabled:
            undivided_only(settings)
        return super().planned(settings, task)

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Return 1: one call of `messages` takes one client."""
        return 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params]:
        """Exact updates."""
        yield from (self.gradient(context, episode.to(context.device)) for episode in episodes)

    def gradient(self, context: ClientContext, episode: Episode) -> Params:
        """SECRET: one client's update."""
        from dpfedmeta.learning.meta.meta_gradients import inner_update

        return inner_update(context.module, context.learned, context.fixed, episode, self.adaptation)


MEMBER = Reptile
