"""Moments of records with noise inside each client: what it sends may be seen by the server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dpfedmeta.accounting.events.record_layer import RecordLayer
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.learning.meta.algorithm import ClientContext, ClientNoise, DataNeeds, NetworkTrial, OverMethod

if TYPE_CHECKING:
    from torch import Tensor

    from dpfedmeta.config.settings import Settings
    from dpfedmeta.core.params import Params
    from dpfedmeta.core.random.random_sources import IntArray, SecretGenerator
    from dpfedmeta.data.episodes.episode import Episode
    from dpfedmeta.data.task import Task
    from dpfedmeta.learning.models.spec import NetworkSpec
    from dpfedmeta.learning.record_dp.per_example_gradients import PerRecordGradients
    from dpfedmeta.learning.record_dp.whole_moments import WholeMoments
    from dpfedmeta.privacy.mechanisms import Released
    from dpfedmeta.privacy.units import RecordUnit


@dataclass(frozen=True, kw_only=True)
class NoisyMoments(OverMethod):
    """The record-level half of a client's round: its moments, and noise for what one record moves of them.

    Attributes:
        method: Whose moments.
        noise: z_q; None where the server sees nothing but the sum of all clients' messages, whose noise is enough.
        query_to_message_bound: C_q/C, where the server clips a noisy message again (stacked mode).

    Guarantee:
        (record, server): see learning.record_dp.moment_messages.noisy_moments; of a sum, `WholeMoments.message`.
    """

    method: Any
    noise: float | None
    query_to_message_bound: float = 1.0

    @classmethod
    def planned(cls, settings: Settings, task: Task, method: Any) -> NoisyMoments:
        """Build the release from the settings.

        Raises:
            InputError: The clip bound is not 1, the unit in which moments are sent.
            RefusedPlan: The method sends no moments, or nothing is proved of these records.
        """
        if not hasattr(method, "moments") or getattr(method, "solves_first", False):
            raise RefusedPlan(
                f"meta.method = {settings.meta.method} with record.release = noisy-moments: clients do not send "
                "moments in every round; use --meta.method moments, or --record.release micro-episodes"
            )
        if settings.record.support_noise is not None:
            raise RefusedPlan(
                "record.support_noise with record.release = noisy-moments: there are no support steps; give "
                "record.query_noise"
            )
        if settings.clip.policy != "constant" or settings.clip.initial != 1.0:
            raise InputError(
                f"clip.policy = {settings.clip.policy}, clip.initial = {settings.clip.initial:g}: moments of records "
                "have a bound of their own, in whose units they are sent; use --clip.policy constant --clip 1"
            )
        return cls(
            method=method,
            noise=settings.record.query_noise or 1.0,
            query_to_message_bound=1.0 / settings.record.message_clip_ratio,
        )

    @property
    def releases(self) -> bool:
        """True if a message carries noise of its own."""
        return self.noise is not None

    @property
    def whole(self) -> WholeMoments | None:
        """Constants of messages that are whole numbers, towards a sum; None: messages carry noise of their own."""
        if self.noise is not None:
            return None
        from dpfedmeta.learning.record_dp.whole_moments import WholeMoments

        return WholeMoments(moments=self.method.moments, records=self.records, scale=self.method.rounding_scale)

    @property
    def parts(self) -> int:
        """Return 1: a message is bounded as a whole."""
        return 1

    @property
    def needs(self) -> DataNeeds:
        """Records of the plan's number, class by class."""
        own: DataNeeds = self.method.needs
        return own

    @property
    def records(self) -> int:
        """n, public."""
        return int(self.method.records)

    @property
    def message_deviation(self) -> float:
        """Standard deviation of a message's own noise over what a record moves."""
        return (self.noise or 0.0) / self.records

    def towards_a_sum(self) -> NoisyMoments:
        """Without noise of its own."""
        return replace(self, noise=None)

    def record_layer(self) -> RecordLayer:
        """One release over n records, in whose blocks each adds its own terms and is in one pair at most."""
        return RecordLayer(
            support_noise=None,
            query_noise=self.noise,
            support_steps=1,
            support_records=1,
            query_records=self.records,
            query_to_message_bound=self.query_to_message_bound,
            parts="records",
            of_sum=not self.releases,
            rows=self.method.layout is not None,
            blocks=self.method.moments.blocks if self.whole is None else self.whole.blocks,
        )

    def with_noise(self, layer: RecordLayer) -> NoisyMoments:
        """Return the same release with the solved noise multiplier z_q."""
        return replace(self, noise=layer.query_noise or self.noise)

    def quiet(self, *, support: bool, noise: float) -> NoisyMoments:
        """Return the same release with a negligible noise multiplier."""
        return replace(self, noise=noise if self.releases else None)

    def form(self, learned: Params) -> Params:
        """Return the form of a message."""
        form: Params = self.method.form(learned)
        return form

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Return 1: one call of `messages` takes one client."""
        return 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params | Released[RecordUnit, Params]]:
        """Released towards the server; or SECRET moments."""
        if self.noise is None:
            yield from self.method.messages(context, episodes, bound, noises)
            return
        from dpfedmeta.learning.record_dp.moment_messages import noisy_moments

        for episode, noise in zip(episodes, noises, strict=True):
            exact = self.method.exact(episode.to(context.device))
            yield noisy_moments(exact, self.records, bound, self.noise, noise.query)

    def whole_message(self, episode: Episode, generator: SecretGenerator) -> IntArray:
        """SECRET: the message of one client towards a sum, in whole numbers.

        Args:
            episode: Its data.
            generator: Its own, for the rounding.
        """
        assert self.whole is not None
        return self.whole.message(self.method.rows(episode), generator)

    def shortened(self) -> NoisyMoments:
        """The same, with some noise."""
        return replace(self, noise=1.0 if self.releases else None)

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """Return the trial of the method: no message passes the network."""
        own: NetworkTrial = self.method.trial(network)
        return own

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: the exact message of each client."""
        found: list[Tensor] = self.method.units(context, episodes)
        return found


MEMBER = NoisyMoments
