"""From settings to what is promised: every constant of the accountant, solved from targets, or a refusal."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from dpfedmeta.accounting.rare_events import MOST_MESSAGES
from dpfedmeta.data.task import Task
from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.planning.aggregation import aggregation_of, clients_make_the_noise
from dpfedmeta.planning.check_ins import check_check_ins, check_solvable
from dpfedmeta.planning.clients import algorithm_of, method_of
from dpfedmeta.planning.clip import bounds_clients
from dpfedmeta.planning.dimension import message_dimension
from dpfedmeta.planning.masking_graph import check_graph
from dpfedmeta.planning.spent_before import earlier_releases
from dpfedmeta.settings import Settings

if TYPE_CHECKING:
    # The accountant takes a second to import; what is refused at once needs none of it.
    from dpfedmeta.accounting.calibration import Targets
    from dpfedmeta.accounting.correlated_noise import Correlation
    from dpfedmeta.accounting.events import Earlier
    from dpfedmeta.accounting.plan import PrivacyPlan
    from dpfedmeta.accounting.secure_rounds import SecureRounds

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
    from dpfedmeta.accounting.correlated_plan import with_fitted_numbers
    from dpfedmeta.accounting.secure_rounds import check_fine

    check_asked(settings, task)
    if settings.clip.start != "given":
        raise InputError(
            f"clip.start = {settings.clip.start}: nothing is planned before the analysis that it stands for; train "
            "without --dry-run does it first, or: dpfedmeta analyse quantile, then --clip.initial and "
            "--privacy.spent_before"
        )
    check_solvable(settings, solve)
    before = earlier_releases(settings) if earlier is None else earlier
    plan, targets = replace(_plan(settings, task), earlier=before), _targets(settings)
    _check_client_ledgers(settings, plan)
    found = with_fitted_numbers(_solved(plan, targets, solve, settings.privacy.client.limit))
    if solve != "bits" and not settings.aggregation.rough:
        check_fine(found)
    check_graph(found)
    return found


def _solved(plan: PrivacyPlan, targets: Targets, solve: Solve, limit: float | None) -> PrivacyPlan:
    from dpfedmeta.accounting.calibration import calibrate, fewest_bits, largest_cohort, most_rounds

    if solve == "noise":
        return _within_limit(calibrate(plan, targets), limit)
    if solve == "bits":
        if plan.secure is None:
            raise InputError("--solve bits: no whole numbers are added up; use --aggregation secure")
        return _within_limit(fewest_bits(plan, targets), limit)
    if targets.client_epsilon is None and targets.record_epsilon is None:
        raise InputError(f"--solve {solve}: give a target too (--epsilon, --privacy.record.epsilon)")
    if not plan.noise_multiplier:
        raise InputError(f"--solve {solve}: give the noise too (--noise-multiplier)")
    if solve == "cohort" and plan.correlation is not None:
        most = plan.clients / plan.correlation.separation
        raise InputError(
            f"--solve cohort with server.noise = {plan.noise}: no guarantee depends on the cohort there; clients that "
            f"keep {plan.correlation.separation} rounds apart allow population.cohort up to {most:.4g}"
        )
    return most_rounds(plan, targets) if solve == "rounds" else largest_cohort(plan, targets)


def check_asked(settings: Settings, task: Task) -> None:
    """What can be refused without the accountant.

    Raises:
        InputError: A value does not fit another one.
        RefusedPlan: A guarantee that is asked for would not hold.
    """
    _check_population(settings)
    _check_promises(settings, task)
    _check_sampler(settings)
    _check_abort(settings)


def _within_limit(plan: PrivacyPlan, limit: float | None) -> PrivacyPlan:
    """No more rounds than the limit allows with the noise that is given: they are known before the first one."""
    if limit is None:
        return plan
    from dpfedmeta.accounting.calibration import Targets, most_rounds

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
    if population.sampler == "check-ins":
        check_check_ins(settings)
    late = [change.from_round for change in settings.server.schedule if change.from_round >= settings.server.rounds]
    if late:
        warnings.warn(
            f"server.schedule: from_round = {late[0]} is not in a run of server.rounds = {settings.server.rounds}, so "
            "that change never happens",
            stacklevel=2,
        )


def _check_client_ledgers(settings: Settings, plan: PrivacyPlan) -> None:
    if settings.record.client_ledgers and plan.record is not None and plan.record.batch_rate < 1:
        raise RefusedPlan(
            f"record.client_ledgers with meta.method = {settings.meta.method}: a client's ledger adds up whole support "
            "steps, not sampled mini-batches; use --record.client_ledgers false"
        )


def _check_abort(settings: Settings) -> None:
    """That a round was aborted is visible, so it may tell nothing of who was drawn or of what they hold.

    Cohorts of one size, whose clients fail by equal coins, are aborted with the same probability whoever is in them.
    """
    if not settings.server.abort_on_failure:
        return
    population = settings.population
    if population.sampler != "fixed":
        why = (
            f"under population.sampler = {population.sampler} larger cohorts fail more often, so it tells of their size"
        )
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
    from dpfedmeta.accounting.plan import Change, PrivacyPlan

    return PrivacyPlan(
        clients=settings.population.clients,
        cohort=_expected_cohort(settings),
        rounds=settings.server.rounds,
        noise_multiplier=settings.server.noise_multiplier or 0.0 if bounds_clients(settings) else None,
        noise=settings.server.noise,
        correlation=_correlation(settings),
        server_sees=aggregation_of(settings).sees,
        sampler=settings.population.sampler,
        max_participations=1 if _chosen_rounds(settings) else settings.population.max_participations,
        schedule=tuple(
            Change(from_round=c.from_round, noise_scale=c.noise_scale, cohort_scale=c.cohort_scale)
            for c in settings.server.schedule
        ),
        noise_mode=settings.server.noise_mode,
        noise_site=settings.server.noise_site,
        colluding=settings.privacy.client.colluding,
        hostile=settings.privacy.client.hostile,
        secure=_secure(settings, task),
        record=algorithm_of(settings, task).record_layer() if settings.record.enabled else None,
        client_delta=settings.privacy.client.delta,
        record_delta=settings.privacy.record.delta,
        capacity=int(settings.population.cohort) if _chosen_rounds(settings) else None,
    )


def _correlation(settings: Settings) -> Correlation | None:
    """What correlated noise is planned with; clients keep as far apart as the population allows where nothing is said.

    Raises:
        RefusedPlan: Something of it is given to another noise.
    """
    from dpfedmeta.accounting.correlated_noise import KINDS, Correlation

    population, server = settings.population, settings.server
    if server.noise in KINDS:
        apart = population.separation
        if apart is None:
            apart = min(server.rounds, max(1, int(population.clients / population.cohort)))
        return Correlation(separation=apart, buffers=server.buffers)
    for name, value in (("population.separation", population.separation), ("server.buffers", server.buffers)):
        if value is not None:
            raise RefusedPlan(
                f"{name} = {value} with server.noise = {server.noise}: only correlated noise ({', '.join(KINDS)}) has "
                "a use for it; leave it out"
            )
    return None


def _chosen_rounds(settings: Settings) -> bool:
    return settings.population.sampler == "check-ins"


def _expected_cohort(settings: Settings) -> float:
    """L; where each client comes once, N/T."""
    population = settings.population
    return population.clients / settings.server.rounds if _chosen_rounds(settings) else population.cohort


def _secure(settings: Settings, task: Task) -> SecureRounds | None:
    """How sums of whole numbers are made, where messages are added up so.

    Raises:
        RefusedPlan: There is nothing that bounds a message.
    """
    if not clients_make_the_noise(settings):
        if settings.aggregation.protocol:
            raise RefusedPlan(
                f"aggregation.protocol with aggregation.mode = {settings.aggregation.mode}: the protocol adds up where "
                "the server sees sums alone; add --aggregation secure"
            )
        return None
    rounds = aggregation_of(settings).rounds
    if not bounds_clients(settings):
        raise RefusedPlan(
            f"aggregation.mode = {settings.aggregation.mode}: {settings.algo} clips nothing, and whole numbers modulo "
            "2^bits hold no message of any length; choose --clip.policy constant or window, or --aggregation messages"
        )
    if settings.record.query_noise is not None and settings.record.release == "micro-episodes":
        raise RefusedPlan(
            f"record.query_noise = {settings.record.query_noise:g} with aggregation.mode = {settings.aggregation.mode}:"
            " micro-episodes have no noise of their own there, the sum has it; give server.noise_multiplier or targets"
        )
    _check_answers(settings)
    dimension = message_dimension(settings, task)
    made: SecureRounds = rounds(settings, dimension, algorithm_of(settings, task).parts)
    return made


def _check_answers(settings: Settings) -> None:
    """How likely a round is aborted is known of drop-outs by equal coins alone; under fixed cohorts it tells nothing.

    Raises:
        RefusedPlan: Something else decides under Poisson sampling, so an abort would tell of a cohort.
    """
    population, server = settings.population, settings.server
    if population.sampler == "fixed":
        return
    if population.dropout and population.availability != "independent":
        why = f"population.availability = {population.availability}"
    elif server.timeout is not None:
        why = f"server.timeout = {server.timeout:g}"
    elif settings.record.client_ledgers:
        why = "record.client_ledgers"
    else:
        return
    raise RefusedPlan(
        f"aggregation.mode = {settings.aggregation.mode} with {why}: nothing bounds how often too few answer for "
        "the noise, and that a round is aborted tells of its cohort; use --population.sampler fixed, or leave it out"
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
    if bounds_clients(settings) and delta >= 1 / population.clients:
        warnings.warn(
            f"privacy.client.delta = {delta:g} is not below 1/N = {1 / population.clients:g}: such a guarantee "
            "allows one client of the population to be exposed entirely",
            stacklevel=2,
        )


def _check_promises(settings: Settings, task: Task) -> None:
    algo, promises = settings.algo, bounds_clients(settings)
    noise, target = settings.server.noise_multiplier, settings.privacy.client.epsilon
    record = settings.record
    if not promises:
        if bounds_clients(Settings.preset(algo, settings.dataset)):
            raise RefusedPlan(
                f"clip.policy: {algo} promises client-level privacy, which needs a clip bound; choose constant or "
                "window, or --algo maml for training without privacy"
            )
        if record.enabled and method_of(settings, task).record_layer() is not None:
            _check_record_promise(settings)
            targets: tuple[float | None, ...] = (target,)
        else:
            targets = (target, settings.privacy.record.epsilon, True if record.enabled else None)
        if noise is not None or any(value is not None for value in targets):
            raise RefusedPlan(
                f"{algo} clips nothing, so a noise or a target would promise what does not hold; use --algo "
                "dp-const, dp-agr or dp-agrlr-micro"
            )
        return
    # Where clients make the noise of a sum, it is the same noise that both units and both observers face.
    one_noise = clients_make_the_noise(settings) or settings.privacy.record.observer == "public"
    through_records = settings.privacy.record.epsilon is not None and one_noise
    if noise is None and target is None and not through_records:
        raise RefusedPlan(
            f"{algo} promises (client, public), but neither a target (privacy.client.epsilon, --epsilon) nor a "
            "noise (server.noise_multiplier, --noise-multiplier) is given; give one"
        )
    shares = record.enabled and settings.server.noise_mode == "shared" and not clients_make_the_noise(settings)
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
    if record.enabled and all(value is None for value in given) and not clients_make_the_noise(settings):
        raise RefusedPlan(
            f"{algo} promises (record, {settings.privacy.record.observer}), but neither a target "
            "(privacy.record.epsilon) nor a noise (record.query_noise, record.support_noise) is given; give one"
        )
