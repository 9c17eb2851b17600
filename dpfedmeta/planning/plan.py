"""From settings to a plan: every constant of a run, its promise, and the reasons to refuse it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import nn

from dpfedmeta.accounting.cells import guarantees, running_grid
from dpfedmeta.accounting.guarantee import Guarantee
from dpfedmeta.accounting.plan import PrivacyPlan
from dpfedmeta.data.shape import EpisodeShape
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError
from dpfedmeta.meta import Adaptation, MetaSpec, MicroSpec, PrivateSteps, RecordSpec
from dpfedmeta.models.registry import (
    build_network,
    check_first_gain,
    check_has_head,
    check_precision,
    check_records_uncoupled,
)
from dpfedmeta.models.spec import NetworkSpec
from dpfedmeta.planning.clients import (
    check_protocol,
    episode_shape,
    evaluation_adaptation,
    meta_spec,
    micro_shape,
    network_spec,
)
from dpfedmeta.planning.clip import clip_policy
from dpfedmeta.planning.coupling import check_uncoupled
from dpfedmeta.planning.initial_weights import check_initial
from dpfedmeta.planning.privacy import make_privacy
from dpfedmeta.planning.rehearsal import rehearsal_of
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Mechanism, NoMechanism
from dpfedmeta.privacy.policies import ClipPolicy
from dpfedmeta.privacy.samplers import Sampler, sampler_of
from dpfedmeta.settings import Settings


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, frozen before its first round.

    Attributes:
        settings: What the user gave.
        shape: A client's episode.
        network: The network.
        meta: The exact meta-gradient (without record-level privacy).
        record: The record-level client, or None.
        private_steps: Local DP-SGD of the client, or None.
        evaluation: Adaptation on held-out classes.
        privacy: Every constant that an epsilon depends on.
        planned: The promise: four cells.
    """

    settings: Settings
    shape: EpisodeShape
    network: NetworkSpec
    meta: MetaSpec
    record: RecordSpec | MicroSpec | None
    private_steps: PrivateSteps | None
    evaluation: Adaptation
    privacy: PrivacyPlan
    planned: tuple[Guarantee, ...]

    @property
    def private(self) -> bool:
        """Whether there is a client-level mechanism."""
        return self.privacy.noise_multiplier is not None

    @cached_property
    def running_grid(self) -> float:
        """Grid for the epsilons along the way; the promise itself is computed on its own."""
        return running_grid(self.privacy)

    @property
    def message_clip_ratio(self) -> float | None:
        """C/C_q in stacked mode, where the server clips a message again; else None."""
        stacked = self.record is not None and self.privacy.noise_mode == "stacked"
        return self.settings.record.message_clip_ratio if stacked else None

    @property
    def shortened(self) -> bool:
        """Whether privacy.client.limit ends the run before server.rounds."""
        return self.privacy.rounds < self.settings.server.rounds

    @property
    def message_noise(self) -> float:
        """Deviation of the noise that each client adds to its message, over its sensitivity."""
        return self.privacy.at(0).message_noise

    def sampler(self, round_: int) -> Sampler:
        """Who draws the cohort of a round."""
        return sampler_of(self.privacy.at(round_), self.privacy.max_participations)

    def mechanism(self, round_: int) -> Mechanism:
        """What releases the aggregate of a round."""
        constants = self.privacy.at(round_)
        total, effective = constants.total_noise, constants.effective_noise
        if total is None or effective is None:
            return NoMechanism(denominator=constants.cohort)
        return GaussianMechanism(total_multiplier=total, charged_multiplier=effective, denominator=constants.cohort)

    @property
    def policy(self) -> ClipPolicy[Any]:
        """How the clip bound follows releases."""
        return clip_policy(self.settings, self.privacy)


def make_plan(settings: Settings, task: Task) -> Plan:
    """Check the settings, solve the noise, state the promise.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    check_protocol(settings, task)
    privacy = make_privacy(settings, task)
    meta = meta_spec(settings)
    _check_chunk(settings, meta)
    network = network_spec(settings, task)
    evaluation = evaluation_adaptation(settings)
    heads = "head" in (meta.adaptation.adapt, evaluation.adapt)
    _check_network(network, settings, heads=heads, linear=meta.divisions is not None)
    check_initial(settings, network, task)
    plan = Plan(
        settings=settings,
        shape=episode_shape(settings),
        network=network,
        meta=meta,
        record=_record(settings, privacy, meta),
        private_steps=_private_steps(settings, privacy, meta),
        evaluation=evaluation,
        privacy=privacy,
        planned=guarantees(privacy),
    )
    _ = plan.mechanism(0), plan.policy  # their own checks, before the first round
    check_uncoupled(rehearsal_of(settings, network, meta, plan.record, private=plan.private))
    return plan


def _check_network(spec: NetworkSpec, settings: Settings, *, heads: bool, linear: bool) -> None:
    network = build_network(spec)
    if settings.record.enabled:
        check_records_uncoupled(network, spec, inside_micro_episodes=settings.record.release == "micro-episodes")
    check_precision(network, spec)
    check_first_gain(network, spec)
    if spec.precision == "bfloat16" and settings.record.enabled and settings.record.engine == "opacus":
        raise InputError(
            "record.engine = opacus: its hooks see float32 only; drop run.precision, or use --record.engine auto"
        )
    if heads:
        check_has_head(network, spec.name)
    if linear and not isinstance(network.get_submodule("head"), nn.Linear):
        raise InputError(f"meta.divisions: model.name = {spec.name}: its head must be one torch.nn.Linear")


def _check_chunk(settings: Settings, meta: MetaSpec) -> None:
    """Refuse a number of clients side by side where it would change nothing."""
    if (settings.run.chunk or 1) > 1 and (settings.record.enabled or not meta.stackable):
        raise InputError(
            f"run.chunk = {settings.run.chunk}: only meta-gradients of one support and query set without record-level "
            "privacy are computed for several clients at once; leave it out"
        )


def _private_steps(settings: Settings, privacy: PrivacyPlan, meta: MetaSpec) -> PrivateSteps | None:
    if privacy.record is None or meta.message != "local":
        return None
    return PrivateSteps(
        local=meta.local,
        records=privacy.record.support_records,
        clip=settings.record.support_clip or settings.record.support_clip_ratio * settings.clip.initial,
        noise=privacy.record.support_noise,
    )


def _record(settings: Settings, privacy: PrivacyPlan, meta: MetaSpec) -> RecordSpec | MicroSpec | None:
    if privacy.record is None or meta.message == "local":
        return None
    if privacy.record.message == "episodes":
        return MicroSpec(
            client=episode_shape(settings),
            shape=micro_shape(settings),
            order=meta.order,
            adaptation=meta.adaptation,
            noise=privacy.record.query_noise,
        )
    return RecordSpec(
        message=meta.message,
        adaptation=meta.adaptation,
        support_noise=privacy.record.support_noise,
        query_noise=privacy.record.query_noise,
        support_clip=settings.record.support_clip,
        support_clip_ratio=settings.record.support_clip_ratio,
        support_records=privacy.record.support_records,
        query_records=privacy.record.query_records,
    )
