"""What clients compute, on synthetic images: their own functions, with as few records as show who moves whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from dpfedmeta.data.episode import Episode
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.meta import (
    MetaSpec,
    MicroSpec,
    RecordSpec,
    contribution,
    local_update,
    meta_gradients,
    micro_slots,
    stacked,
    stacked_query_gradients,
)
from dpfedmeta.meta.dp_steps import query_gradients, support_gradients, support_phase
from dpfedmeta.meta.local_training import records
from dpfedmeta.models.functional import apply, head_of
from dpfedmeta.models.initial import initial_weights
from dpfedmeta.models.registry import build_network, learned_part
from dpfedmeta.models.spec import NetworkSpec
from dpfedmeta.models.ways import with_ways
from dpfedmeta.parameters import Params
from dpfedmeta.privacy.per_record import per_record_engine
from dpfedmeta.randomness import KeyedSource, Purpose
from dpfedmeta.settings import Settings

Kind = Literal["steps", "micro-episodes", "local", "exact"]
"""Per-record gradients of support and query phase, micro-episodes, local DP-SGD, or exact messages."""

_CLIENTS = 2
# How many of the first client's support and query images are others: one record of each phase, the records of a class
# in the first micro-episode, one record, all.
_CHANGED: Mapping[Kind, tuple[int | None, int | None]]
_CHANGED = {"steps": (1, 1), "micro-episodes": (2, 0), "local": (1, 0), "exact": (None, None)}


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What is tried out; equal ones need it once.

    Attributes:
        network: The network.
        meta: Method and inner loop, at most two steps.
        kind: What has to stay apart.
        engine: Of per-record gradients.
        ways: Of an episode, or of a micro-episode.
        side_by_side: Whether exact messages of several clients are computed at once.
        promise: What would not hold, or None where nothing is promised.
    """

    network: NetworkSpec
    meta: MetaSpec
    kind: Kind
    engine: Literal["auto", "vmap", "opacus"]
    ways: int
    side_by_side: bool
    promise: Literal["record-level", "client-level"] | None

    @property
    def unit(self) -> str:
        """What has to stay where it is."""
        if self.kind == "micro-episodes":
            return "meta-gradient of another micro-episode"
        return "message of another client" if self.kind == "exact" else "gradient of another record"

    @property
    def shape(self) -> EpisodeShape:
        """Of a client: one record of a class in each role, or those of two micro-episodes."""
        each = 2 if self.kind == "micro-episodes" else 1
        return EpisodeShape(ways=self.ways, shots=each, queries=each)

    def weights(self, draw: int) -> tuple[Params, Params]:
        """What is learned, and the rest: the initial values, or a random draw around them."""
        weights = initial_weights(self.network, 0)
        model = learned_part(self.network, weights)
        rest = {name: value for name, value in weights.items() if name not in model}
        _, rest = with_ways(self.network, rest, self.ways)
        return (drawn(model, 2 * draw), drawn(rest, 2 * draw + 1)) if draw else (model, rest)

    def episodes(self, seed: int) -> list[Episode]:
        """The clients' data: dark images, so that a bright one stands out."""
        generator, shape = torch.Generator().manual_seed(seed), self.shape
        labels, image = torch.arange(shape.ways), (self.network.channels, *[self.network.image_size] * 2)
        return [
            Episode(
                support_images=torch.rand(shape.support_records, *image, generator=generator) / 4,
                support_labels=labels.repeat_interleave(shape.shots),
                query_images=torch.rand(shape.query_records, *image, generator=generator) / 4,
                query_labels=labels.repeat_interleave(shape.queries),
            )
            for _ in range(_CLIENTS)
        ]

    def changed(self, episodes: Sequence[Episode], seed: int, brightness: float) -> list[Episode]:
        """With other data of the first client, which belong to the first unit of every phase."""
        first, *others = episodes
        support, query = _CHANGED[self.kind]
        generator = torch.Generator().manual_seed(seed)

        def other(images: Tensor, count: int | None) -> Tensor:
            images = images.clone()
            images[:count] = brightness * torch.rand(images[:count].shape, generator=generator)
            return images

        return [
            replace(
                first,
                support_images=other(first.support_images, support),
                query_images=other(first.query_images, query),
            ),
            *others,
        ]


def rehearsal_of(
    settings: Settings, network: NetworkSpec, meta: MetaSpec, record: RecordSpec | MicroSpec | None, *, private: bool
) -> Rehearsal:
    """What a plan has its clients compute, without the steps, mini-batches and divisions that show nothing more.

    Args:
        settings: For the engine, and where clients are computed.
        network: The network.
        meta: The exact meta-gradient.
        record: The record-level client instead, or None.
        private: Whether there is a client-level mechanism.
    """
    kind: Kind = "steps" if isinstance(record, RecordSpec) else "exact"
    if isinstance(record, MicroSpec):
        kind = "micro-episodes"
    elif record is None and settings.record.enabled:
        kind = "local"
    on_gpu = settings.run.device != "cpu" and torch.cuda.is_available()
    divisions = meta.divisions and replace(meta.divisions, count=min(2, meta.divisions.count), shots=1)
    adaptation = replace(meta.adaptation, steps=min(2, meta.adaptation.steps))
    return Rehearsal(
        network=network,
        meta=replace(meta, adaptation=adaptation, divisions=divisions, batch=None),
        kind=kind,
        engine=settings.record.engine,
        ways=record.shape.ways if isinstance(record, MicroSpec) else network.ways,
        side_by_side=kind == "exact" and meta.stacks("cuda" if on_gpu else "cpu", settings.run.chunk),
        promise="record-level" if settings.record.enabled else "client-level" if private else None,
    )


def drawn(params: Mapping[str, Tensor], seed: int) -> Params:
    """Random values around these, of the size that keeps activations in range; what is 0 is 0 no longer."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + _deviation(value) * torch.randn(value.shape, generator=generator).to(value.dtype)
        for name, value in params.items()
    }


def _deviation(value: Tensor) -> float:
    return 0.5 if value.ndim < 2 else float(max(value[0].numel(), 1) ** -0.5)


class RehearsedClients:
    """A network in the hands of clients, as they use it; it keeps what it keeps from one call to the next."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        spec = replace(rehearsal.network, ways=rehearsal.ways)
        self._network = build_network(spec)
        self._engine = per_record_engine(rehearsal.engine)
        self._rehearsal = rehearsal

    def __call__(self, model: Params, fixed: Params, episodes: Sequence[Episode]) -> list[Tensor]:
        """[units, d] of every phase: records, micro-episodes or clients, that of the changed data first."""
        kind = self._rehearsal.kind
        if kind == "exact":
            return [_rows(self._messages(model, fixed, episodes))]
        if kind == "micro-episodes":
            return [_rows([self._micro(model, fixed, episodes)])]
        # Where records are mapped one by one a mixture of them does not show, but the network would be another one.
        images = torch.cat([episode.support_images for episode in episodes])
        with torch.no_grad():
            logits = _rows([{"": apply(self._network, {**fixed, **model}, images, None)}])
        if kind == "steps":
            return [logits, *self._steps(model, fixed, episodes)]
        none: frozenset[str] = frozenset()
        local = [self._engine(self._network, model, fixed, none, *records(episode)) for episode in episodes]
        return [logits, _rows(local)]

    def _messages(self, model: Params, fixed: Params, episodes: Sequence[Episode]) -> list[Params]:
        meta, network = self._rehearsal.meta, self._network
        if self._rehearsal.side_by_side:
            return [stacked_query_gradients(network, model, fixed, stacked(episodes), meta.adaptation, meta.order)]
        found = []
        for client, episode in enumerate(episodes):
            if meta.message == "local":
                batches = KeyedSource(0).generator(Purpose.LOCAL_BATCHES, 0, client)
                message = local_update(network, model, fixed, episode, meta.local, batches)
            else:
                message = contribution(network, model, fixed, episode, meta)
            found.append({name: value[None] for name, value in message.items()})
        return found

    def _micro(self, model: Params, fixed: Params, episodes: Sequence[Episode]) -> Params:
        held, meta = self._rehearsal.shape, self._rehearsal.meta
        shape = replace(held, shots=1, queries=1)
        spec = MicroSpec(client=held, shape=shape, order=meta.order, adaptation=meta.adaptation, noise=1.0)
        return meta_gradients(self._network, model, fixed, episodes, micro_slots(held, shape), spec)

    def _steps(self, model: Params, fixed: Params, episodes: Sequence[Episode]) -> list[Tensor]:
        """Support and query phase; clients together where that is how they are computed, else one by one."""
        weights, adaptation = {**fixed, **model}, self._rehearsal.meta.adaptation
        start = head_of(weights) if adaptation.adapt == "head" else weights
        size = len(episodes) if adaptation.one_body and self._engine.batches else 1
        support: list[Params] = []
        query: list[Params] = []
        for first in range(0, len(episodes), size):
            group = episodes[first : first + size]
            phase = support_phase(self._network, weights, group, adaptation.adapt)
            support += support_gradients(phase, [phase.start] * size, self._engine)
            # After a step whose noise is the client's own.
            thetas = [drawn(start, 100 + first + number) for number in range(size)]
            query += query_gradients(self._network, model, weights, thetas, group, self._engine)
        return [_rows(support), _rows(query)]


def _rows(units: Sequence[Params]) -> Tensor:
    """[units, d]; a value that is not finite counts as 0, as where gradients are clipped."""
    rows = torch.cat([torch.cat([value.flatten(1) for value in own.values()], dim=1).detach() for own in units])
    return torch.where(rows.isfinite(), rows, 0.0)
