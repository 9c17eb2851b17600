"""Training, from a plan to a run directory: the imperative shell around pure steps."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dpfedmeta.errors import InputError
from dpfedmeta.evaluation import Examination
from dpfedmeta.federation.backend import Backend, RoundAborted, Workers
from dpfedmeta.federation.client_ledgers import ClientLedgers
from dpfedmeta.federation.clients import ClientSide
from dpfedmeta.federation.plan import Plan
from dpfedmeta.federation.public_clients import update_spread
from dpfedmeta.federation.server import ServerOptimizer, ServerState, initial_state, skip, step
from dpfedmeta.models import initial_weights, learned_part
from dpfedmeta.parameters import Params, dimension, norm
from dpfedmeta.privacy.accounting import guarantees
from dpfedmeta.privacy.guarantee import Guarantee
from dpfedmeta.privacy.ledger import Budget, Ledger, planned_event
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.sampled_gaussian import neighbours_of_a_client, sampled_delta
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.randomness import KeyedSource, Purpose, SecretSource
from dpfedmeta.tracking.run_directory import RunDirectory, append_lines, save_weights, write_text
from dpfedmeta.tracking.trackers import Tracker

Status = Literal["completed", "budget", "interrupted"]


class Participations:
    """SECRET: how often each client took part; on disk before the clients of a round are invited."""

    def __init__(self, run: RunDirectory) -> None:
        self._path = run.secret / "participations.jsonl"
        self.counts: dict[int, int] = {}

    def record(self, cohort: Cohort) -> None:
        """Count a cohort."""
        clients = cohort.clients.tolist()
        append_lines(self._path, [{"round": cohort.round, "clients": clients}], mode=0o600)
        for client in clients:
            self.counts[client] = self.counts.get(client, 0) + 1


def keep_secret(run: RunDirectory, source: SecretSource) -> None:
    """Write the noise seed, if there is one, for the server alone."""
    if isinstance(source, KeyedSource):
        write_text(run.secret / "noise_seed.json", json.dumps({"seed": source.seed}) + "\n", mode=0o600)


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
        trackers: Who is told of released quantities.
        budget: What may be spent at most.
        client_ledgers: What the clients keep themselves, if they do.
        public_clients: Clients made of public data, where their updates are measured.
    """

    plan: Plan
    run: RunDirectory
    backend: Backend
    workers: Workers
    validation: Examination
    source: SecretSource
    trackers: tuple[Tracker, ...]
    budget: Budget
    client_ledgers: ClientLedgers | None = None
    public_clients: ClientSide | None = None

    def __call__(self) -> tuple[ServerState, Status]:
        """Train until the rounds, the budget or the patience ends."""
        plan = self.plan
        weights = initial_weights(plan.network, plan.settings.run.seed)
        save_weights(self.run.initial_weights, weights)
        state = initial_state(learned_part(plan.network, weights), plan.policy)
        ledger = Ledger(self.run.ledger, plan.privacy)
        participations = Participations(self.run)
        affordable = self.budget.affordable_rounds(plan.privacy)
        status: Status = "budget" if plan.shortened else "completed"
        try:
            for _ in range(plan.privacy.rounds):
                if ledger.rounds >= affordable:
                    status = "budget"
                    break
                state = self._round(state, ledger, participations)
        except KeyboardInterrupt:
            status = "interrupted"
        save_weights(self.run.weights, complete(plan, state))
        return state, status

    def _round(self, state: ServerState, ledger: Ledger, participations: Participations) -> ServerState:
        plan, started = self.plan, time.perf_counter()
        sampler_stream = self.source.generator(Purpose.COHORT, state.round)
        drawn = plan.sampler(state.round).draw(state.round, participations.counts, sampler_stream)
        participations.record(drawn)
        # Before the clients are invited: towards the server, their own messages are the releases (privacy rule 6).
        ledger.charge(planned_event(plan.privacy, state.round))
        cohort = self.client_ledgers.willing(drawn) if self.client_ledgers else drawn
        try:
            secret = self.backend.cohort_sum(state.model, state.bound, cohort)
        except RoundAborted:
            following, row = skip(state), aborted_row(plan, state, time.perf_counter() - started)
        else:
            noise = self.source.generator(Purpose.SERVER_NOISE, state.round)
            released = plan.mechanism(state.round).release(secret, noise)
            following = step(optimizer(plan), plan.policy, state, released, averages=averages(plan, state.round))
            row = round_row(plan, state, released, time.perf_counter() - started)
        settings = plan.settings
        last = following.round == plan.privacy.rounds
        if following.round % settings.evaluation.every == 0 or last:
            row |= self._measured(following)
        if following.round % settings.run.checkpoint_every == 0:
            save_weights(self.run.weights, complete(plan, following))
        for tracker in self.trackers:
            tracker.log(row)
        return following

    def _measured(self, state: ServerState) -> dict[str, Any]:
        """What public data and the accountant say after a round."""
        plan, settings = self.plan, self.plan.settings
        model, episodes = complete(plan, state), settings.evaluation.validation_episodes
        accuracy = self.validation.accuracy(self.workers, plan.network, model, plan.evaluation, episodes)
        measured: dict[str, Any] = {"validation_accuracy": accuracy.as_json()}
        if self.public_clients is not None:
            count = settings.track.public_clients
            measured |= asdict(update_spread(self.public_clients, state.model, state.round, count))
        if settings.privacy.client.limit is not None:
            measured["delta_at_limit"] = delta_at_limit(plan, state.round, settings.privacy.client.limit)
        return measured


def complete(plan: Plan, state: ServerState) -> Params:
    """All weights to evaluate: what was learned, and what stayed as it was."""
    return {**initial_weights(plan.network, plan.settings.run.seed), **state.result}


def optimizer(plan: Plan) -> ServerOptimizer:
    """The server's optimizer."""
    server = plan.settings.server
    return ServerOptimizer(
        kind=server.optimizer,
        lr=server.lr,
        final_lr=server.final_lr,
        rounds=plan.privacy.rounds,
        beta1=server.beta1,
        beta2=server.beta2,
        unit=server.unit,
    )


def averages(plan: Plan, round_: int) -> bool:
    """Whether the model after round `round_` enters the average."""
    rounds = plan.privacy.rounds
    return round_ >= rounds * (1.0 - plan.settings.server.average)


def round_row(plan: Plan, state: ServerState, released: Released[Any, Any], seconds: float) -> dict[str, Any]:
    """One line of rounds.jsonl: released quantities only."""
    aggregate = {name: released.value[name] for name in state.model}
    noise = released.noise_deviation * dimension(aggregate) ** 0.5
    epsilons = {name: finite(value) for name, value in running_epsilons(plan, state.round + 1).items()}
    return {
        "round": state.round,
        "clip": finite(state.bound),
        "clip_mode": state.policy.mode,
        "aggregate_norm": norm(aggregate),
        "noise_norm_expected": noise,
        "signal_to_noise": signal_to_noise(norm(aggregate), noise),
        "epsilons": epsilons,
        "seconds": seconds,
        "clients_per_second": plan.privacy.at(state.round).cohort / seconds,
    }


def aborted_row(plan: Plan, state: ServerState, seconds: float) -> dict[str, Any]:
    """The line of a round in which nothing was released; it is charged like any other."""
    epsilons = {name: finite(value) for name, value in running_epsilons(plan, state.round + 1).items()}
    return {
        "round": state.round,
        "aborted": True,
        "clip": finite(state.bound),
        "clip_mode": state.policy.mode,
        "epsilons": epsilons,
        "seconds": seconds,
    }


def delta_at_limit(plan: Plan, rounds: int, epsilon: float) -> float:
    """Delta of (client, public) at the limit's epsilon after `rounds` rounds (Geyer et al. stop by it)."""
    stretches = plan.privacy.first(rounds)
    return sampled_delta(stretches, neighbours_of_a_client(plan.privacy.sampler), epsilon)


def signal_to_noise(aggregate: float, noise: float) -> float | None:
    """Estimated norm of the clipped mean over that of its noise, both from the release; None without noise."""
    return math.sqrt(max(aggregate**2 - noise**2, 0.0)) / noise if noise else None


def running_epsilons(plan: Plan, rounds: int) -> Mapping[str, float]:
    """Upper bounds after `rounds` rounds, never above the plan's own."""
    done = guarantees(plan.privacy, rounds=rounds, grids=(plan.running_grid,))
    return {cell(g): min(g.epsilon, p.epsilon) for g, p in zip(done, plan.planned, strict=True)}


def cell(guarantee: Guarantee) -> str:
    """Name of a cell in files and plots."""
    return f"{guarantee.unit}_{guarantee.observer}"


def finite(value: float) -> float | None:
    """JSON has no infinity."""
    return value if value < float("inf") else None


def check_finite(state: ServerState) -> None:
    """Say so when training diverged, instead of evaluating NaN."""
    total = norm(state.result)
    if total != total or total == float("inf"):
        raise InputError("training diverged: the model holds NaN or Inf; lower server.lr or meta.lr")
