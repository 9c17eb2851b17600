"""Privacy plan: every constant of the accountant, solved from the targets in the settings, or a refusal."""

from __future__ import annotations

import math
import warnings
from bisect import bisect_left
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dpfedmeta.accounting.events.failure_probability import check_population
from dpfedmeta.accounting.events.sampling import sampling_of
from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.plugin_registry import planned
from dpfedmeta.core.still_working import told_while
from dpfedmeta.data.task import Task
from dpfedmeta.planning.client_spec import algorithm_of
from dpfedmeta.planning.policy_from_settings import bounds_clients
from dpfedmeta.planning.privacy.aggregation import aggregation_of, clients_make_the_noise
from dpfedmeta.planning.privacy.masking_graph import check_graph
from dpfedmeta.planning.privacy.prior_spending import earlier_releases
from dpfedmeta.planning.privacy.secure_sum_settings import secure_rounds
from dpfedmeta.planning.privacy.target_checks import check_promises

if TYPE_CHECKING:
    from dpfedmeta.accounting.calibration import Targets
    from dpfedmeta.accounting.events.events import Earlier
    from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
    from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan

Solve = Literal["noise", "rounds", "cohort", "bits"]


def make_privacy(
    settings: Settings, task: Task, solve: Solve = "noise", earlier: tuple[Earlier, ...] | None = None
) -> PrivacyPlan:
    """Check the settings and solve what the targets leave open.

    Args:
        settings: What the user gave.
        task: The benchmark; of its images nothing is needed.
        solve: What follows from the targets: the noise; or, with noises given, the most rounds or the largest cohort;
            bits: the noise, and the fewest bits with which rounding costs next to nothing.
        earlier: What privacy.spent_before stands for, where a ledger has it already; None: it is read.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import with_fitted_numbers
    from dpfedmeta.accounting.privacy_plan.secure_round import check_fine

    check_asked(settings, task)
    if settings.clip.start != "given":
        raise InputError(
            f"clip.start = {settings.clip.start}: the plan needs the result of an analysis. Run dpfedmeta analyse "
            "quantile, and give --clip.initial and --privacy.spent_before; or train without --dry-run, which runs it "
            "first among simulated clients"
        )
    check_solve(settings, solve)
    before = earlier_releases(settings) if earlier is None else earlier
    plan, targets = _plan(settings, task, before), _targets(settings)
    _check_client_ledgers(settings, plan)
    with told_while("solving the plan for its noise" if solve == "noise" else f"solving the plan for its {solve}"):
        found = with_fitted_numbers(_solved(plan, targets, solve, settings.privacy.client.limit))
    if solve != "bits" and not settings.aggregation.rough:
        check_fine(found)
    check_graph(found)
    return found


def _solved(plan: PrivacyPlan, targets: Targets, solve: Solve, limit: float | None) -> PrivacyPlan:
    from dpfedmeta.accounting.calibration import calibrate
    from dpfedmeta.accounting.plan_sizes import fewest_bits, largest_cohort, most_rounds

    if solve == "noise":
        return _within_limit(calibrate(plan, targets), limit)
    if solve == "bits":
        return _within_limit(fewest_bits(plan, targets), limit)
    if solve == "cohort" and plan.correlation is not None:
        most = plan.clients / plan.correlation.separation
        raise InputError(
            f"--solve cohort with server.noise = {plan.noise}: its guarantees do not depend on the cohort; choose "
            f"population.cohort up to {most:.4g} (clients take part {plan.correlation.separation} rounds apart)"
        )
    return most_rounds(plan, targets) if solve == "rounds" else largest_cohort(plan, targets)


def check_solve(settings: Settings, solve: Solve) -> None:
    """Check that what is to be solved for follows from what is given.

    Raises:
        InputError: A target or a noise is missing, or it means nothing for this plan.
    """
    sampling_of(settings.population.sampler).check_solved(solve)
    if solve == "bits" and not clients_make_the_noise(settings):
        raise InputError("--solve bits: is only for secure aggregation; use --aggregation secure")
    if solve in ("noise", "bits"):
        return
    if settings.privacy.client.epsilon is None and settings.privacy.record.epsilon is None:
        raise InputError(f"--solve {solve}: give a target too (--epsilon, --privacy.record.epsilon)")
    if not (bounds_clients(settings) and settings.server.noise_multiplier):
        raise InputError(f"--solve {solve}: give the noise too (--noise-multiplier)")


def check_asked(settings: Settings, task: Task) -> None:
    """Make the checks on the settings that need no accountant.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    _check_population(settings)
    check_promises(settings, task)
    _check_sampler(settings)
    _check_abort(settings)
    _check_split_noise(settings)


def check_constants(settings: Settings, task: Task) -> None:
    """Refuse a plan for its own constants, before anything is solved.

    Of secure sums without the network, whose size only makes them harder: with messages of a single number.

    Raises:
        InputError: What was spent before cannot be read.
        RefusedPlan: Nothing can be accounted for with these constants.
    """
    secure = clients_make_the_noise(settings)
    plan = _plan(settings, task, earlier_releases(settings), dimension=1 if secure else None)
    if plan.secure is not None:
        # Any noise: it is not solved for yet. Whole numbers hide records, of which a client has many.
        some = 1.0 if plan.secure.longest is None else 1.0 / plan.secure.parts
        _check_cohort(replace(plan, noise_multiplier=plan.noise_multiplier or some))


def _check_cohort(plan: PrivacyPlan) -> None:
    """Refuse a cohort that is too small for its masks and its noise; says how large a one is enough."""

    def suffices(cohort: float) -> bool:
        try:
            check_graph(replace(plan, cohort=cohort))
        except RefusedPlan:
            return False
        return True

    try:
        check_graph(plan)
    except RefusedPlan as error:
        cohorts = range(math.ceil(plan.cohort), plan.clients + 1)
        place = bisect_left(cohorts, True, key=suffices)
        enough = f"; --cohort {cohorts[place]} is enough" if place < len(cohorts) else ""
        raise RefusedPlan(f"{error}{enough}") from error


def _within_limit(plan: PrivacyPlan, limit: float | None) -> PrivacyPlan:
    """No more rounds than the limit allows with the noise that is given: they are known before the first one."""
    if limit is None:
        return plan
    from dpfedmeta.accounting.calibration import Targets
    from dpfedmeta.accounting.plan_sizes import most_rounds

    return most_rounds(plan, Targets(client_epsilon=limit), limit=plan.rounds)


def _check_sampler(settings: Settings) -> None:
    sampling_of(settings.population.sampler).check_settings(settings)
    late = [change.from_round for change in settings.server.schedule if change.from_round >= settings.server.rounds]
    if late:
        warnings.warn(
            f"server.schedule: from_round = {late[0]} is after the last round (server.rounds = "
            f"{settings.server.rounds}), so that change never happens",
            stacklevel=2,
        )


def _check_client_ledgers(settings: Settings, plan: PrivacyPlan) -> None:
    if settings.record.client_ledgers and plan.record is not None and plan.record.batch_rate < 1:
        raise RefusedPlan(
            f"record.client_ledgers with meta.method = {settings.meta.method}: a client's ledger can only add up whole "
            "support steps, not sampled mini-batches; use --record.client_ledgers false"
        )


def _check_split_noise(settings: Settings) -> None:
    """Refuse noise of clients that is counted towards a server and is not there where a client does not answer."""
    if settings.server.noise_site != "clients" or not settings.population.dropout:
        return
    if aggregation_of(settings).sees == "sum":
        raise RefusedPlan(
            f"population.dropout = {settings.population.dropout:g} with server.noise_site = clients and "
            f"aggregation.mode = {settings.aggregation.mode}: a client that does not answer adds no noise, which "
            "the guarantees towards the server count on; use --population.dropout 0, or --server.noise_site server"
        )


def _check_abort(settings: Settings) -> None:
    """Check that an abort, which everybody sees, tells nothing about the drawn clients or their data.

    Cohorts of one size, whose clients fail by equal coins, are aborted with the same probability whoever is in them.
    """
    if not settings.server.abort_on_failure:
        return
    population = settings.population
    if not sampling_of(population.sampler).fixed_size:
        why = f"with population.sampler = {population.sampler} larger cohorts fail more often, so it reveals their size"
    elif population.availability != "independent":
        why = f"with population.availability = {population.availability} it reveals which clients were drawn"
    elif settings.record.enabled:
        why = (
            "with record-level privacy a client with damaged data sends nothing, so it reveals something about the data"
        )
    else:
        return
    raise RefusedPlan(
        f"server.abort_on_failure: everybody sees an aborted round, and {why}, which no epsilon counts; use "
        "--server.abort_on_failure false: the server then adds the missing noise"
    )


def _plan(settings: Settings, task: Task, earlier: tuple[Earlier, ...], dimension: int | None = None) -> PrivacyPlan:
    from dpfedmeta.accounting.events.record_layer import default_relation
    from dpfedmeta.accounting.privacy_plan.privacy_plan import Change, PrivacyPlan

    record = algorithm_of(settings, task).record_layer() if settings.record.enabled else None
    sampler = settings.population.sampler
    return PrivacyPlan(
        clients=settings.population.clients,
        rounds=settings.server.rounds,
        noise_multiplier=settings.server.noise_multiplier or 0.0 if bounds_clients(settings) else None,
        noise=settings.server.noise,
        correlation=correlation_of(settings),
        server_sees=aggregation_of(settings).sees,
        sampler=settings.population.sampler,
        schedule=tuple(
            Change(from_round=c.from_round, noise_scale=c.noise_scale, cohort_scale=c.cohort_scale)
            for c in settings.server.schedule
        ),
        noise_mode=settings.server.noise_mode,
        noise_site=settings.server.noise_site,
        colluding=settings.privacy.client.colluding,
        hostile=settings.privacy.client.hostile,
        secure=secure_rounds(settings, task, dimension),
        record=record,
        relation=settings.privacy.record.relation or default_relation(record),
        client_delta=settings.privacy.client.delta,
        record_delta=settings.privacy.record.delta,
        earlier=earlier,
        **planned("population.sampler", sampler, sampling_of(sampler).planned, settings),
    )


def _targets(settings: Settings) -> Targets:
    from dpfedmeta.accounting.calibration import Targets

    privacy = settings.privacy
    return Targets(
        client_epsilon=privacy.client.epsilon,
        client_observer=privacy.client.observer,
        record_epsilon=privacy.record.epsilon,
        record_observer=privacy.record.observer,
    )


def _check_population(settings: Settings) -> None:

    delta = settings.privacy.client.delta if bounds_clients(settings) else None
    population = settings.population
    check_population(population.clients, population.cohort, delta, of=("population.", "privacy.client."))


def correlation_of(settings: Settings) -> Correlation | None:
    """The settings' own; clients keep as far apart as the population allows where nothing is said. None: other noise.

    Raises:
        RefusedPlan: Something of it is given to another noise.
    """
    from dpfedmeta.accounting.events.toeplitz_noise_cost import KINDS, Correlation
    from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import default_separation

    population, server = settings.population, settings.server
    if server.noise in KINDS:
        apart = population.separation
        if apart is None:
            apart = default_separation(population.clients, population.cohort, server.rounds)
        return Correlation(separation=apart, buffers=server.buffers)
    for name, value in (("population.separation", population.separation), ("server.buffers", server.buffers)):
        if value is not None:
            raise RefusedPlan(
                f"{name} = {value} with server.noise = {server.noise}: only correlated noise ({', '.join(KINDS)}) "
                "uses it; leave it out"
            )
    return None
