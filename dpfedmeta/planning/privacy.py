"""From settings to what is promised: every constant of the accountant, solved from targets, or a refusal."""

from __future__ import annotations

import warnings
from typing import Literal

from dpfedmeta.accounting.calibration import Targets, calibrate, largest_cohort, most_rounds
from dpfedmeta.accounting.plan import Change, PrivacyPlan, RecordLayer
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.meta import micro_slots
from dpfedmeta.planning.clients import episode_shape, local_records, meta_spec, micro_shape
from dpfedmeta.privacy.whole_numbers import MOST_MESSAGES
from dpfedmeta.settings import Settings

Solve = Literal["noise", "rounds", "cohort"]


def make_privacy(settings: Settings, task: Task, solve: Solve = "noise") -> PrivacyPlan:
    """Check the settings and solve what the targets leave open.

    Args:
        settings: What the user gave.
        task: The benchmark; of its images nothing is needed.
        solve: What follows from the targets: the noise; or, with noises given, the most rounds or the largest cohort.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    _check_population(settings)
    _check_promises(settings)
    _check_sampler(settings)
    _check_abort(settings)
    plan, targets = _plan(settings, task), _targets(settings)
    if solve == "noise":
        return _within_limit(calibrate(plan, targets), settings.privacy.client.limit)
    if targets.client_epsilon is None and targets.record_epsilon is None:
        raise InputError(f"--solve {solve}: give a target too (--epsilon, --privacy.record.epsilon)")
    if not plan.noise_multiplier:
        raise InputError(f"--solve {solve}: give the noise too (--noise-multiplier)")
    return most_rounds(plan, targets) if solve == "rounds" else largest_cohort(plan, targets)


def _within_limit(plan: PrivacyPlan, limit: float | None) -> PrivacyPlan:
    """No more rounds than the limit allows with the noise that is given: they are known before the first one."""
    if limit is None:
        return plan
    return most_rounds(plan, Targets(client_epsilon=limit), limit=plan.rounds)


def _check_sampler(settings: Settings) -> None:
    population = settings.population
    if population.sampler == "fixed":
        capped = population.max_participations is not None
        if capped or settings.record.client_ledgers:
            name = "population.max_participations" if capped else "record.client_ledgers"
            raise RefusedPlan(
                f"population.sampler = fixed with {name}: whom a cap leaves out would depend on who was drawn before, "
                "and no bound is proven for that; use poisson, or --population.max_participations null"
            )
    if settings.record.client_ledgers and settings.meta.method == "fedavg":
        raise RefusedPlan(
            "record.client_ledgers with meta.method = fedavg: a client's ledger adds up whole support steps, not "
            "sampled mini-batches; use --record.client_ledgers false"
        )
    late = [change.from_round for change in settings.server.schedule if change.from_round >= settings.server.rounds]
    if late:
        warnings.warn(
            f"server.schedule: from_round = {late[0]} is not in a run of server.rounds = {settings.server.rounds}, so "
            "that change never happens",
            stacklevel=2,
        )


def _check_abort(settings: Settings) -> None:
    """That a round was aborted is visible, so it may tell nothing of who was drawn or of what they hold.

    Cohorts of one size, whose clients fail by equal coins, are aborted with the same probability whoever is in them.
    """
    if not settings.server.abort_on_failure:
        return
    population = settings.population
    if population.sampler != "fixed":
        why = "under population.sampler = poisson larger cohorts fail more often, so it tells of their size"
    elif population.availability != "independent":
        why = f"under population.availability = {population.availability} it tells which clients were drawn"
    elif settings.record.enabled:
        why = "with record-level privacy a client whose data are unsound sends nothing, so it tells of data"
    else:
        return
    raise RefusedPlan(
        f"server.abort_on_failure: an aborted round is seen by everybody, and {why}, which no epsilon here counts; use "
        "--server.abort_on_failure false: the server then adds what noise is missing"
    )


def _plan(settings: Settings, task: Task) -> PrivacyPlan:
    return PrivacyPlan(
        clients=settings.population.clients,
        cohort=settings.population.cohort,
        rounds=settings.server.rounds,
        noise_multiplier=None if settings.clip.policy == "none" else settings.server.noise_multiplier or 0.0,
        sampler=settings.population.sampler,
        max_participations=settings.population.max_participations,
        schedule=tuple(
            Change(from_round=c.from_round, noise_scale=c.noise_scale, cohort_scale=c.cohort_scale)
            for c in settings.server.schedule
        ),
        noise_mode=settings.server.noise_mode,
        noise_site=settings.server.noise_site,
        colluding=settings.privacy.client.colluding,
        hostile=settings.privacy.client.hostile,
        record=_record_layer(settings, task),
        client_delta=settings.privacy.client.delta,
        record_delta=settings.privacy.record.delta,
    )


def _record_layer(settings: Settings, task: Task) -> RecordLayer | None:
    record = settings.record
    if not record.enabled:
        return None
    meta, shape = meta_spec(settings), episode_shape(settings)
    if meta.message == "local":
        return _local_layer(settings, local_records(settings, task))
    if record.release == "micro-episodes":
        # Nothing is released in a support step.
        return RecordLayer(
            support_noise=1.0,
            query_noise=record.query_noise or 1.0,
            support_steps=1,
            support_records=1,
            query_records=len(micro_slots(shape, micro_shape(settings))),
            message="episodes",
            query_to_message_bound=1.0 / record.message_clip_ratio,
        )
    # A role without a noise of its own gets the balanced one; solved noises replace both.
    root = meta.adaptation.steps**0.5
    query = record.query_noise or (record.support_noise or root) / root
    return RecordLayer(
        support_noise=record.support_noise or query * root,
        query_noise=query,
        support_steps=meta.adaptation.steps,
        support_records=shape.support_records,
        query_records=shape.query_records,
        message="update" if meta.message == "update" else "query",
        query_to_message_bound=1.0 / record.message_clip_ratio,
    )


def _local_layer(settings: Settings, records: int) -> RecordLayer:
    batch = settings.meta.batch or records
    if batch > records:
        raise InputError(f"meta.batch = {batch}: a client holds {records} records")
    return RecordLayer(
        support_noise=settings.record.support_noise or 1.0,
        query_noise=1.0,
        support_steps=settings.meta.steps,
        support_records=records,
        query_records=1,
        message="update",
        batch_rate=batch / records,
        accountant=settings.record.accountant,
    )


def _targets(settings: Settings) -> Targets:
    privacy = settings.privacy
    return Targets(
        client_epsilon=privacy.client.epsilon,
        record_epsilon=privacy.record.epsilon,
        record_observer=privacy.record.observer,
    )


def _check_population(settings: Settings) -> None:
    population = settings.population
    if population.cohort > population.clients:
        raise InputError(
            f"population.cohort = {population.cohort:g} is more than population.clients = "
            f"{population.clients}; lower the one or raise the other"
        )
    if population.cohort > MOST_MESSAGES / 2:
        raise InputError(
            f"population.cohort = {population.cohort:g}: a sum holds {MOST_MESSAGES:,} messages; lower the expected "
            "cohort to at most half of that"
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
        if record.enabled and settings.meta.method == "fedavg":
            _check_record_promise(settings)
            targets: tuple[float | None, ...] = (target,)
        else:
            targets = (target, settings.privacy.record.epsilon, True if record.enabled else None)
        if noise is not None or any(value is not None for value in targets):
            raise RefusedPlan(
                f"{algo} clips nothing, so a noise or a target would promise what does not hold; use --algo "
                "dp-const, dp-agr or dp-agrlr"
            )
        return
    through_records = settings.privacy.record.epsilon is not None and settings.privacy.record.observer == "public"
    if noise is None and target is None and not through_records:
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
    if settings.privacy.client.limit is not None and (noise is None or target is not None):
        raise RefusedPlan(
            f"privacy.client.limit = {settings.privacy.client.limit:g} ends training at a noise that is given "
            "(server.noise_multiplier); with a target (privacy.client.epsilon) the noise is solved for all rounds: "
            "drop one"
        )
    _check_record_promise(settings)


def _check_record_promise(settings: Settings) -> None:
    algo, record = settings.algo, settings.record
    given = (settings.privacy.record.epsilon, record.support_noise, record.query_noise)
    if record.enabled and all(value is None for value in given):
        raise RefusedPlan(
            f"{algo} promises (record, {settings.privacy.record.observer}), but neither a target "
            "(privacy.record.epsilon) nor a noise (record.query_noise, record.support_noise) is given; give one"
        )
