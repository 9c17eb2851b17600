"""From settings to a plan: every constant of a run, its promise, and the reasons to refuse it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

from dpfedmeta.data.episode import EpisodeShape
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.meta import Adaptation, MetaSpec, RecordSpec
from dpfedmeta.models import NetworkSpec, build_network, check_has_head, check_records_uncoupled
from dpfedmeta.privacy.accounting import Guarantee, guarantees
from dpfedmeta.privacy.calibration import Targets, calibrate
from dpfedmeta.privacy.mechanisms import GaussianMechanism, Mechanism, NoMechanism
from dpfedmeta.privacy.plan import PrivacyPlan, RecordLayer
from dpfedmeta.privacy.policies import ClipPolicy, Constant, Window
from dpfedmeta.privacy.samplers import PoissonSampler
from dpfedmeta.settings import Settings

# method -> (message, order, adapt) where the settings leave them open.
_METHODS: dict[str, tuple[str, int, str]] = {
    "maml": ("query", 2, "all"),
    "fomaml": ("query", 1, "all"),
    "anil": ("query", 2, "head"),
    "reptile": ("update", 1, "all"),
}


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run, frozen before its first round.

    Attributes:
        settings: What the user gave.
        shape: A client's episode.
        network: The network.
        meta: The exact meta-gradient (without record-level privacy).
        record: The record-level client, or None.
        evaluation: Adaptation on held-out classes.
        privacy: Every constant that an epsilon depends on.
        planned: The promise: four cells.
    """

    settings: Settings
    shape: EpisodeShape
    network: NetworkSpec
    meta: MetaSpec
    record: RecordSpec | None
    evaluation: Adaptation
    privacy: PrivacyPlan
    planned: tuple[Guarantee, ...]

    @property
    def private(self) -> bool:
        """Whether there is a client-level mechanism."""
        return self.privacy.noise_multiplier is not None

    @property
    def message_clip_ratio(self) -> float | None:
        """C/C_q in stacked mode, where the server clips a message again; else None."""
        stacked = self.record is not None and self.privacy.noise_mode == "stacked"
        return self.settings.record.message_clip_ratio if stacked else None

    @property
    def sampler(self) -> PoissonSampler:
        """Who is drawn."""
        return PoissonSampler(
            clients=self.privacy.clients,
            cohort=self.privacy.cohort,
            max_participations=self.privacy.max_participations,
            largest=self.privacy.largest_cohort,
        )

    @property
    def mechanism(self) -> Mechanism:
        """What releases the aggregate."""
        total, effective = self.privacy.total_noise, self.privacy.effective_noise
        if total is None or effective is None:
            return NoMechanism(denominator=self.privacy.cohort)
        return GaussianMechanism(total_multiplier=total, charged_multiplier=effective, denominator=self.privacy.cohort)

    @property
    def policy(self) -> ClipPolicy[Any]:
        """How the clip bound follows releases."""
        clip = self.settings.clip
        if clip.policy == "window":
            return Window(initial_bound=clip.initial, window=clip.window)
        return Constant(initial_bound=clip.initial if clip.policy == "constant" else float("inf"))


def make_plan(settings: Settings, task: Task) -> Plan:
    """Check the settings, solve the noise, state the promise.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    privacy = make_privacy(settings)
    meta = _meta(settings)
    network = network_spec(settings, task)
    evaluation = evaluation_adaptation(settings)
    _check_network(network, settings, heads=("head" in (meta.adaptation.adapt, evaluation.adapt)))
    plan = Plan(
        settings=settings,
        shape=_shape(settings),
        network=network,
        meta=meta,
        record=_record(settings, privacy, meta),
        evaluation=evaluation,
        privacy=privacy,
        planned=guarantees(privacy),
    )
    _ = plan.mechanism, plan.policy  # their own checks, before the first round
    return plan


def _check_population(settings: Settings) -> None:
    population = settings.population
    if population.cohort > population.clients:
        raise InputError(
            f"population.cohort = {population.cohort:g} is more than population.clients = "
            f"{population.clients}; lower the one or raise the other"
        )
    delta = settings.privacy.client.delta
    if settings.clip.policy != "none" and delta >= 1 / population.clients:
        warnings.warn(
            f"privacy.client.delta = {delta:g} is not below 1/N = {1 / population.clients:g}: such a guarantee "
            "allows one client of the population to be exposed entirely",
            stacklevel=2,
        )


def _check_promises(settings: Settings) -> None:
    algo, promises = settings.algo, settings.clip.policy != "none"
    noise, target = settings.server.noise_multiplier, settings.privacy.client.epsilon
    record = settings.record
    if not promises:
        if algo.startswith("dp-"):
            raise RefusedPlan(
                f"clip.policy: {algo} promises client-level privacy, which needs a clip bound; choose constant or "
                "window, or --algo maml for training without privacy"
            )
        if noise is not None or target is not None or record.enabled:
            raise RefusedPlan(
                f"{algo} clips nothing, so a noise or a target would promise what does not hold; use --algo "
                "dp-const, dp-agr or dp-agrlr"
            )
        return
    if noise is None and target is None:
        raise RefusedPlan(
            f"{algo} promises (client, public), but neither a target (privacy.client.epsilon, --epsilon) nor a "
            "noise (server.noise_multiplier, --noise-multiplier) is given; give one"
        )
    shares = record.enabled and settings.server.noise_mode == "shared"
    if noise == 0 and not shares:
        raise RefusedPlan(
            f"server.noise_multiplier = 0: {algo} promises (client, public), and without noise its epsilon is "
            "infinite; give a noise above 0 or a target, or use --algo maml"
        )
    given = (settings.privacy.record.epsilon, record.support_noise, record.query_noise)
    if record.enabled and all(value is None for value in given):
        raise RefusedPlan(
            f"{algo} promises (record, {settings.privacy.record.observer}), but neither a target "
            "(privacy.record.epsilon) nor a noise (record.query_noise, record.support_noise) is given; give one"
        )


def _meta(settings: Settings) -> MetaSpec:
    method, record = settings.meta.method, settings.record.enabled
    message, order, adapt = _METHODS[method]
    wanted_order = settings.meta.order or order
    wanted_adapt = settings.meta.adapt or adapt
    if record and wanted_order == 2:
        raise RefusedPlan(
            "meta.order = 2 with record-level privacy: the meta-gradient would read the support records again "
            "through Hessian terms that no noise covers; use --order 1"
        )
    if record and message == "update" and settings.server.noise_mode == "shared":
        raise RefusedPlan(
            "meta.method = reptile with server.noise_mode = shared: a Reptile message is unbounded before its "
            "last noise, so sharing that noise would promise too much; use --server.noise_mode stacked"
        )
    if method in ("fomaml", "reptile") and wanted_order == 2:
        raise InputError(f"meta.order = 2: {method} is a first-order method; use meta.method = maml")
    if method == "anil" and wanted_adapt == "all":
        raise InputError("meta.adapt = all: ANIL adapts the head only; use meta.method = maml")
    return MetaSpec(
        message="query" if message == "query" else "update",
        order=2 if wanted_order == 2 else 1,
        adaptation=Adaptation(
            adapt="head" if wanted_adapt == "head" else "all", steps=settings.meta.steps, lr=settings.meta.lr
        ),
    )


def evaluation_adaptation(settings: Settings) -> Adaptation:
    """How held-out clients adapt; as in training where the settings leave it open."""
    trained, chosen = _meta(settings).adaptation, settings.evaluation
    return Adaptation(
        adapt=chosen.adapt or trained.adapt,
        steps=chosen.steps or trained.steps,
        lr=chosen.lr or trained.lr,
    )


def network_spec(settings: Settings, task: Task) -> NetworkSpec:
    """The network for the task's images."""
    return NetworkSpec(
        name=settings.model.name,
        channels=task.channels,
        image_size=task.image_size,
        ways=settings.task.ways,
        width=settings.model.width,
        norm=settings.model.norm,
        groups=settings.model.groups,
        activation=settings.model.activation,
        features=settings.model.features,
        feature_scale=settings.model.feature_scale,
        learn=settings.meta.learn,
    )


def _shape(settings: Settings) -> EpisodeShape:
    return EpisodeShape(ways=settings.task.ways, shots=settings.task.shots, queries=settings.task.queries)


def _check_network(spec: NetworkSpec, settings: Settings, *, heads: bool) -> None:
    network = build_network(spec)
    if settings.record.enabled:
        check_records_uncoupled(network, spec)
    if heads:
        check_has_head(network, spec.name)


def make_privacy(settings: Settings) -> PrivacyPlan:
    """Check the settings and solve the noise; needs no data.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    _check_population(settings)
    _check_promises(settings)
    record, meta, shape = settings.record, _meta(settings), _shape(settings)
    layer = None
    if record.enabled:
        # A role without a noise of its own gets the balanced one; solved noises replace both.
        root = meta.adaptation.steps**0.5
        query = record.query_noise or (record.support_noise or root) / root
        layer = RecordLayer(
            support_noise=record.support_noise or query * root,
            query_noise=query,
            support_steps=meta.adaptation.steps,
            support_records=shape.support_records,
            query_records=shape.query_records,
            message=meta.message,
            query_to_message_bound=1.0 / record.message_clip_ratio,
        )
    noise = settings.server.noise_multiplier
    plan = PrivacyPlan(
        clients=settings.population.clients,
        cohort=settings.population.cohort,
        rounds=settings.server.rounds,
        noise_multiplier=None if settings.clip.policy == "none" else noise or 0.0,
        max_participations=settings.population.max_participations,
        noise_mode=settings.server.noise_mode,
        colluding=settings.privacy.client.colluding,
        record=layer,
        client_delta=settings.privacy.client.delta,
        record_delta=settings.privacy.record.delta,
    )
    targets = Targets(
        client_epsilon=settings.privacy.client.epsilon,
        record_epsilon=settings.privacy.record.epsilon if record.enabled else None,
        record_observer=settings.privacy.record.observer,
    )
    return calibrate(plan, targets)


def _record(settings: Settings, privacy: PrivacyPlan, meta: MetaSpec) -> RecordSpec | None:
    if privacy.record is None:
        return None
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
