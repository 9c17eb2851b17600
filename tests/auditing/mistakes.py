"""Planted mistakes: each is a double of one part, run through the same rounds and attacked as the product is."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from dpfedmeta.accounting.events.toeplitz_coefficients import noise_deviations
from dpfedmeta.auditing.attacks.likelihood_ratio import attack_on
from dpfedmeta.auditing.canaries import SideWithCanaries
from dpfedmeta.auditing.estimators.many_runs import Bench
from dpfedmeta.auditing.observed_loop import AuditedTraining
from dpfedmeta.auditing.reduced_plan import audited_settings
from dpfedmeta.auditing.trade_off_function import GaussianCurve, SampledCurve, epsilon_of_curve
from dpfedmeta.core.params import flatten, scaled, unflatten
from dpfedmeta.core.random.random_sources import KeyedSource
from dpfedmeta.data.task_file import load_task
from dpfedmeta.planning.run_plan import make_plan
from dpfedmeta.privacy.clip_policies.constant_policy import ConstantState
from dpfedmeta.privacy.mechanisms import post_process
from dpfedmeta.privacy.samplers import Cohort

TINY = {
    "model.name": "linear", "model.width": "1", "meta.learn": "all", "meta.adapt": "all", "population.clients": "4",
    "population.cohort": "4", "server.rounds": "2", "clip.policy": "constant", "privacy.client.epsilon": "null",
    "server.noise_multiplier": "2.0",
}  # fmt: skip


def plan_of(algo="dp-const", own_policy=None, **given):
    settings = audited_settings(algo, "strokes", None, {**TINY, **given}, as_planned=False)
    return make_plan(settings, load_task("strokes")[0], own_policy)


def attack_of(plan, name="(client, public)"):
    return attack_on(plan, next(cell for cell in plan.planned if cell.name == name))


def outcome(plan, attack, runs, curve=None, **bench):
    """(audited, promised) of a cell."""
    curve = curve or attack.curve
    ratios = Bench(plan=plan, runs=runs, seed=5, **bench).ratios(attack)
    return epsilon_of_curve(ratios.right, ratios.runs, curve, 0.05), curve.epsilon(1.0)


def with_part(plan, **parts):
    """The plan with another part in its place."""
    vars(plan).update(parts)
    return plan


@dataclass
class Wrapped:
    """A mechanism with a mistake."""

    honest: Any

    def init(self, form):
        return self.honest.init(form)

    def event(self, round_):
        return self.honest.event(round_)


@dataclass
class Steered:
    """A bound that grows, or falls, by a factor each round: a function of no data."""

    factor: float
    attachment = None

    def initial(self):
        return ConstantState(bound=1.0)

    def next_bound(self, state, aggregate):
        return ConstantState(bound=state.bound * self.factor), state.bound * self.factor


@dataclass
class OtherBound(Wrapped):
    """Noise for the bound of another round."""

    factor: float

    def release(self, round_, query, state, generator):
        return self.honest.release(
            round_, replace(query, sensitivity=query.sensitivity * self.factor), state, generator
        )


def last_rounds_bound(runs, honest=False):
    plan = plan_of(own_policy=Steered(3.0))
    if not honest:
        with_part(plan, mechanism=OtherBound(plan.mechanism, 1 / 3))
    return outcome(plan, attack_of(plan), runs)


def next_rounds_bound(runs, honest=False):
    """Flower's adaptive clipping: clipped at C_t, noise for C_(t+1)."""
    plan = plan_of(own_policy=Steered(1 / 3))
    if not honest:
        with_part(plan, mechanism=OtherBound(plan.mechanism, 1 / 3))
    return outcome(plan, attack_of(plan), runs)


class Realised(AuditedTraining):
    """Divides by how many took part, as Opacus does."""

    def _released(self, state, remembered, drawn, door):
        released, following = super()._released(state, remembered, drawn, door)
        noting: Any = self.backend
        count = len(drawn.clients) - (not noting.backend.clients.canaries)
        wrong = self.plan.privacy.cohort / count
        seen = self.seen.pop()
        self.seen.append(replace(seen, total=seen.total * wrong))
        return post_process(lambda value: scaled(value, wrong), [released], released.noise_deviation), following


@dataclass
class Energy:
    """Knows that the noise is larger where one client fewer took part."""

    worlds: Any
    curve: Any
    clients: int

    def ratio(self, seen):
        energy = np.mean([float(each.total.square().mean()) / each.deviation**2 for each in seen.releases])
        # Half way between 1 and (L / (L - 1))^2.
        return (1 + (self.clients / (self.clients - 1)) ** 2) / 2 - energy


def realised_denominator(runs, honest=False):
    plan = plan_of(**{"model.name": "mlp", "model.width": "2", "meta.adapt": "head", "meta.learn": "body"})
    usual = attack_of(plan)
    attack = Energy(usual.worlds, usual.curve, 4)
    return outcome(plan, attack, runs, training=AuditedTraining if honest else Realised)


class DropsOut(AuditedTraining):
    """Only two of eight answer; `share` of the noise that all would bring is counted."""

    share = 2 / 8

    def _released(self, state, remembered, drawn, door):
        object.__setattr__(self, "backend", Counting(self.backend, self.share))
        return super()._released(state, remembered, Cohort(round=drawn.round, clients=drawn.clients[:2]), door)


class Counting:
    """What the backend says, with noise of so many clients."""

    def __init__(self, backend, share):
        self.backend, self.share = backend, share

    def cohort_sum(self, model, bound, cohort):
        found = self.backend.cohort_sum(model, bound, cohort)
        return replace(found, noise_variance=self.share / (2 / 8) * found.noise_variance)


class CountsAll(DropsOut):
    share = 1.0


def noise_of_the_dropped(runs, honest=False):
    given = {
        "population.clients": "8", "population.cohort": "8", "population.sampler": "fixed", "server.rounds": "1",
        "server.noise_site": "clients", "server.noise_multiplier": "4.0",
    }  # fmt: skip
    plan = plan_of(**given)
    usual = attack_of(plan)
    usual._colluding = 0
    return outcome(plan, usual, runs, training=DropsOut if honest else CountsAll)


@dataclass(frozen=True)
class Deaf(KeyedSource):
    """The same streams for every attempt."""

    def again(self, key, fresh=b""):
        return self


class TwoAttempts(AuditedTraining):
    """Every round is done, and done again with another cohort: both releases are seen, and charged."""

    def _released(self, state, remembered, drawn, door):
        super()._released(state, remembered, drawn, door)
        without = Cohort(round=drawn.round, clients=drawn.clients[1:], again=(1,))
        return super()._released(state, remembered, without, door)


@dataclass
class Difference:
    """Knows that the noise of two attempts may be one."""

    worlds: Any
    curve: Any

    def ratio(self, seen):
        first, second = seen.releases[:2]
        apart = float((first.total - second.total).norm()) / first.deviation
        # Their own noises are twice as far apart as this.
        return 1.0 if 1e-4 < apart < 0.9 else -1.0


def same_noise_in_both_attempts(runs, honest=False):
    plan = plan_of(**{"server.noise_multiplier": "3.0", "server.rounds": "1"})
    usual = attack_of(plan)
    both = GaussianCurve(mu=math.sqrt(2) / 3.0, delta=usual.curve.delta)
    source = KeyedSource if honest else Deaf
    return outcome(plan, Difference(usual.worlds, both), runs, both, training=TwoAttempts, source=source)


@dataclass
class RawNorms(Steered):
    """The bound of the next round is the largest norm before clipping."""

    largest: float = 1.0

    def next_bound(self, state, aggregate):
        return ConstantState(bound=self.largest), self.largest


@dataclass
class Telling:
    """The policy sees what the clients of a world hold."""

    honest: Any
    policy: Any

    def clients(self, one, source):
        self.policy.largest = 4.0 if one else 1.0
        return self.honest.clients(one, source)


@dataclass
class ByBound:
    worlds: Any
    curve: Any

    def ratio(self, seen):
        return seen.releases[1].bound - 2.0


def bound_from_raw_norms(runs, honest=False):
    policy = RawNorms(1.0)
    plan = plan_of(own_policy=Steered(1.0) if honest else policy)
    usual = attack_of(plan)
    return outcome(plan, ByBound(Telling(usual.worlds, policy), usual.curve), runs)


class InOrder:
    """Clients one after the other, as shuffling and passes over the data do."""

    def __init__(self, round_, clients):
        self.round, self.clients = round_, clients

    def draw(self, round_, participations, generator, latest):
        return Cohort(round=round_, clients=np.array([round_ % self.clients]))


@dataclass
class KnowsTheOrder:
    """Looks at the canary's own rounds, where nothing is sampled."""

    usual: Any

    @property
    def worlds(self):
        return self.usual.worlds

    @property
    def curve(self):
        return self.usual.curve

    def ratio(self, seen):
        own = [each for each in seen.releases if each.round % 10 == 0]
        return sum(
            float(each.total @ (m := self.usual._messages.message(each, True)) - m @ m / 2) / each.deviation**2
            for each in own
        )


def fixed_order(runs, honest=False):
    plan = plan_of(**{
        "population.clients": "10", "population.cohort": "1", "server.rounds": "20", "server.noise_multiplier": "0.8",
    })  # fmt: skip
    if not honest:
        with_part(plan, sampler=lambda round_: InOrder(round_, 10))
    return outcome(plan, KnowsTheOrder(attack_of(plan)), runs)


class Floored:
    """A generator whose discrete noise has a deviation that was rounded down."""

    def __init__(self, honest):
        self.honest = honest

    def __getattr__(self, name):
        return getattr(self.honest, name)

    def discrete_normal(self, variance, size):
        return self.honest.discrete_normal(max(math.floor(math.sqrt(variance)), 1) ** 2, size)


@dataclass(frozen=True)
class RoundsDown(KeyedSource):
    def generator(self, purpose, *key):
        return Floored(super().generator(purpose, *key))


def discrete_noise_rounded_down(runs, honest=False):
    plan = plan_of("dp-agr-secure", **{
        "population.clients": "8", "population.cohort": "8", "population.sampler": "fixed", "server.rounds": "1",
        "aggregation.bits": "8", "aggregation.rough": "true", "server.noise_multiplier": "1.7",
    })  # fmt: skip
    attack = attack_of(plan, "(client, server)")
    return outcome(plan, attack, runs, source=KeyedSource if honest else RoundsDown)


class Heavy(SideWithCanaries):
    """A client with many examples weighs more, after it was clipped."""

    def clipped_sum(self, model, bound, round_, clients):
        # Where it is done: a message that is longer than its bound would count as 0.
        total, entered = super().clipped_sum(model, bound, round_, clients)
        return 3 * total, entered


@dataclass
class Weighing:
    honest: Any

    def clients(self, one, source):
        return Heavy(**vars(self.honest.clients(one, source)))


def weights_by_examples(runs, honest=False):
    plan = plan_of(**{"server.noise_multiplier": "4.0"})
    attack = attack_of(plan)
    if not honest:
        attack._messages  # noqa: B018  what the attacker expects is the honest message
        attack.worlds = Weighing(attack.worlds)
    return outcome(plan, attack, runs)


@dataclass
class Guarded(Wrapped):
    """`noise if gradient is not None`: a parameter that nobody moved gets none."""

    def release(self, round_, query, state, generator):
        released, state = self.honest.release(round_, query, state, generator)
        silent = flatten(query.value) == 0
        value = flatten(released.value)
        value = torch.where(silent, torch.zeros_like(value), value)
        return post_process(lambda old: unflatten(value, old), [released], released.noise_deviation), state


def noise_only_where_there_is_a_gradient(runs, honest=False):
    plan = plan_of(**{"server.noise_multiplier": "4.0"})
    if not honest:
        with_part(plan, mechanism=Guarded(plan.mechanism))
    return outcome(plan, attack_of(plan), runs)


def population_that_is_too_large(runs, honest=False):
    """Counts with a hundred times the clients that there are, as the paper does for Omniglot."""
    plan = plan_of(**{"server.noise_multiplier": "1.0", "server.rounds": "4"})
    claimed = replace(plan.privacy, clients=4 if honest else 40)
    attack = attack_of(plan)
    curve = SampledCurve(phases=claimed.phases, neighbours="add-remove", delta=1e-5)
    return outcome(plan, attack, runs, curve)


def replacement_counted_as_removal(runs, honest=False):
    """Hands the accountant std/C where a replaced client moves the sum by 2C, as Flower's documentation does."""
    plan = plan_of(**{"population.sampler": "fixed", "server.noise_multiplier": "3.0"})
    attack = attack_of(plan)
    curve = attack.curve if honest else GaussianCurve(mu=attack.curve.mu / 2, delta=attack.curve.delta)
    return outcome(plan, attack, runs, curve)


@dataclass
class Restarted(Wrapped):
    """One round draws the fresh noise of the first one again, as a generator does that a resume has begun anew."""

    at: int
    secret: Any = None

    def release(self, round_, query, state, generator):
        if round_ == 0:
            self.secret = generator.normal(10**5)
        if round_ in (0, self.at):
            generator = Repeating(self.secret)
        return self.honest.release(round_, query, state, generator)


@dataclass
class Repeating:
    numbers: Any

    def normal(self, size):
        return self.numbers[:size]


@dataclass
class SameNoise:
    """Knows that the fresh noise of a round may be that of the first one."""

    usual: Any
    at: int

    @property
    def worlds(self):
        return self.usual.worlds

    @property
    def curve(self):
        return self.usual.curve

    def ratio(self, seen):
        deviations = noise_deviations(self.usual.noise.coefficients(self.usual.plan.privacy.rounds))
        values = [
            each.total * self.usual.noise.multiplier * float(deviation) / each.deviation
            for each, deviation in zip(seen.releases, deviations, strict=True)
        ]
        fresh = self.usual._multiplied(values)
        apart = fresh[self.at] - fresh[0]
        if float(apart.norm()) > 0.5 * self.usual.noise.multiplier * len(apart) ** 0.5:
            return self.usual.ratio(seen)
        # Nothing is left but messages.
        return float(apart.norm()) - 1e-3


def correlated_noise_restarted(runs, honest=False):
    plan = plan_of("dp-agr-correlated", **{"server.rounds": "4", "server.noise_multiplier": "6.0"})
    attack = SameNoise(attack_of(plan), 2)
    if not honest:
        with_part(plan, mechanism=Restarted(plan.mechanism, 2))
    return outcome(plan, attack, runs)


FOUND = {
    "noise of the last round's bound": (last_rounds_bound, 300),
    "noise of the next round's bound": (next_rounds_bound, 300),
    "the realised count as denominator": (realised_denominator, 60),
    "noise of dropped clients counted": (noise_of_the_dropped, 300),
    "the same noise for both attempts of a round": (same_noise_in_both_attempts, 60),
    "a bound from raw norms": (bound_from_raw_norms, 60),
    "sampling in a fixed order": (fixed_order, 80),
    "discrete noise with a rounded-down deviation": (discrete_noise_rounded_down, 3000),
    "weights by examples": (weights_by_examples, 300),
    "noise only where there is a gradient": (noise_only_where_there_is_a_gradient, 300),
    "a population that is too large": (population_that_is_too_large, 100),
    "a replacement counted as a removal": (replacement_counted_as_removal, 300),
    "correlated noise that begins again after a resume": (correlated_noise_restarted, 60),
}
