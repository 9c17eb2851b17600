"""Federated averaging (McMahan et al. 2017, https://arxiv.org/abs/1602.05629).

Where records are promised something its steps are DP-SGD (Abadi et al. 2016, https://arxiv.org/abs/1607.00133).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.accounting.events.record_layer import AccountantName, RecordLayer
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.row_layout import RoleLayout
from dpfedmeta.learning.algorithms.maml import Maml, message_rows, whole_client_trial
from dpfedmeta.learning.meta.adaptation import Adaptation, adaptation_of, first_order_only, undivided_only
from dpfedmeta.learning.meta.algorithm import ClientContext, ClientNoise, DataNeeds, NetworkTrial, NetworkWeights, Sends
from dpfedmeta.learning.meta.row_layouts import role_layout
from dpfedmeta.learning.meta.target_kind import targets_of

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
class LocalDpSgd:
    """Noise in the local steps.

    Attributes:
        clip: C_s.
        noise: z_s.
        accountant: What composes them.
    """

    clip: float
    noise: float
    accountant: AccountantName


@dataclass(frozen=True, kw_only=True)
class FedAvg(NetworkWeights):
    """Federated averaging: a client sends theta_0 - theta_K of local training on all its records.

    Attributes:
        adaptation: Number and size of the steps.
        records: n, the records of a client; a public constant.
        batch: B, records of a step; with record-level privacy the expected number. None: all.
        private: Noise in the steps (local DP-SGD), or None.
        layout: Places of rows by their hash, where records are promised something and clients hold rows of their own.
        own_head: Whether a head that is not learned adapts in the steps and stays with the client, as in FedPer
            (Arivazhagan et al. 2019, https://arxiv.org/abs/1912.00818): a head at zero passes no gradient on.

    Guarantee:
        Without `private`, none by itself: a message is secret and unbounded until it is clipped, summed and released.
        With `private`, see learning.record_dp.local_training.private_local_update.
    """

    adaptation: Adaptation
    records: int
    batch: int | None = None
    private: LocalDpSgd | None = None
    own_head: bool = False
    layout: RoleLayout | None = None
    plain_steps: ClassVar[bool] = True
    sends: ClassVar[Sends] = "update"
    few_shot: ClassVar[bool] = False
    # Its messages are clipped like exact ones; what the noise in its steps promises holds before that.
    releases: ClassVar[bool] = False
    message_deviation: ClassVar[float] = 0.0
    parts: ClassVar[int] = 1

    @classmethod
    def planned(cls, settings: Settings, task: Task) -> FedAvg:
        """Build the method from the settings.

        Raises:
            InputError: A setting does not fit the method.
        """
        first_order_only(settings)
        undivided_only(settings)
        if settings.meta.adapt == "head":
            raise InputError(
                "meta.adapt = head: has no effect on federated averaging; use --meta.learn, or --meta.method anil"
            )
        record, sizes = settings.record, settings.task
        few_shot = sizes.ways * (sizes.shots + sizes.queries)
        records = settings.population.records if task.shared_classes else few_shot
        if record.enabled and (settings.meta.batch or 0) > records:
            raise InputError(f"meta.batch = {settings.meta.batch}: a client holds only {records} records; lower it")
        clip = record.support_clip or record.support_clip_ratio * settings.clip.initial
        private = LocalDpSgd(clip=clip, noise=record.support_noise or 1.0, accountant=record.accountant)
        return cls(
            adaptation=adaptation_of(settings, "all", targets=targets_of(task)),
            records=records,
            batch=settings.meta.batch,
            private=private if record.enabled else None,
            own_head=settings.population.episodes == "whole",
            layout=role_layout(settings, task) if record.enabled else None,
        )

    @property
    def needs(self) -> DataNeeds:
        """Records of any role."""
        return DataNeeds(queries=False, layout=self.layout)

    def record_layer(self) -> RecordLayer | None:
        """K steps on mini-batches that the client draws for itself."""
        if self.private is None:
            return None
        return RecordLayer(
            support_noise=self.private.noise,
            query_noise=None,
            support_steps=self.adaptation.steps,
            support_records=self.records,
            query_records=1,
            batch_rate=(self.batch or self.records) / self.records,
            accountant=self.private.accountant,
            rows=self.layout is not None,
        )

    def with_noise(self, layer: RecordLayer) -> FedAvg:
        """Return the same method with the solved noise multiplier z_s."""
        if self.private is None or layer.support_noise is None:
            return self
        return replace(self, private=replace(self.private, noise=layer.support_noise))

    def quiet(self, *, support: bool, noise: float) -> FedAvg:
        """Its noise is in the steps."""
        return self if support or self.private is None else replace(self, private=replace(self.private, noise=noise))

    def learned(self, network: NetworkSpec, weights: Params) -> Params:
        """Return the weights that are learned and sent, by meta.learn."""
        return Maml.learned(self, network, weights)  # type: ignore[arg-type]

    def together(self, engine: PerRecordGradients, device: str, chunk: int | None) -> int | None:
        """Return 1: one call of `messages` takes one client."""
        return 1

    def messages(
        self, context: ClientContext, episodes: Sequence[Episode], bound: float, noises: Sequence[ClientNoise]
    ) -> Iterator[Params | Released[RecordUnit, Params]]:
        """Updates, exact or by noisy steps."""
        from dpfedmeta.learning.models.functional import head_of
        from dpfedmeta.learning.record_dp.local_training import LocalSteps, local_update, private_local_update

        how = self.adaptation
        steps = LocalSteps(steps=how.steps, batch=self.batch, lr=how.lr, balance=how.balance, targets=how.targets)
        head = head_of(context.fixed) if self.own_head else {}
        for episode, noise in zip(episodes, noises, strict=True):
            own = (context.module, {**context.learned, **head}, context.fixed, episode.to(context.device))
            if self.private is None:
                update = local_update(*own, steps, noise.batches)
                yield {name: update[name] for name in context.learned}
            else:
                # Clipped again for the client-level promise, as if it were exact.
                yield private_local_update(*own, steps, self.records, self.private, noise.batches, context.engine)

    def shortened(self) -> FedAvg:
        """Two steps on all records; noise decides nothing."""
        adaptation = replace(self.adaptation, steps=min(2, self.adaptation.steps))
        return replace(
            self, adaptation=adaptation, batch=None, private=self.private and replace(self.private, noise=1.0)
        )

    def trial(self, network: NetworkSpec) -> NetworkTrial:
        """Records may mix unless they are promised something."""
        if self.private is None:
            return whole_client_trial(network)
        unit = "gradient of another record"
        return NetworkTrial(unit=unit, one="record", each=1, ways=network.ways, changed=(1, 0), apart=False)

    def units(self, context: ClientContext, episodes: Sequence[Episode]) -> list[Tensor]:
        """SECRET: a message of each client, or a gradient of each record."""
        from dpfedmeta.learning.meta.meta_gradients import logit_rows, rows
        from dpfedmeta.learning.record_dp.local_training import records

        if self.private is None:
            return message_rows(self, context, episodes)
        none: frozenset[str] = frozenset()
        # First, of a network that saw no record yet: what it keeps of a call that maps records cannot be read here.
        logits = logit_rows(context, episodes)
        own = [
            context.engine(context.module, context.learned, context.fixed, none, *records(each)) for each in episodes
        ]
        return [logits, rows(own)]


MEMBER = FedAvg
