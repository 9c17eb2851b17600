"""The best attack on each cell: the log-likelihood ratio of what its observer saw, under the promised mechanism."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dpfedmeta.accounting.events import surplus
from dpfedmeta.accounting.gaussian import gaussian_mu
from dpfedmeta.accounting.guarantee import Guarantee
from dpfedmeta.accounting.noise import GaussianNoise
from dpfedmeta.auditing.loop import Seen
from dpfedmeta.auditing.trade_off import GaussianCurve, SampledCurve, TradeOff
from dpfedmeta.auditing.worlds import CANARY, ClientWorlds, Observed, RecordWorlds, Worlds
from dpfedmeta.parameters import dimension, flatten, length_of
from dpfedmeta.planning.plan import Plan
from dpfedmeta.privacy.samplers import Cohort
from dpfedmeta.privacy.units import Bounded, Client
from dpfedmeta.randomness import KeyedSource
from dpfedmeta.simulation.client_side import ClientSide
from dpfedmeta.simulation.secure_sums import rounded_messages

_MOST_KEPT = 64
_NO_NOISE = 1e-12


class Attack(Protocol):
    """On one cell of a plan."""

    @property
    def worlds(self) -> Worlds:
        """What it tells apart."""
        ...

    @property
    def curve(self) -> TradeOff | None:
        """Of the promise; None: it is not known with another noise."""
        ...

    def ratio(self, seen: Observed) -> float:
        """Of one run: the log of how much likelier it is in the one world than in the other."""
        ...


class NoAttack(Exception):
    """Why a cell is not attacked, in words."""


def attack_on(plan: Plan, cell: Guarantee) -> Attack:
    """The attack on a cell.

    Raises:
        NoAttack: Nothing is promised, or its observer sees what no attack here can read.
    """
    if not math.isfinite(cell.epsilon):
        raise NoAttack("nothing is promised")
    if not all(phase.event.noise for phase in plan.privacy.phases):
        raise NoAttack("noisy local steps: the law of what they release is not known to these attacks")
    in_client = cell.unit == "record" and plan.privacy.record is not None
    if in_client and plan.network.form.vocabulary is not None:
        raise NoAttack("no record of tokens is glaring enough for a canary")
    added = cell.unit == "client" and cell.observer == "public" and plan.privacy.sampler != "fixed"
    worlds = _glaring(plan) if in_client else ClientWorlds(plan=plan, other=0 if added else -1)
    if cell.observer == "public":
        return OnReleases(plan=plan, cell=cell, worlds=worlds)
    if plan.privacy.at(0).whole is not None:
        return OnServer(plan=plan, cell=cell, worlds=worlds, look=the_sum)
    if plan.privacy.server_sees == "sum" or plan.message_clip_ratio is not None:
        raise NoAttack("no attack on messages that are clipped after their noise, or on sums of real numbers")
    return OnServer(plan=plan, cell=cell, worlds=worlds, look=the_message)


# Every number of a canary's record. Of one of the two the network thinks as little as of no other label.
_GLARING = (50.0, -50.0)


def _glaring(plan: Plan) -> Worlds:
    """The records of which the first message says most.

    Raises:
        NoAttack: It says nothing of either.
    """
    weights = plan.algorithm.initial(plan.network, plan.settings.run.seed)
    model, bound = plan.algorithm.learned(plan.network, weights), plan.policy.initial().bound
    first = Seen(round=0, bound=bound, model=model, total=None, deviation=0.0)

    def moved(worlds: Worlds) -> float:
        known = Known(worlds=worlds)
        return length_of(known.message(first, True) - known.message(first, False))

    found = max((RecordWorlds(plan=plan, glaring=value) for value in _GLARING), key=moved)
    if moved(found) < 0.1 * bound / max(plan.shape.query_records, 1):
        raise NoAttack("no record of a canary moves a message of this network; choose --model.name linear")
    return found


@dataclass(kw_only=True, eq=False)
class Known:
    """What the canary sends in either world, without noise, as the loop would clip it.

    Attributes:
        worlds: The two worlds.
    """

    worlds: Worlds
    _found: dict[tuple[float, int, bool], Tensor] = field(default_factory=dict)

    def message(self, release: Seen, one: bool) -> Tensor:
        """[d] float64. Of a canary that sends what it likes it depends on the bound alone."""
        round_ = -1 if isinstance(self.worlds, ClientWorlds) else release.round
        key = (release.bound, round_, one)
        if round_ >= 0:
            return exact_message(self._sides[one], release)
        if key not in self._found:
            if len(self._found) >= _MOST_KEPT:
                self._found.clear()
            self._found[key] = exact_message(self._sides[one], release)
        return self._found[key]

    @cached_property
    def _sides(self) -> dict[bool, ClientSide]:
        return {one: quiet(self.worlds.clients(one, KeyedSource(0))) for one in (True, False)}


@dataclass(kw_only=True, eq=False)
class OnReleases:
    """By everybody, who sees the noisy sums, hence all models and bounds.

    Attributes:
        plan: What is promised.
        cell: Of (client, public) or (record, public).
        worlds: What is told apart.
    """

    plan: Plan
    cell: Guarantee
    worlds: Worlds

    @cached_property
    def curve(self) -> TradeOff | None:
        """That of the plan's own rounds; a normal one where nobody is sampled, and for records inside clients."""
        phases = self.plan.privacy.phases
        if not all(isinstance(phase.event.noise, GaussianNoise) for phase in phases):
            return None
        if isinstance(self.worlds, RecordWorlds) or all(phase.event.rate == 1 for phase in phases):
            return normal_curve(self.cell)
        neighbours = "replace-one" if self.worlds.other else "add-remove"  # type: ignore[attr-defined]
        return SampledCurve(phases=phases, neighbours=neighbours, delta=self.cell.delta - surplus(phases))  # type: ignore[arg-type]

    def ratio(self, seen: Observed) -> float:
        """Summed over rounds, each a mixture over whether the canary was drawn."""
        total = 0.0
        for release in seen.releases:
            if release.total is None:
                continue
            rate, values = self.plan.privacy.at(release.round).rate, release.total - self._known(seen, release)
            variance = release.deviation**2 - self._colluding * self._clients.message_noise_variance(release.bound)
            for one in (True, False):
                loss = _over_nothing(values, self._messages.message(release, one), variance)
                mixed = loss if rate == 1 else float(np.logaddexp(math.log1p(-rate), math.log(rate) + loss))
                total += mixed if one else -mixed
        return total

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)

    @cached_property
    def _clients(self) -> ClientSide:
        return self.worlds.clients(False, KeyedSource(0))

    @cached_property
    def _colluding(self) -> int:
        """Clients that took part for sure, and subtract the noise of their own."""
        event = self.plan.privacy.at(0)
        if event.whole is not None or event.rate < 1 or not self._clients.message_noise_variance(1.0):
            return 0
        return min(self.plan.privacy.colluding, self.plan.privacy.clients - 1)

    def _known(self, seen: Observed, release: Seen) -> Tensor | float:
        """What those who collude sent."""
        if not self._colluding:
            return 0.0
        return message_of(seen.clients, release, list(range(CANARY + 1, CANARY + 1 + self._colluding)))


@dataclass(kw_only=True, eq=False)
class OnServer:
    """By the server, which knows who took part.

    Attributes:
        plan: What is promised.
        cell: (client, server) or (record, server).
        worlds: What is told apart.
        look: What it sees of a round in which the canary took part.
    """

    plan: Plan
    cell: Guarantee
    worlds: Worlds
    look: Look

    @cached_property
    def curve(self) -> TradeOff:
        """A normal one; of discrete noise that of the noise that it is compared with."""
        return normal_curve(self.cell)

    def ratio(self, seen: Observed) -> float:
        """Summed over the rounds in which the canary took part."""
        total = 0.0
        for release, (cohort, secret) in zip(seen.releases, seen.sums, strict=True):
            if CANARY in cohort.clients and (found := self.look(self.plan, seen.clients, release, cohort, secret)):
                values, variance = found
                total += _over_nothing(values, self._messages.message(release, True), variance)
                total -= _over_nothing(values, self._messages.message(release, False), variance)
        return total

    @cached_property
    def _messages(self) -> Known:
        return Known(worlds=self.worlds)


Secret = Bounded[Client, dict[str, Tensor]]
# (What is seen, in units of messages; variance of the noise in it); None: nothing is.
Look = Callable[[Plan, ClientSide, Seen, Cohort, Secret], tuple[Tensor, float] | None]


def the_message(
    plan: Plan, clients: ClientSide, release: Seen, cohort: Cohort, secret: Secret
) -> tuple[Tensor, float] | None:
    """The canary's own, by a server that sees every message."""
    # The same noise as in the loop, since it is keyed.
    own = replace(clients, source=clients.source.again(cohort.again))
    return message_of(own, release, [CANARY]), clients.message_noise_variance(release.bound)


def the_sum(
    plan: Plan, clients: ClientSide, release: Seen, cohort: Cohort, secret: Secret
) -> tuple[Tensor, float] | None:
    """By a server that sees sums alone, before it adds what is missing, and works with some of the clients."""
    if not secret.noise_variance:
        return None
    whole, grid = plan.privacy.at(release.round).whole, secret.grid
    assert whole is not None
    assert grid is not None
    share, arrays = whole.share(cohort.asked), {name: value.numpy() for name, value in release.model.items()}
    known = [client for client in cohort.clients.tolist() if client != CANARY][: plan.privacy.colluding]
    (name, total), *_ = secret.value.items()
    left = total.numpy().astype(np.int64)
    source = clients.source.again(cohort.again)
    for message in rounded_messages(clients, arrays, (release.bound, share), release.round, known, source):
        left = left - message
    values = grid.read({name: total.new_tensor(grid.centred(left))})
    return flatten(values).double(), (secret.noise_variance - len(known) * share) * grid.width**2


def normal_curve(cell: Guarantee) -> GaussianCurve:
    """The normal trade-off curve with the promised epsilon."""
    return GaussianCurve(mu=gaussian_mu(cell.epsilon, cell.delta), delta=cell.delta)


def quiet(side: ClientSide) -> ClientSide:
    """The same clients without any noise of their own."""
    if not side.algorithm.releases:
        return replace(side, message_noise=0.0)
    return replace(side, algorithm=side.algorithm.quiet(support=False, noise=_NO_NOISE), message_noise=0.0)


def exact_message(side: ClientSide, release: Seen) -> Tensor:
    """The canary's message: [d] float64; of several parts their mean."""
    if side.whole is None:
        return message_of(side, release, [CANARY])
    (parts,) = side.bounded_parts(release.model, release.bound, release.round, [CANARY])
    return torch.from_numpy(np.mean(parts or [np.zeros(dimension(side.form(release.model)))], axis=0))


def message_of(side: ClientSide, release: Seen, clients: list[int]) -> Tensor:
    """What some clients send in a round, as the loop sums it."""
    numbers = side.whole_numbers(release.bound, dimension(side.form(release.model)))
    return numbers.values(side.clipped_sum(release.model, release.bound, release.round, clients)[0])


def _over_nothing(values: Tensor, message: Tensor, variance: float) -> float:
    """Log-likelihood ratio of a message in normal noise, against nothing in it."""
    return float(values @ message - message @ message / 2) / variance
