"""Micro-episodes: a client cuts its records into small episodes and releases one noisy sum of their meta-gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.data.episodes.row_layout import GroupLayout, Slots, micro_slots
from dpfedmeta.data.episodes.shape import EpisodeShape
from dpfedmeta.learning.meta.algorithm import (
    TOGETHER,
    ClientContext,
    ClientNoise,
    DataNeeds,
    NetworkTrial,
    OverMethod,
    in_pieces,
)
from dpfedmeta.learning.meta.overridden import own_parts
from dpfedmeta.learning.meta.row_layouts import episode_shape, group_layout

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.core.params import Params
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import RecordUnit


@dataclass(frozen=True, kw_only=True)
class MicroEpisodes(OverMethod):
    """The record-level half of a client's round, with one release only.

    Attributes:
        method: Whose meta-gradients; no step inside a micro-episode is released, so any order is as private, and any
            number of divisions of its own records.
        client: What a client holds; public constants.
        shape: A micro-episode.
        noise: z_q; None where the server sees nothing but the sum of all clients' messages, whose noise is enough.
        query_to_message_bound: C_q/C in stacked mode.
        layout: Groups that a row's hash decides over, where clients hold rows of their own; None: records have numbers.

    Guarantee:
        (record, server): see learning.record_dp.micro_episode_gradients.micro_messages; of a sum,
        accounting.observers.server_observer.record_server.
    """

    method: Any
    client: EpisodeShape
    shape: EpisodeShape
    noise: float | None
    query_to_message_bound: float = 1.0
    layout: GroupLayout | None = None
    divides: ClassVar[bool] = True

    @classmethod
    def planned(cls, settings: Settings, task: Task, method: Any) -> MicroEpisodes:
        """Build the release from the settings.

        Raises:
            InputError: A client's records do not fill one micro-episode.
            RefusedPlan: The method has no meta-gradient, or a setting belongs to another kind of release.
        """
        record = settings.record
        if method.sends != "query" or not hasattr(method, "gradients"):
            raise RefusedPlan(
                f"meta.method = {settings.meta.method} with record.release = micro-episodes: these need meta-gradients "
                "(--meta.method maml, fomaml or anil); use one of them, or --record.release steps"
            )
        if "messages" in own_parts(method):
            raise RefusedPlan(
                f"meta.method = {settings.meta.method} with record.release = micro-episodes: its own messages would "
                "not be computed, since a micro-episode is one meta-gradient; override gradient instead"
            )
        client = episode_shape(settings)
        shape = EpisodeShape(
            ways=record.micro_ways or client.ways, shots=record.micro_shots, queries=record.micro_queries
        )
        method = method.of_parts(settings, shape) if hasattr(method, "of_parts") else method
        made = cls(
            method=method,
            client=client,
            shape=shape,
            noise=record.query_noise or 1.0,
            query_to_message_bound=1.0 / record.message_clip_ratio,
            layout=group_layout(settings, task, method, shape),
        )
        _check(settings, made)
        return made

    @property
    def needs(self) -> DataNeeds:
        """Records of the plan's number: cut by number, class by class; or placed by their hash."""
        counts = (self.client.support_records, self.client.query_records)
        return DataNeeds(counts=counts, division=self, layout=self.layout)

    @property
    def linear_head(self) -> bool:
        """True if micro-episodes are divided repeatedly, which requires a linear head."""
        own: DataNeeds = self.method.needs
        return own.division is not None and own.division.linear_head

    def fits(self, episode: Episode) -> bool:
        """Return whether the records are ordered by class, with the planned numbers of support and query records."""
        # A label that belongs to its record moves one micro-episode alone.
        return self.labelled or self.client.ordered(episode.support_labels, episode.query_labels)

    @property
    def labelled(self) -> bool:
        """True if records bring their labels: of a public list, or numbered inside their micro-episode."""
        return self.layout is not None or not self.adaptation.targets.masked

    @property
    def releases(self) -> bool:
        """True if a message carries noise of its own."""
        return self.noise is not None

    @property
    def parts(self) -> int:
        """Meta-gradients that are clipped and rounded one by one where they carry no noise."""
        return 1 if self.releases else len(self.slots())

    @property
    def message_deviation(self) -> float:
        """Standard deviation of a message's own noise over C_q."""
        return (self.noise or 0.0) / len(self.slots())

    def towards_a_sum(self) -> MicroEpisodes:
        """Without noise of its own."""
        return replace(self, noise=None)

    def slots(self) -> Slots:
        """Which records form which micro-episode."""
        return micro_slots(self.client, self.shape)

    def record_layer(self) -> RecordLayer:
        """Return the record-level layer: one release over M parts; support steps release nothing."""
        return RecordLayer(
            support_noise=None,
            query_noise=self.noise,
            support_steps=1,
            support_records=1,
            query_records=len(self.slots()),
            parts="micro-episodes",
            query_to_message_bound=self.query_to_message_bound,
            of_sum=not self.releases,
            rows=self.layout is not None,
        )

    def with_noise(self, layer: RecordLayer) -> MicroEpisodes:
        """Return the same release with the solved noise multiplier z_q."""
        return replace(self, noise=layer.query_noise or self.noise)

    def quiet(self, *, support: bool, noise: float) -> MicroEpisodes:
        """Return the same release with a negligible noise multiplier."""
        return replace(self, noise=noise)

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """All at once, but for an engine that takes one client at a time; on a GPU as many as of other methods."""
        if not engine.batches:
            return 1
        return TOGETHER if device == "cuda" else None

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params | Released[RecordUnit, Params]]:
        """Released towards the server; or SECRET meta-gradients [M, ...]."""
        from dpfedmeta.learning.record_dp.micro_episode_gradients import micro_episodes, micro_messages

        own = self._of_parts(context)

        def released(part: Sequence[tuple[Episode, ClientNoise]]) -> list[Released[RecordUnit, Params]]:
            placed, noise = [episode.to(context.device) for episode, _ in part], [noise.query for _, noise in part]
            return micro_messages(lambda parts: self.method.gradients(own, parts), placed, bound, noise, self)

        def exact(part: Sequence[Episode]) -> list[Params]:
            placed = [episode.to(context.device) for episode in part]
            gradients = self.method.gradients(own, micro_episodes(placed, self))
            split = {name: value.detach().chunk(len(placed)) for name, value in gradients.items()}
            parts = [{name: each[client] for name, each in split.items()} for client in range(len(placed))]
            # One part is a message as it is.
            return parts if self.parts > 1 else [{n: each[0] for n, each in sent.items()} for sent in parts]

        if self.releases:
            yield from in_pieces(context, released, list(zip(episodes, noises, strict=True)))
        elif episodes:
            yield from in_pieces(context, exact, episodes)

    def _of_parts(self, context: ClientContext) -> ClientContext:
        """The network for the ways of a micro-episode; its head starts at zero for any number of classes."""
        from dpfedmeta.learning.models.initial_weights import with_ways

        outputs = self.adaptation.targets.outputs(self.shape.ways)
        spec, fixed = with_ways(context.network, context.fixed, outputs)
        return replace(context, network=spec, module=context.built(spec), fixed=fixed, parts=len(self.slots()))

    def shortened(self) -> MicroEpisodes:
        """Two parts of one record of each class and role, two steps in each."""
        one = EpisodeShape(ways=self.shape.ways, shots=1, queries=1)
        two = EpisodeShape(ways=self.shape.ways, shots=2, queries=2)
        return replace(self, method=self.method.shortened(), client=two, shape=one, noise=1.0)

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """The records of a class in the first micro-episode are others."""
        unit = "meta-gradient of another micro-episode"
        return NetworkTrial(unit=unit, one="record", each=2, ways=self.shape.ways, changed=(2, 0), apart=True)

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: a meta-gradient of each micro-episode."""
        from dpfedmeta.learning.meta.meta_gradients import rows
        from dpfedmeta.learning.record_dp.micro_episode_gradients import micro_episodes

        return [rows([self.method.gradients(self._of_parts(context), micro_episodes(episodes, self))])]


def _check(settings: Settings, made: MicroEpisodes) -> None:
    client, shape, record = made.client, made.shape, settings.record
    if record.support_noise is not None:
        raise RefusedPlan(
            "record.support_noise with record.release = micro-episodes: they release no support steps; give "
            "record.query_noise"
        )
    if record.engine == "opacus":
        raise InputError("record.engine = opacus: cannot compute micro-episodes; use --record.engine auto or vmap")
    if made.adaptation.targets.masked and settings.meta.learn == "all" and shape.ways != client.ways:
        raise InputError(
            f"record.micro_ways = {shape.ways}: meta.learn = all learns a head for task.ways = {client.ways} classes, "
            "so both must be equal; use --meta.learn body, or --record.micro_ways null"
        )
    if not made.slots():
        raise InputError(
            f"record.micro_ways, micro_shots, micro_queries: {shape.ways} classes of {shape.shots} + {shape.queries} "
            f"images do not fit into a client with {client.ways} classes of {client.shots} + {client.queries}"
        )


MEMBER = MicroEpisodes
