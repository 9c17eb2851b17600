"""Run of a training: prepare, train, evaluate, summarise. Nothing is printed; callbacks are told."""

from __future__ import annotations

import dataclasses
import math
import re
import secrets
import shutil
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.ledger.client_ledger import RecordBudget
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger, RunIdentity, read_content
from dpfedmeta.accounting.ledger.ledger_register import Lineage, check_lineage, registered
from dpfedmeta.accounting.ledger.population_register import read_register, reserve
from dpfedmeta.accounting.observers.four_guarantees import guarantees
from dpfedmeta.accounting.participation_cost import spending
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import spacing_of
from dpfedmeta.config.load import to_yaml
from dpfedmeta.config.settings import Settings, clients_made_by
from dpfedmeta.core.errors import InputError, OwnCodeFailed, going_on_with
from dpfedmeta.core.files.lock import ending, only_writer
from dpfedmeta.core.files.run_directory import (
    CONFIG,
    EPISODES,
    PLAN,
    REPORT,
    SUMMARY,
    WITH_RESULT,
    RunDirectory,
    create,
    write_text,
)
from dpfedmeta.core.params import Params
from dpfedmeta.core.peak_memory import peak_memory_mb
from dpfedmeta.core.provenance import commit, environment_of
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.random.fresh_seeds import keep_secret
from dpfedmeta.core.signals import deferred
from dpfedmeta.core.worker_pool import Watched, Workers
from dpfedmeta.learning.evaluation import Accuracy, HeldOutEvaluation
from dpfedmeta.learning.evaluation.accuracy import KeptEpisodes
from dpfedmeta.planning.data_digests import keep_data
from dpfedmeta.planning.early_checks import check_registered
from dpfedmeta.planning.policy_from_settings import own_policy_name
from dpfedmeta.planning.privacy.aggregation import aggregation_of
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.simulation.availability import ClientLedgers, SpacedClients, Willing
from dpfedmeta.simulation.backend import Backend
from dpfedmeta.training.loop import Training, complete
from dpfedmeta.training.results.facts import Described, plan_facts
from dpfedmeta.training.results.summary import Status, summary_of
from dpfedmeta.training.setup import RunContext, RunOptions, prepared
from dpfedmeta.training.state.extend import extend, promise, set_aside
from dpfedmeta.training.state.how_to_resume import how_to_go_on
from dpfedmeta.training.state.private_timings import hides_times, seconds_before
from dpfedmeta.training.state.resume import CODE, check_same_code, identity_of, keep_launch
from dpfedmeta.training.throughput import clients_per_second
from dpfedmeta.training.trackers import Tracked, trackers_of
from dpfedmeta.training.tracking.callbacks import Callback, CallbackFailed, JsonLines, check_callbacks, tell


def run_training(
    settings: Settings, options: RunOptions | None = None, callbacks: Sequence[Callback] = ()
) -> tuple[RunDirectory, Status]:
    """Train as the settings say; nothing is written before the plan is accepted.

    Args:
        settings: What the user gave.
        options: Besides.
        callbacks: Who is told what happens; nothing is printed otherwise.

    Returns:
        The run directory and how the run ended.

    Raises:
        InputError: Something that was given does not fit.
        CallbackFailed: A callback raised; by then the run has ended cleanly, and can be resumed.
        OwnCodeFailed: So did other code of the user's own, with which clients or the server compute.
    """
    check_registered(settings)
    options, callbacks = options or RunOptions(), tuple(callbacks)
    check_callbacks(callbacks)
    commit()  # asked now and kept: files may change while the run goes on, its modules do not

    def say(text: str) -> None:
        tell(callbacks, "on_remark", text)

    for tracker in trackers_of(settings.track):
        tracker.check(settings.track, say)
    with prepared(settings, options, say) as made, ExitStack() as stack:
        # How fast real clients are nobody here can measure.
        rate = None
        if made.public is not None and options.elsewhere is None:
            rate = clients_per_second(made.public, made.workers, made.plan.privacy.cohort, 0.0)
        run = options.resume
        known = "" if run is None else identity_of(run).run
        tell(callbacks, "on_plan", made.planned(rate, known))
        # Clients elsewhere run no code of the server's.
        allowed = options.changed_code or options.elsewhere is not None
        if run is not None and (changed := check_same_code(run, made.own, allowed=allowed)):
            say(changed)
        _reserve(known, made, keep=False)
        if run is None:
            if others := made.other_runs:
                say(others)
            name = default_name(settings) if settings.run.name is None else settings.run.name
            run = create(Path(settings.run.dir), name, partial(_first_files, made=made, options=options, rate=rate))
            stack.enter_context(only_writer(run.path))
        stack.enter_context(going_on_with(partial(how_to_go_on, run)))
        with _nothing_left(run, options):
            lineage, missing = stack.enter_context(registered(run))
            trackers = _trackers(made.plan, run, options, say)
            if options.extend_to is not None and lineage is not None:
                check_lineage(run, read_content(run.ledger), lineage)
            # Last of all that may be refused: what is reserved stays reserved.
            _reserve(identity_of(run).run, made)
        if missing:
            warnings.warn(missing, stacklevel=2)
        if made.plan.privacy.ends:
            for remark in _go_on_longer(run, made, options, lineage, rate):
                tell(callbacks, "on_remark", remark)
        tell(callbacks, "on_start", run.path)
        backend = _backend(made, run, options)
        summary, failure = _trained(
            _training(made, run, backend, lineage, trackers, callbacks, may_differ=allowed or not made.own), made
        )
        _tell_the_end(callbacks, summary, failure, run)
        # What may be stated of a candidate is the price of a choice that is still to come.
        if not identity_of(run).candidate:
            with ending(run.path):
                options.page(run)
    return run, summary["status"]


def _backend(made: RunContext, run: RunDirectory, options: RunOptions) -> Backend:
    """Build the backend that adds messages: the settings' aggregation, or that of clients elsewhere."""
    if options.elsewhere is not None:
        return options.elsewhere.backend(made, run)
    settings = made.plan.settings
    backend: Backend = aggregation_of(settings).made(settings, made.clients, made.workers)
    return backend


def _training(
    made: RunContext,
    run: RunDirectory,
    backend: Backend,
    lineage: Lineage | None,
    trackers: tuple[Callback, ...],
    callbacks: tuple[Callback, ...],
    *,
    may_differ: bool,
) -> Training:
    plan, settings = made.plan, made.plan.settings
    return Training(
        plan=plan,
        run=run,
        backend=backend,
        workers=made.workers,
        validation=made.validation,
        source=made.source,
        trackers=trackers,
        callbacks=callbacks,
        budget=_budget(made, run),
        client_ledgers=_client_ledgers(run, plan),
        public_clients=made.public if settings.track.public_clients else None,
        environment=environment_of(made.device, made.clients.chunk, made.own) if made.repeatable else None,
        lineage=lineage,
        may_differ=may_differ,
    )


def _budget(made: RunContext, run: RunDirectory) -> Budget:
    planned, register = Budget.of(made.plan.planned), made.plan.settings.population.register
    return planned if register is None else read_register(Path(register)).budget(identity_of(run).run, planned)


def _tell_the_end(
    callbacks: Sequence[Callback], summary: dict[str, Any], failure: OwnCodeFailed | None, run: RunDirectory
) -> None:
    """The end, to all of them; then what ended it, if that was one of them."""
    try:
        tell(callbacks, "on_end", summary)
    except CallbackFailed as error:
        failure = failure or error
    if failure is None:
        return
    how = "the run itself is complete"
    if summary["status"] == "interrupted":
        done, path = counted_words(summary["rounds"], "round"), str(run.path)
        command = f"dpfedmeta.train(resume={path!r})" if isinstance(failure, CallbackFailed) else how_to_go_on(run)
        how = f"the run ended cleanly after {done}; go on with {command}"
    raise type(failure)(f"{failure}; {how}") from failure.__cause__


def _trained(training: Training, made: RunContext) -> tuple[dict[str, Any], OwnCodeFailed | None]:
    """Train, evaluate what came out, and write the summary; with it, the callback that ended the run."""
    run, plan = training.run, training.plan
    begun, before = time.perf_counter(), seconds_before(run)
    ending = training()
    state, status, failure = ending.state, ending.status, ending.failure
    seconds = before + time.perf_counter() - begun
    accuracies: dict[str, dict[str, object]] = {}
    try:
        if status in WITH_RESULT:
            workers = Watched(training.workers, partial(tell, training.callbacks, "on_evaluation", "test"))
            found = final_accuracies(workers, plan, made.test, complete(plan, state))
            accuracies = {name: accuracy.as_json() for name, accuracy in found.items()}
            score = made.test.score_name
            accuracies[score] |= {"protocol": made.test.protocol, **made.test.sizes}
            if made.test.sizes:
                accuracies[score]["steps"] = plan.evaluation.steps
            if score == "accuracy":
                _keep_episodes(run, training.workers, made.test, plan.settings.run.seed, found[score])
    except KeyboardInterrupt:
        status = "interrupted"
    except CallbackFailed as error:
        status, failure = "interrupted", error
    with deferred():
        memory = peak_memory_mb(training.workers)
        summary = summary_of(run, plan, state, status, (seconds, memory), accuracies)
        summary |= {"judged_on": made.judged_on} if made.judged_on else {}
        # One of an earlier interruption: by a clock that was set back it would seem newer than this summary.
        (run.path / REPORT).unlink(missing_ok=True)
        run.write_json(SUMMARY, summary)
        for tracker in training.trackers:
            tracker.on_end(summary)
    return summary, failure


def final_accuracies(workers: Workers, plan: Plan, test: HeldOutEvaluation, model: Params) -> dict[str, Accuracy]:
    """The trained model, before and after adaptation, beside the untrained one and the pixel baselines."""
    untrained = plan.algorithm.initial(plan.network, plan.settings.run.seed)
    episodes = plan.settings.evaluation.episodes
    return test.compete(workers, plan.network, model, untrained, plan.evaluation, episodes)


def _keep_episodes(run: RunDirectory, workers: Workers, test: HeldOutEvaluation, seed: int, accuracy: Accuracy) -> None:
    """The accuracy on every test episode, for a comparison with another run on the same ones; they are public."""
    kept = KeptEpisodes.measured(test, workers, seed, accuracy)
    if kept is not None:
        run.write_json(EPISODES, {"protocol": test.protocol, **kept.as_json()})


def _client_ledgers(run: RunDirectory, plan: Plan) -> Willing | None:
    """Build the client ledgers of the settings; clients enforce their records' guarantee, or their spacing."""
    privacy, spacing = plan.privacy, spacing_of(plan.privacy)
    if spacing is not None and plan.settings.record.client_ledgers:
        return SpacedClients(folder=run.secret / "clients", spacing=spacing)
    if privacy.record is None or not plan.settings.record.client_ledgers:
        return None
    # What was spent before is in the promise, and not in these ledgers: it leaves no room for more rounds.
    rounds = guarantees(dataclasses.replace(privacy, earlier=())) if privacy.earlier else plan.planned
    promised = next(cell for cell in rounds if (cell.unit, cell.observer) == ("record", "server"))
    budget = RecordBudget(epsilon=promised.epsilon, delta=promised.delta, relation=privacy.relation)
    each = spending(privacy.at(0), privacy.record, privacy.server_sees, "record")
    return ClientLedgers(folder=run.secret / "clients", budget=budget, each=each)


def _trackers(plan: Plan, run: RunDirectory, options: RunOptions, say: Callable[[str], None]) -> tuple[Callback, ...]:
    """Return the run's own records."""
    tracked = Tracked(
        run=run,
        settings=plan.settings,
        identity=identity_of(run).run,
        timed=not hides_times(plan),
        pictures=options.pictures,
    )
    return (JsonLines(run.path), *(tracker.opened(tracked, say) for tracker in trackers_of(plan.settings.track)))


@contextmanager
def _nothing_left(run: RunDirectory, options: RunOptions) -> Iterator[None]:
    """Leave nothing behind where a run that is new cannot begin."""
    try:
        yield
    except InputError:
        if options.resume is None:
            shutil.rmtree(run.path)
        raise


def default_name(settings: Settings, when: str | None = None) -> str:
    """Return the name of a run that was given none; `when` in place of the time."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(settings.dataset).stem)[:100]
    return f"{settings.algo}-{plain}-{when or time.strftime('%Y%m%d-%H%M%S')}"


def _first_files(run: RunDirectory, made: RunContext, options: RunOptions, rate: float | None) -> None:
    """Write the first files of a run directory: all that is needed to resume after a crash at any time."""
    text = to_yaml(made.plan.settings)
    write_text(run.path / CONFIG, text)
    keep_launch(run, options.launch)
    keep_secret(run, made.source)
    keep_data(run, made.held)
    name, secure = secrets.token_hex(16), not made.source.reproducible
    described = dataclasses.asdict(made.described)
    identity = RunIdentity(run=name, config=text, secure=secure, candidate=options.candidate, described=described)
    Ledger(run.ledger, made.plan.privacy, identity)
    _write_plan(run, made, rate)


def _reserve(name: str, made: RunContext, *, keep: bool = True) -> None:
    """Count the whole plan in the register of the population, where there is one, before anything is charged.

    Without `keep` it is only refused where there is no room for it.
    """
    register, held = made.plan.settings.population.register, made.held
    if register is None:
        return
    data = held.people
    if data is None:
        raise InputError("population.register: what these clients hold has no digest, so it cannot be registered")
    made_by = {} if held.own else clients_made_by(made.plan.settings)
    reserve(Path(register), run=name, data=data, plan=made.plan.privacy, made_by=made_by, keep=keep)


def _go_on_longer(
    run: RunDirectory, made: RunContext, options: RunOptions, lineage: Lineage | None, rate: float | None
) -> Iterator[str]:
    """The extension, if this is where it begins, and what a crash may have left undone of the last one; remarks."""
    before, rounds = made.plan.privacy.ends[-1], made.plan.privacy.rounds
    if options.extend_to is not None:
        extend(run, read_content(run.ledger), options.extend_to, lineage)
    folder = set_aside(run, before)
    _write_plan(run, made, rate)
    yield f"extended from {before} to {rounds} rounds, which are charged together; the files of before are in {folder}"
    if not any(limit < math.inf for limit in promise(made.plan.settings, made.plan.privacy.begun).limits):
        yield (
            f"no target limits this run: its guarantees for {rounds} rounds hold only if the decision to stop there "
            "does not depend on what they show"
        )


def _write_plan(run: RunDirectory, made: RunContext, rate: float | None) -> None:
    plan, described = made.plan, Described.of_ledger(read_content(run.ledger))
    content = {
        **plan_facts(plan.settings, plan.privacy, plan.planned, described),
        **({CODE: dict(made.own)} if made.own else {}),
        "cost": {
            "clients_per_second": rate,
            "seconds": None if rate is None else plan.privacy.expected_participations / rate,
        },
    }
    if plan.own_policy is not None:
        content["clip_policy"] = own_policy_name(plan.own_policy)
    run.write_json(PLAN, content)
