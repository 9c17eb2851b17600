"""The best attack on each cell: the log-likelihood ratio of what its observer saw, under the promised mechanism."""

import math
from typing import Protocol

from dpfedmeta.accounting.events.guarantee import Guarantee
from dpfedmeta.accounting.events.toeplitz_noise_cost import CorrelatedNoise
from dpfedmeta.auditing.attacks.release_attack import OnCheckIns, OnReleases
from dpfedmeta.auditing.attacks.server_attack import OnCorrelatedReleases, OnServer, the_message, the_sum
from dpfedmeta.auditing.neighbouring_runs import (
    ClientWorlds,
    Known,
    MomentWorlds,
    Observed,
    RecordWorlds,
    Worlds,
    sends_moments,
)
from dpfedmeta.auditing.observed_loop import ObservedRound
from dpfedmeta.auditing.trade_off_function import TradeOff
from dpfedmeta.core.params import length_of
from dpfedmeta.planning.run_plan import Plan


class Attack(Protocol):
    """On one cell of a plan."""

    @property
    def worlds(self) -> Worlds:
        """The two worlds that the attack tells apart."""
        ...

    @property
    def curve(self) -> TradeOff | None:
        """Trade-off curve of the promise; None: it is not known for another noise."""
        ...

    def ratio(self, seen: Observed) -> float:
        """Return the log-likelihood ratio of one run: how much likelier it is in the one world than in the other."""
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
        raise NoAttack("noisy local steps: these attacks do not know the distribution of what they release")
    in_client = cell.unit == "record" and plan.privacy.record is not None
    if in_client and plan.network.form.vocabulary is not None:
        raise NoAttack("no sequence of tokens is extreme enough to serve as a canary record")
    if in_client and plan.algorithm.adaptation.targets.numbers:
        raise NoAttack("canary records have classes, and here records have numbers to predict")
    added = cell.adjacency == "add-remove"
    whole_clients = MomentWorlds if sends_moments(plan) else ClientWorlds
    worlds = _glaring(plan) if in_client else whole_clients(plan=plan, other=0 if added else -1)
    if cell.observer == "public":
        return _on_releases(plan, cell, worlds)
    if plan.privacy.at(0).whole is not None:
        return OnServer(plan=plan, cell=cell, worlds=worlds, look=the_sum)
    if plan.privacy.server_sees == "sum" or plan.message_clip_ratio is not None:
        raise NoAttack("there is no attack on messages that are clipped after their noise, or on sums of real numbers")
    return OnServer(plan=plan, cell=cell, worlds=worlds, look=the_message)


def _on_releases(plan: Plan, cell: Guarantee, worlds: Worlds) -> Attack:
    event = plan.privacy.at(0)
    if isinstance(event.noise, CorrelatedNoise) and isinstance(worlds, ClientWorlds):
        return OnCorrelatedReleases(plan=plan, cell=cell, worlds=worlds, noise=event.noise)
    if event.slots is not None:
        return OnCheckIns(plan=plan, cell=cell, worlds=worlds, slots=event.slots)
    return OnReleases(plan=plan, cell=cell, worlds=worlds)


# Every number of a canary's record, or the first alone: of one of them the network thinks as little as of no label.
_GLARING = ((50.0, False), (-50.0, False), (50.0, True))


def _glaring(plan: Plan) -> Worlds:
    """The records of which the first message says most.

    Raises:
        NoAttack: It says nothing of either.
    """
    weights = plan.algorithm.initial(plan.network, plan.settings.run.seed)
    model, bound = plan.algorithm.learned(plan.network, weights), plan.policy.initial().bound
    first = ObservedRound(round=0, bound=bound, model=model, total=None, deviation=0.0)

    def moved(worlds: Worlds) -> float:
        known = Known(worlds=worlds)
        return length_of(known.message(first, True) - known.message(first, False))

    found = max((RecordWorlds(plan=plan, glaring=value, first=first) for value, first in _GLARING), key=moved)
    if moved(found) < 0.1 * bound / max(plan.shape.query_records, 1):
        raise NoAttack("no canary record changes a message of this network enough to be seen; use --model.name linear")
    return found
