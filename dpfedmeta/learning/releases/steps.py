"""DP-AGRLR as published (ACSAC 2022, Algorithm 3): noisy support steps, and a noisy query gradient or update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import RefusedPlan
from dpfedmeta.data.episodes.row_layout import RoleLayout
from dpfedmeta.learning.meta.adaptation import PLAIN
from dpfedmeta.learning.meta.algorithm import (
    TOGETHER,
    ClientContext,
    ClientNoise,
    DataNeeds,
    Method,
    NetworkTrial,
    OverMethod,
    in_pieces,
)
from dpfedmeta.learning.meta.overridden import own_parts
from dpfedmeta.learning.meta.row_layouts import role_layout

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
class Steps(OverMethod):
    """The record-level half of a client's round.

    Attributes:
        method: What it is put on.
        support_noise: z_s.
        query_noise: z_q; not used where the update is sent.
        support_clip: C_s, a constant of the plan; None: support_clip_ratio * C_q.
        support_clip_ratio: C_s/C_q, a constant of the plan.
        support_records: n_s, the public denominator of a support step.
        query_records: n_q.
        query_to_message_bound: C_q/C in stacked mode.
        layout: Places of rows by their hash, where clients hold rows of their own and labels are of a public list.

    Guarantee:
        (record, server): see learning.record_dp.noisy_steps.private_messages.
    """

    method: Method
    support_noise: float
    query_noise: float
    support_clip: float | None
    support_clip_ratio: float
    support_records: int
    query_records: int
    query_to_message_bound: float = 1.0
    layout: RoleLayout | None = None
    releases: ClassVar[bool] = True
    parts: ClassVar[int] = 1

    @classmethod
    def planned(cls, settings: Settings, task: Task, method: Method) -> Steps:
        """Build the release from the settings.

        Raises:
            RefusedPlan: The support records would be read without noise, or a message would be unbounded.
        """
        record, sizes, name = settings.record, settings.task, settings.meta.method
        if getattr(method, "order", 1) == 2:
            raise RefusedPlan(
                "meta.order = 2 with record-level privacy: the Hessian terms of the meta-gradient depend on the "
                "support records, and no noise covers them; use --order 1, or --record.release micro-episodes"
            )
        if not method.plain_steps:
            raise RefusedPlan(
                f"meta.method = {name} with record.release = steps: it uses support records outside its gradient "
                "steps, and no noise covers that; use --record.release micro-episodes"
            )
        own = own_parts(method)
        if own or method.adaptation.rule != PLAIN:
            what = " and ".join(own) or "inner rule"
            raise RefusedPlan(
                f"meta.method = {name} with record.release = steps: its own {what} would not be computed, since noisy "
                "steps are gradient steps at one rate; use --record.release micro-episodes"
            )
        if method.sends == "update" and settings.server.noise_mode == "shared":
            raise RefusedPlan(
                f"meta.method = {name} with server.noise_mode = shared: the update is not bounded before its last "
                "noise, so that noise cannot count at the server too; use --server.noise_mode stacked"
            )
        # A role without a noise of its own gets the balanced one; solved noises replace both.
        root = method.adaptation.steps**0.5
        query = record.query_noise or (record.support_noise or root) / root
        return cls(
            method=method,
            support_noise=record.support_noise or query * root,
            query_noise=query,
            support_clip=record.support_clip,
            support_clip_ratio=record.support_clip_ratio,
            support_records=sizes.ways * sizes.shots,
            query_records=sizes.ways * sizes.queries,
            query_to_message_bound=1.0 / record.message_clip_ratio,
            layout=role_layout(settings, task),
        )

    @property
    def sends_update(self) -> bool:
        """True if the message is the noisy support update."""
        return self.method.sends == "update"

    @property
    def needs(self) -> DataNeeds:
        """Exactly n_s and n_q records: the accountant counts with them."""
        return DataNeeds(counts=(self.support_records, self.query_records), layout=self.layout)

    @property
    def message_deviation(self) -> float:
        """Standard deviation of a query message's own noise over C_q."""
        return self.query_noise / self.query_records

    def towards_a_sum(self) -> Steps:
        """Return the same release: an observer that sees less than every message learns no more."""
        return self

    def record_layer(self) -> RecordLayer:
        """K support releases and one query release, or the former alone."""
        return RecordLayer(
            support_noise=self.support_noise,
            query_noise=None if self.sends_update else self.query_noise,
            support_steps=self.adaptation.steps,
            support_records=self.support_records,
            query_records=self.query_records,
            query_to_message_bound=self.query_to_message_bound,
            rows=self.layout is not None,
        )

    def with_noise(self, layer: RecordLayer) -> Steps:
        """Return the same release with the solved noise multipliers z_s and z_q."""
        support, query = layer.support_noise or self.support_noise, layer.query_noise or self.query_noise
        return replace(self, support_noise=support, query_noise=query)

    def quiet(self, *, support: bool, noise: float) -> Steps:
        """Return the same release with negligible noise on messages, and in support steps unless `support`."""
        return replace(self, support_noise=self.support_noise if support else noise, query_noise=noise)

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """All at once where they share a body and the engine takes weights that differ from record to record.

        On a GPU their bodies may differ too: many small convolutions in one call are what it is for.
        """
        if not engine.batches:
            return 1
        if device == "cuda":
            return TOGETHER
        return None if self.adaptation.one_body else 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Released[RecordUnit, Params]]:
        """Released towards the server."""
        from dpfedmeta.learning.record_dp.noisy_steps import private_messages

        module, learned, fixed = context.module, context.learned, context.fixed

        def released(part: Sequence[tuple[Episode, ClientNoise]]) -> list[Released[RecordUnit, Params]]:
            placed, own = [episode.to(context.device) for episode, _ in part], [noise for _, noise in part]
            return private_messages(module, learned, fixed, placed, bound, own, self, context.engine)

        yield from in_pieces(context, released, list(zip(episodes, noises, strict=True)))

    def shortened(self) -> Steps:
        """Two steps; noise decides nothing."""
        return replace(self, method=self.method.shortened(), support_noise=1.0, query_noise=1.0)

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """Return the test of a network: one support and one query record are replaced."""
        unit = "gradient of another record"
        return NetworkTrial(unit=unit, one="record", each=1, ways=network.ways, changed=(1, 1), apart=False)

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: per-record gradients of support and query phase; clients together where that is how they go."""
        from dpfedmeta.learning.meta.meta_gradients import drawn, logit_rows, rows
        from dpfedmeta.learning.models.trainable import adapting
        from dpfedmeta.learning.record_dp.noisy_steps import query_gradients, support_gradients, support_phase

        module, learned, adapt = context.module, context.learned, self.adaptation.adapt
        weights = {**context.fixed, **learned}
        start = adapting(module, weights, adapt)
        most = self.together(context.engine, "cuda" if context.side_by_side else "cpu", None) or len(episodes)
        size = min(most, len(episodes))
        # First, of a network that saw no record yet: what it keeps of a call that maps records cannot be read here.
        logits = logit_rows(context, episodes)
        support: list[Params] = []
        query: list[Params] = []
        for first in range(0, len(episodes), size):
            group = episodes[first : first + size]
            phase = support_phase(module, weights, group, adapt)
            support += support_gradients(phase, [phase.start] * len(group), context.engine)
            # After a step whose noise is the client's own.
            thetas = [drawn(start, 100 + first + number) for number in range(len(group))]
            query += query_gradients(module, learned, weights, thetas, group, context.engine)
        return [logits, rows(support), rows(query)]


MEMBER = Steps
