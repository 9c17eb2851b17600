"""The server step: from a released aggregate to the next model and clip bound. Pure post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

from dpfedmeta.core.params import Params, scaled, zeros_like
from dpfedmeta.privacy.clip_policies.policy_checks import next_bound
from dpfedmeta.privacy.clip_policy import ClipPolicy
from dpfedmeta.privacy.mechanisms import Released
from dpfedmeta.privacy.units import ClientUnit


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Running means over past releases, each divided by the sum of its weights.

    Attributes:
        first: Of the aggregates, with weights beta1^k for k rounds ago.
        second: Of their squares by coordinate, with weights beta2^k.
    """

    first: Params
    second: Params


class Solver(Protocol):
    """Rule of dpfedmeta.learning.server_optimizers that makes the next model from all releases at once.

    A member has `planned(algorithm, network)`, by which it is made.

    Guarantee:
        Post-processing, as of `Rule`.
    """

    def solved(self, mean: Params, deviation: float, /) -> Params:
        """The model, from the mean of all releases so far and the deviation of its noise; a public number."""
        ...


class Rule(Protocol):
    """Rule of dpfedmeta.learning.server_optimizers, which turns moments into a direction.

    Guarantee:
        Post-processing: the moments are functions of releases, and nothing else comes in.
    """

    def __call__(self, moments: Moments, /) -> Params:
        """The direction; the model moves by minus the step size times it."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServerOptimizer:
    """A pure function of released aggregates.

    Attributes:
        rule: From moments to a direction.
        lr: Step size of the first round.
        final_lr: Step size of the last round, reached along a cosine; None keeps it constant.
        rounds: T.
        beta1: Momentum.
        beta2: Decay of the second moment.
        unit: "bound" divides each aggregate by the bound it was clipped with, so that a moving bound neither
            speeds learning up nor slows it down.
    """

    rule: Rule
    lr: float
    final_lr: float | None
    rounds: int
    beta1: float
    beta2: float
    unit: Literal["raw", "bound"] = "raw"

    def step_size(self, round_: int) -> float:
        """The step size of round `round_`."""
        if self.final_lr is None or self.rounds < 2:
            return self.lr
        share = 0.5 * (1.0 + math.cos(math.pi * round_ / (self.rounds - 1)))
        return self.final_lr + (self.lr - self.final_lr) * share

    def moved(self, state: ServerState, release: Params, deviation: float) -> tuple[Params, Params, Params]:
        """See `ServerStep`; the moments of the releases are remembered."""
        done, rate = state.released + 1, self.step_size(state.round)
        gradient = scaled(release, 1.0 / state.bound) if self.unit == "bound" else release
        b1, b2 = self.beta1, self.beta2
        first = {n: b1 * m + (1 - b1) * gradient[n] for n, m in state.first.items()}
        second = {n: b2 * v + (1 - b2) * gradient[n] ** 2 for n, v in state.second.items()}
        moments = Moments(
            first={n: m / (1 - b1**done) for n, m in first.items()},
            second={n: v / (1 - b2**done) for n, v in second.items()},
        )
        update = self.rule(moments)
        return {n: w - rate * update[n] for n, w in state.model.items()}, first, second


class ServerStep(Protocol):
    """Step of a server from a release to the next model, besides the next clip bound."""

    def moved(self, state: ServerState, release: Params, deviation: float) -> tuple[Params, Params, Params]:
        """Return the next model, and what is remembered of all releases.

        Args:
            state: Before the round.
            release: The released mean, without what a clip policy attached.
            deviation: Standard deviation of the noise of each of its numbers.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class ServerSolver:
    """A server step that begins anew with all releases each time, which weigh the same.

    Attributes:
        solver: From the mean of the releases to a model.
        correlation: Deviation of the noise of the sum of 1, 2, ... releases, over that of independent noise; empty: 1.
    """

    solver: Solver
    correlation: tuple[float, ...] = ()

    def moved(self, state: ServerState, release: Params, deviation: float) -> tuple[Params, Params, Params]:
        """See `ServerStep`; `second` holds the variance of the mean of independent noise."""
        before, done = float(state.released), state.released + 1
        mean = {name: value + (release[name] - value) / done for name, value in state.first.items()}
        variance = {name: (value * before**2 + deviation**2) / done**2 for name, value in state.second.items()}
        known = math.sqrt(max(float(next(iter(variance.values())).reshape(-1)[0]), 0.0))
        known *= self.correlation[state.released] if self.correlation else 1.0
        return {**state.model, **self.solver.solved(mean, known)}, mean, variance


@dataclass(frozen=True, kw_only=True)
class ServerPhases:
    """A server step that solves for the model with the first release, and moves it by a rule with all others.

    Attributes:
        first: Of the first release.
        then: Of the others; its means begin with them.
    """

    first: ServerSolver
    then: ServerOptimizer

    def moved(self, state: ServerState, release: Params, deviation: float) -> tuple[Params, Params, Params]:
        """See `ServerStep`."""
        if not state.released:
            model, mean, variance = self.first.moved(state, release, deviation)
            begun = {n: v for n, v in mean.items() if n in state.model}
            return model, {**mean, **zeros_like(begun)}, {**variance, **zeros_like(begun)}
        moving = [name for name in release if name in state.model]
        parts = ({name: own[name] for name in moving} for own in (state.model, state.first, state.second, release))
        model, first, second, gradient = parts
        later = replace(state, released=state.released - 1, model=model, first=first, second=second)
        model, first, second = self.then.moved(later, gradient, deviation)
        return {**state.model, **model}, {**state.first, **first}, {**state.second, **second}


@dataclass(frozen=True, kw_only=True)
class ServerState:
    """All that the server remembers between rounds; every part is post-processing of releases.

    Attributes:
        round: Rounds done.
        released: How many of them released something: what `first` and `second` are made of.
        model: The latest model.
        first: First moment.
        second: Second moment.
        policy: State of the clip policy.
        bound: Clip bound of the next round.
        average: Mean of the models since averaging began.
        averaged: How many models it holds.
    """

    round: int
    released: int
    model: Params
    first: Params
    second: Params
    policy: Any
    bound: float
    average: Params
    averaged: int

    @property
    def result(self) -> Params:
        """The model to evaluate and keep: the average where there is one, else the latest."""
        return self.average if self.averaged else self.model


def initial_state(model: Params, policy: ClipPolicy[Any], form: Params | None = None) -> ServerState:
    """Before the first round.

    Args:
        model: What is learned.
        policy: The clip policy.
        form: Of a message, without what the policy attaches; None: that of the model.
    """
    form = model if form is None else form
    start = policy.initial()
    return ServerState(
        round=0,
        released=0,
        model=model,
        first=zeros_like(form),
        second=zeros_like(form),
        policy=start,
        bound=start.bound,
        average=zeros_like(model),
        averaged=0,
    )


def without_average(state: ServerState) -> ServerState:
    """The average begins anew."""
    return replace(state, average=zeros_like(state.average), averaged=0)


def skip(state: ServerState) -> ServerState:
    """A round without a release: nothing changes but the count of rounds."""
    return replace(state, round=state.round + 1)


def step(
    optimizer: ServerStep,
    policy: ClipPolicy[Any],
    state: ServerState,
    aggregate: Released[ClientUnit, Params],
    *,
    averages: bool,
) -> ServerState:
    """Compute one server step.

    Args:
        optimizer: The server's optimizer.
        policy: The clip policy.
        state: Before the round.
        aggregate: The released noisy mean of clipped messages.
        averages: Whether the new model enters the average of the last models.

    Guarantee:
        Post-processing: a function of the state and the release alone.

    Raises:
        InputError: The policy gives what is no bound; nothing of the round is shown.
    """
    # What a policy had attached to the messages is for the policy alone.
    release = {name: aggregate.value[name] for name in state.first}
    model, first, second = optimizer.moved(state, release, aggregate.noise_deviation)
    after, bounded = f"clip.policy: after round {state.round}", math.isfinite(state.bound)
    policy_state, bound = next_bound(policy, state.policy, aggregate, after, bounded=bounded)
    following = replace(
        state,
        round=state.round + 1,
        released=state.released + 1,
        model=model,
        first=first,
        second=second,
        policy=policy_state,
        bound=bound,
    )
    if not averages:
        return following
    count = state.averaged + 1
    average = {n: a + (model[n] - a) / count for n, a in state.average.items()}
    return replace(following, average=average, averaged=count)
