"""MAML (Finn, Abbeel, Levine 2017, https://arxiv.org/abs/1703.03400): the query loss's gradient after adaptation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.adaptation import (
    PLAIN,
    Adaptation,
    Adapts,
    Divisions,
    InnerRule,
    Order,
    adaptation_of,
    whole_batches_only,
)
from dpfedmeta.learning.meta.algorithm import (
    TOGETHER,
    ClientContext,
    ClientNoise,
    DataNeeds,
    Method,
    NetworkTrial,
    NetworkWeights,
    NoRecordNoise,
    Sends,
)
from dpfedmeta.learning.meta.overridden import pair_up
from dpfedmeta.learning.meta.target_kind import targets_of
from dpfedmeta.learning.models.weight_shapes import learned_part

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients


@dataclass(frozen=True, kw_only=True)
class Maml(NoRecordNoise, NetworkWeights):
    """MAML: a client sends the gradient of its query loss at the adapted parameters.

    Attributes:
        order: 2 differentiates through the inner steps (equation 1 of the paper), 1 does not (its section 5.2).
        adaptation: The inner loop; `adapt: head` makes it ANIL (Raghu et al. 2020, https://arxiv.org/abs/1909.09157).
        divisions: Repeated divisions of a client's records, or of each part's, into support and query; None: the
            episode's own division.

    Guarantee:
        None by itself: a message is secret and unbounded until it is clipped, summed and released.
    """

    order: Order
    adaptation: Adaptation
    divisions: Divisions | None = None
    plain_steps: ClassVar[bool] = True
    sends: ClassVar[Sends] = "query"
    few_shot: ClassVar[bool] = True
    releases: ClassVar[bool] = False
    message_deviation: ClassVar[float] = 0.0
    parts: ClassVar[int] = 1
    # Where the settings leave them open.
    default_order: ClassVar[Order] = 2
    # Whether the head is made from the classes that a client holds.
    computes_head: ClassVar[bool] = False
    default_adapt: ClassVar[Adapts] = "all"
    rule: ClassVar[InnerRule] = PLAIN

    def __init_subclass__(cls) -> None:
        """Whoever overrides `gradient` or `gradients` means both."""
        super().__init_subclass__()
        pair_up(cls)

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> Maml:
        """Build the method from the settings.

        Raises:
            InputError: A setting does not fit the method.
        """
        whole_batches_only(settings)
        adaptation = adaptation_of(settings, cls.default_adapt, cls.rule, targets_of(task))
        order = settings.meta.order or cls.default_order
        return cls(order=order, adaptation=adaptation, divisions=_divisions(settings, adaptation))

    def of_parts(self, settings: Settings, shape: EpisodeShape) -> Maml:
        """The same for parts of this shape, each divided on its own."""
        return replace(self, divisions=Divisions.planned(settings, shape))

    @property
    def needs(self) -> DataNeeds:
        """Support and query sets."""
        return DataNeeds(division=self.divisions)

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the weights that are learned and sent, by meta.learn."""
        return learned_part(network, weights)

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Several on a GPU, or where run.chunk asks for it."""
        several = device == "cuda" or (chunk or 1) > 1
        return max(TOGETHER, chunk or 1) if several else 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params]:
        """Exact meta-gradients; clients of the form of the first one together, others one by one."""
        from dpfedmeta.learning.meta.meta_gradients import batched

        if not context.side_by_side or not episodes:
            yield from (self.gradient(context, episode.to(context.device)) for episode in episodes)
            return
        form = self._form(episodes[0])

        def several(part: Sequence[Episode]) -> list[Params]:
            found = self.gradients(context, self._placed(batched(part), context.device))
            return [{name: value[index] for name, value in found.items()} for index in range(len(part))]

        computed = iter(context.pieces(several, [episode for episode in episodes if self._form(episode) == form]))
        for episode in episodes:
            alone = self._form(episode) != form
            yield self.gradient(context, episode.to(context.device)) if alone else next(computed)

    def gradient(self, context: ClientContext, episode: Episode) -> Params:
        """SECRET: one client's meta-gradient."""
        from dpfedmeta.learning.meta.meta_gradients import meta_gradient

        return meta_gradient(
            context.module, context.learned, context.fixed, episode, self.adaptation, self.order, self.divisions
        )

    def gradients(self, context: ClientContext, episodes: Episode) -> Params:
        """SECRET: the meta-gradients of E episodes of one form, each tensor [E, *shape]."""
        from dpfedmeta.learning.meta.meta_gradients import batched_divided_gradients, batched_query_gradients
        from dpfedmeta.learning.meta.partwise_gradients import client_by_client, parts_share_a_pass
        from dpfedmeta.learning.meta.support_query_splits import divided_gradients

        if parts_share_a_pass(context, self.adaptation, episodes):
            return client_by_client(context, episodes, self.adaptation, self.order, self.divisions)
        if self.divisions is not None:
            return (batched_divided_gradients if context.side_by_side else divided_gradients)(
                context.module, context.learned, context.fixed, episodes, self.adaptation, self.order, self.divisions
            )
        return batched_query_gradients(
            context.module, context.learned, context.fixed, episodes, self.adaptation, self.order
        )

    def _placed(self, episodes: Episode, device: torch.device) -> Episode:
        """On the device; labels that are read to divide records stay with the host."""
        there = episodes.to(device)
        if self.divisions is None:
            return there
        return replace(there, support_labels=episodes.support_labels, query_labels=episodes.query_labels)

    def _form(self, episode: Episode) -> tuple[object, ...]:
        """Return the shapes that clients of one call must share; with divisions, the number of classes too."""
        shapes = (episode.support_images.shape, episode.query_images.shape)
        if self.divisions is None:
            return shapes
        return (*shapes, *(int(labels.max()) for labels in (episode.support_labels, episode.query_labels)))

    def shortened(self) -> Maml:
        """Two steps, two divisions."""
        divisions = self.divisions and replace(self.divisions, count=min(2, self.divisions.count), shots=1)
        adaptation = replace(self.adaptation, steps=min(2, self.adaptation.steps))
        return replace(self, adaptation=adaptation, divisions=divisions)

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """All data of a client are others; no other client's message may move."""
        return whole_client_trial(network)

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: a message of each client."""
        return message_rows(self, context, episodes)


def whole_client_trial(network: NetworkSpec) -> NetworkTrial:
    """For methods whose messages are exact."""
    return NetworkTrial(
        unit="message of another client", one="client", each=1, ways=network.ways, changed=(None, None), apart=True
    )


def message_rows(method: Method, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
    """SECRET: the message of each client, as a method sends it."""
    from dpfedmeta.learning.meta.meta_gradients import rows

    found = sent_by(method, context, episodes)
    return [rows([{n: v[None] for n, v in own.items()} for own in found if isinstance(own, dict)])]


def sent_by(method: Method, context: ClientContext, episodes: Sequence[Episode]) -> Iterator[object]:
    """SECRET: what a method sends for each client in a trial, whatever it is."""
    from dpfedmeta.core.random.random_sources import KeyedSource, Purpose

    draws = [KeyedSource(0).generator(Purpose.LOCAL_BATCHES, 0, client) for client in range(len(episodes))]
    noises = [ClientNoise(support=own, query=own, batches=own) for own in draws]
    return method.messages(context, episodes, 1.0, noises)


def _divisions(settings: Settings, adaptation: Adaptation) -> Divisions | None:
    sizes = settings.task
    shape = EpisodeShape(ways=sizes.ways, shots=sizes.shots, queries=sizes.queries)
    divisions = Divisions.planned(settings, shape)
    if divisions is not None and (adaptation.adapt != "head" or adaptation.rule != PLAIN):
        raise InputError(
            f"meta.divisions = {settings.meta.divisions}: divisions share one pass through the body, so they need a "
            "meta-gradient that adapts the head (--meta.adapt head, and maml, fomaml or anil); or use "
            "--meta.divisions 1"
        )
    return divisions


MEMBER = Maml
