"""Training, from a plan to a run directory: the imperative shell around pure steps."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch

from dpfedmeta.accounting.events.events import Phase
from dpfedmeta.accounting.ledger.ledger import Budget, Ledger
from dpfedmeta.accounting.ledger.ledger_register import Lineage
from dpfedmeta.accounting.ledger.published import published
from dpfedmeta.core.errors import InputError, OwnCodeFailed
from dpfedmeta.core.files.run_directory import DIVERGED, RunDirectory, load_weights, save_weights
from dpfedmeta.core.params import Params, norm
from dpfedmeta.core.plugins.user_code import own_failures
from dpfedmeta.core.pydantic_errors import counted_words
from dpfedmeta.core.random.random_sources import SecretSource
from dpfedmeta.core.signals import deferred
from dpfedmeta.core.worker_pool import Watched, Workers
from dpfedmeta.learning.evaluation import HeldOutEvaluation
from dpfedmeta.learning.meta.algorithm import message_form
from dpfedmeta.learning.server_step import (
    ServerOptimizer,
    ServerPhases,
    ServerSolver,
    ServerState,
    ServerStep,
    initial_state,
    skip,
    step,
    without_average,
)
from dpfedmeta.planning.run_plan import Plan
from dpfedmeta.privacy.charged import release_sum
from dpfedmeta.privacy.clip_policy import with_attachment
from dpfedmeta.privacy.mechanisms import MechanismState, Released, ValueT
from dpfedmeta.privacy.rounds.noise_state import drop_noise_states, keep_noise_state, kept_noise_state
from dpfedmeta.privacy.rounds.round_journal import Journal, Releasing, further_question, release_digest, round_inputs
from dpfedmeta.privacy.rounds.round_sum import keep_left_out
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import ClientUnit
from dpfedmeta.simulation.availability import Availability, Willing
from dpfedmeta.simulation.backend import AttemptUsedUp, Backend, RoundAborted
from dpfedmeta.simulation.client_runner import ClientRunner
from dpfedmeta.training.results.round_rows import (
    TOO_LONG,
    aborted_row,
    charged_after,
    compared,
    delta_at_limit,
    round_row,
    too_long_words,
)
from dpfedmeta.training.results.summary import NOT_FINITE, Status
from dpfedmeta.training.state.checkpoint import Checkpoint, checkpoint_files, save_checkpoint
from dpfedmeta.training.state.private_timings import hides_times, keep_seconds
from dpfedmeta.training.state.recover import reopen
from dpfedmeta.training.tracking.callbacks import Callback, tell
from dpfedmeta.training.update_variance import update_spread


class ReleaseDoor(Protocol):
    """The way from a cohort's secret sum to a release: a `Journal`; an audit has one for made-up clients."""

    def release(
        self, cohort: Cohort, releasing: Releasing[ValueT], *, bound: float, denominator: float | None = None
    ) -> tuple[Released[ClientUnit, ValueT], MechanismState]:
        """Release the sum of a cohort (see `Journal.release`)."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Ending:
    """End of training: the last state, and the reason.

    Attributes:
        state: State after the last round; it is in a checkpoint.
        status: Reason of the end.
        failure: Failure of the callback, or of other code of the user's own, that ended it, or None.
    """

    state: ServerState
    status: Status
    failure: OwnCodeFailed | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Everything a training run is wired from.

    Attributes:
        plan: The plan.
        run: Where files go.
        backend: Who computes the cohort's sum.
        workers: For validation.
        validation: Episodes of public validation classes.
        source: Secret randomness of the server.
        trackers: The run's own records of released quantities, written before a round counts as done.
        callbacks: The caller's, told after that.
        budget: What may be spent at most.
        client_ledgers: What the clients keep themselves, if they do.
        public_clients: Clients made of public data, where their updates are measured.
        environment: Digest of what could change the last bits of a result; None: nothing is done again identically.
        lineage: This machine's register of the run's ledger, or None.
        may_differ: Whether a repeated round that gives another result is charged again; else the run stops there.
    """

    plan: Plan
    run: RunDirectory
    backend: Backend
    workers: Workers
    validation: HeldOutEvaluation
    source: SecretSource
    trackers: tuple[Callback, ...]
    budget: Budget
    client_ledgers: Willing | None = None
    public_clients: ClientRunner | None = None
    environment: str | None = ""
    lineage: Lineage | None = None
    may_differ: bool = True
    callbacks: tuple[Callback, ...] = ()

    def __call__(self) -> Ending:
        """Train, or go on, until the rounds, the budget or the patience ends.

        Raises:
            InputError: The run directory cannot be continued.
        """
        plan = self.plan
        weights = plan.algorithm.initial(plan.network, plan.settings.run.seed)
        self._check_initial(weights)
        save_weights(self.run.initial_weights, weights)
        learned = plan.algorithm.learned(plan.network, weights)
        initial = initial_state(learned, plan.policy, message_form(plan.algorithm, learned))
        if not self.run.ledger.exists():
            Ledger(self.run.ledger, plan.privacy)
        found = reopen(self.run, plan, initial, self.budget, self.source, self.environment, self.lineage)
        if self.client_ledgers and self.source.reproducible:
            # A client whose disk lost its last lines writes them again; not of rounds that nobody can draw again.
            for cohort in found.journal.participations.before(found.state.round):
                if cohort.fresh or not self.source.needs_fresh:
                    self._answering(cohort)
        form = with_attachment(found.state.first, plan.policy.attachment)
        remembered = kept_noise_state(self.run, found.state.round, plan.mechanism.init(form), found.head)
        ending = self._rounds(found.state, remembered, found.journal, found.remarks)
        found.journal.close(ending.state.round, published(self.run))
        return ending

    def _check_initial(self, weights: Params) -> None:
        """A run goes on from where it began; one whose file a crash damaged takes it from the plan again."""
        path = self.run.initial_weights
        try:
            before = load_weights(path)
        except InputError:
            return
        if {*before} != {*weights} or any(not torch.equal(before[name], weights[name]) for name in weights):
            raise InputError(
                f"{path}: the run began with other weights than model.initial = {self.plan.settings.model.initial} and "
                "run.seed give now; restore the file that it began with"
            )

    def _rounds(
        self, state: ServerState, remembered: MechanismState, journal: Journal, remarks: Sequence[str]
    ) -> Ending:
        status: Status = "budget" if self.plan.shortened else "completed"
        failure: OwnCodeFailed | None = None
        saved = state.round if state.round else -1
        try:
            for remark in remarks:
                tell(self.callbacks, "on_remark", remark)
            while state.round < self.plan.privacy.rounds and is_finite(state):
                done = self._round(state, remembered, journal)
                if done is None:
                    status = "budget"
                    early = counted_words(self.plan.privacy.rounds - state.round, "round")
                    tell(self.callbacks, "on_remark", f"ended {early} early: the budget allows no further charge")
                    break
                state, remembered, row = done
                if state.round % self._checkpoint_every(journal) == 0:
                    self._save(state, remembered, journal)
                    saved = state.round
                tell(self.callbacks, "on_round", row)
        except KeyboardInterrupt:
            status = "interrupted"
        except OwnCodeFailed as error:
            # The round that a callback was told of is done, so it is kept.
            status, failure = "interrupted", error
        if not is_finite(state):
            status = DIVERGED
        with deferred():
            if saved == state.round:
                # A process that ended between the checkpoint and the weights left those of an earlier round.
                save_weights(self.run.weights, complete(self.plan, state))
            else:
                self._save(state, remembered, journal)
        return Ending(state=state, status=status, failure=failure)

    def _checkpoint_every(self, journal: Journal) -> int:
        # A round that is lost would be charged again.
        return self.plan.settings.run.checkpoint_every if journal.reproducible else 1

    def _save(self, state: ServerState, remembered: MechanismState, journal: Journal) -> None:
        checkpoint = Checkpoint(state=state, lines=journal.ledger.lines, head=journal.ledger.head)
        folder = self.run.path / "checkpoint"
        # Weights are never older than the latest checkpoint, from which the run goes on.
        save_weights(self.run.weights, complete(self.plan, state))
        # Written before the checkpoint that needs it, dropped after: a crash leaves too many and never too few.
        keep_noise_state(self.run, state.round, remembered, checkpoint.head)
        save_checkpoint(folder, checkpoint, self.plan.settings.run.keep_checkpoints)
        drop_noise_states(self.run, {round_ for round_, _ in checkpoint_files(folder)})

    def _round(
        self, state: ServerState, remembered: MechanismState, journal: Journal
    ) -> tuple[ServerState, MechanismState, dict[str, Any]] | None:
        """Run one round, charged and released; None if there is no budget for it.

        Args:
            state: State before the round.
            remembered: SECRET: the state of the mechanism.
            journal: Journal of the run.

        Returns:
            The next state, the next state of the mechanism, and the round's row.
        """
        plan, started = self.plan, time.perf_counter()
        if state.round in plan.privacy.ends:
            # Models of the rounds that were the last ones once are not among the last ones now.
            state = without_average(state)
        attempt = self._attempted(state, remembered, journal)
        if attempt is None:
            return None
        drawn, released, following_noise = attempt
        release = release_digest(released)
        if not journal.repeats(state.round, release):
            # The first release may be known: sharing its noise with another sum would reveal their difference.
            if not self.may_differ:
                raise InputError(
                    f"{self.run.path}: round {state.round} gives another result than before, though no module of yours "
                    "was edited: something else that your code reads was (a file, the clock). Nothing more was "
                    "charged: put it back, or allow that rounds are charged again by --changed-code (from Python "
                    "changed_code=True)"
                )
            remark = f"round {state.round} gives another result than before, so it is a new release and charged again"
            tell(self.callbacks, "on_remark", remark)
            attempt = self._attempted(state, remembered, journal, anew=True)
            if attempt is None:
                return None
            drawn, released, following_noise = attempt
            release = release_digest(released)
        if drawn.again and state.round not in journal.released:
            # Rows of earlier attempts give way; the ledger keeps their charges.
            for tracker in self.trackers:
                tracker.on_rewind(state.round)
            tell(self.callbacks, "on_rewind", state.round)
        seconds = time.perf_counter() - started
        charged = charged_after(journal.ledger, state.round)
        if released is None:
            following, row = skip(state), aborted_row(plan, charged, state)
        else:
            rule, last = server_step(plan, state.round), averages(plan, state.round)
            with own_failures(f"after round {state.round}", private=False):
                following = step(rule, plan.policy, state, released, averages=last)
            row = round_row(plan, charged, state, released) | compared(plan, journal.ledger, state, released)
        row |= self._times(state.round, seconds, aborted=released is None)
        row["release"] = release
        if TOO_LONG in row:
            tell(self.callbacks, "on_remark", too_long_words(row))
        if state.round == 0:
            row[f"validation_{self.validation.score_name}_untrained"] = self._validated(state)
        ended = following.round == plan.privacy.in_force(state.round)
        if not is_finite(following):
            tell(self.callbacks, "on_remark", f"round {state.round}: {NOT_FINITE}")
        elif ended or following.round % plan.settings.evaluation.every == 0:
            row |= self._measured(following, charged)
        for tracker in self.trackers:
            tracker.on_round(row)
        journal.released[state.round] = release
        return following, following_noise, row

    def _attempted(
        self, state: ServerState, remembered: MechanismState, journal: Journal, *, anew: bool = False
    ) -> tuple[Cohort, Released[ClientUnit, Params] | None, MechanismState] | None:
        """(The cohort, the release, the mechanism's next state) of an attempt that has a sum; None: no budget for it.

        Guarantee:
            A further attempt has a charge, a cohort and noise of its own. A run that is resumed goes on with the last
            one, since its charge says that those before it are used up.

        Raises:
            Exception: The last attempt may have a sum later, and no budget is left for a further one.
        """
        used_up: AttemptUsedUp | None = None
        inputs = round_inputs(state.round, state.model, state.bound, self.environment)
        inputs = journal.last_question(state.round, inputs)
        while (drawn := journal.begin(state.round, inputs, anew=anew)) is not None:
            if used_up is not None:
                tell(self.callbacks, "on_remark", f"{used_up}; a further attempt is made and charged")
            try:
                return drawn, *self._released(state, remembered, drawn, self._door(journal))
            except AttemptUsedUp as error:
                used_up, inputs = error, further_question(inputs)
        if used_up is not None and used_up.otherwise is not None:
            raise used_up.otherwise
        return None

    def _times(self, round_: int, seconds: float, *, aborted: bool) -> dict[str, float | None]:
        """Return the times for a round's row; without seconds if they would reveal the number of clients."""
        if hides_times(self.plan):
            keep_seconds(self.run, round_, seconds)
            return {"seconds": None}
        cohort = self.plan.privacy.at(round_).cohort
        return {"seconds": seconds} if aborted else {"seconds": seconds, "clients_per_second": cohort / seconds}

    def _measured(self, state: ServerState, charged: Sequence[Phase]) -> dict[str, Any]:
        """Measure public data and the accountant's values after a round."""
        settings = self.plan.settings
        measured: dict[str, Any] = {f"validation_{self.validation.score_name}": self._validated(state)}
        if self.public_clients is not None:
            count = settings.track.public_clients
            measured |= asdict(update_spread(self.public_clients, state.model, state.round, count))
        if settings.privacy.client.limit is not None:
            measured["delta_at_limit"] = delta_at_limit(
                (*self.plan.privacy.before, *charged), settings.privacy.client.limit
            )
        return measured

    def _validated(self, state: ServerState) -> dict[str, object]:
        """Score on public validation data; its episodes have seeds of their own."""
        plan, episodes = self.plan, self.plan.settings.evaluation.validation_episodes
        model = complete(plan, state)
        workers = Watched(self.workers, partial(tell, self.callbacks, "on_evaluation", "validation"))
        return self.validation.accuracy(workers, plan.network, model, plan.evaluation, episodes).as_json()

    def _door(self, journal: Journal) -> ReleaseDoor:
        """Return the journal, which releases what it charged and nothing else."""
        return journal

    def _released(
        self, state: ServerState, remembered: MechanismState, drawn: Cohort, door: ReleaseDoor
    ) -> tuple[Released[ClientUnit, Params] | None, MechanismState]:
        """(The release, the mechanism's next state); None where a client failed and that ends a round."""
        answering = self._answering(drawn)
        if self.plan.settings.server.abort_on_failure and len(answering.clients) < len(drawn.clients):
            return None, remembered
        try:
            secret = self.backend.cohort_sum(state.model, state.bound, answering)
        except RoundAborted:
            return None, remembered
        if secret.left_out:
            self._note_left_out(state.round, secret.left_out)
        releasing = partial(release_sum, self.plan.mechanism, state.round, secret, remembered)
        return door.release(drawn, releasing, bound=self.plan.message_bound(state.bound))

    def _note_left_out(self, round_: int, messages: int) -> None:
        """For the owner of the server alone."""
        keep_left_out(self.run, round_, messages)

    def _answering(self, drawn: Cohort) -> Cohort:
        """SECRET: of the invited clients, those that are there and do not decline."""
        source = self.source.again(drawn.again, drawn.fresh)
        cohort = Availability.of(self.plan.settings).answering(drawn, source)
        there = self.client_ledgers.willing(cohort) if self.client_ledgers else cohort
        return replace(there, invited=len(drawn.clients))


def complete(plan: Plan, state: ServerState) -> Params:
    """All weights to evaluate: what was learned, and what stayed as it was."""
    return {**plan.algorithm.initial(plan.network, plan.settings.run.seed), **state.result}


def server_step(plan: Plan, round_: int) -> ServerStep:
    """The server's step in round `round_`."""
    if plan.solver is None:
        return optimizer(plan, round_)
    correlated = getattr(plan.privacy.at(0).noise, "of_sums", None)
    correlation = () if correlated is None else tuple(correlated(plan.privacy.rounds).tolist())
    solving = ServerSolver(solver=plan.solver, correlation=correlation)
    return ServerPhases(first=solving, then=optimizer(plan, round_)) if plan.moves else solving


def optimizer(plan: Plan, round_: int) -> ServerOptimizer:
    """The server's optimizer in round `round_`, where it moves by a rule."""
    server = plan.settings.server
    return ServerOptimizer(
        rule=plan.rule,
        lr=server.lr,
        final_lr=server.final_lr,
        rounds=plan.privacy.in_force(round_),
        beta1=server.beta1,
        beta2=server.beta2,
        unit=server.unit,
    )


def averages(plan: Plan, round_: int) -> bool:
    """Return whether the model after round `round_` enters the average."""
    rounds = plan.privacy.in_force(round_)
    return round_ >= rounds * (1.0 - plan.settings.server.average)


def is_finite(state: ServerState) -> bool:
    """Return whether the model and what is kept of it are finite: otherwise no further round learns anything."""
    return all(math.isfinite(norm(each)) for each in (state.model, state.result))
