"""Costs of releases: what rounds in a row cost towards each observer, one file for each kind of accounting.

Rounds say by their sampler or their noise how they are accounted for (`Event.cost`): each by itself (`independent`), as
sums of whole numbers with the clients' noise (`sum`), as one release of all rounds (`correlated`), or by the round that
a client drew (`allocated`); or somebody's own, as package.module:name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.accounting.divergences.pld_composition import GRIDS, ComposedBy
from dpfedmeta.accounting.divergences.pld_round import DISTANCES
from dpfedmeta.accounting.events.events import Event, Phase, have_noise, neighbours_of, surplus
from dpfedmeta.accounting.events.guarantee import ANY_NUMBER_OF_ROWS, Bound
from dpfedmeta.accounting.events.sampling import Neighbours, sampling_of
from dpfedmeta.core.errors import InputError, RefusedPlan
from dpfedmeta.core.plugins.plugin_registry import find
from dpfedmeta.core.pydantic_errors import counted_words

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms

SUFFIX = "_cost"
_SETTING = "cost of a release"
# Names of the methods of composition, in a formula.
_HOW = {"rdp": "RDP", "gdp": "GDP without sampling"}
_CLOSED = " (a closed bound, where their distribution is too much to compute)"


class ReleaseCost:
    """Base of the costs of releases. A member states `composed`, `delta_at` and `pair`; all else is the safe side.

    Attributes:
        beside: Names of other kinds whose rounds it adds up with its own; rounds of any other are refused.
        joint: Whether a further attempt at a round is not accounted for like one more round; it is charged apart.
        rare: Name of the rare events that are taken off delta.
    """

    beside: ClassVar[frozenset[str]] = frozenset()
    joint: ClassVar[bool] = True
    rare: ClassVar[str] = "surplus or hostile clients"

    def composed(
        self, phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
    ) -> tuple[float, ComposedBy]:
        """(epsilon of all these rounds at delta, how it was found), of a client that differs as `neighbours` say.

        Args:
            phases: What happened; every one has noise.
            neighbours: What the two populations differ in. A message has norm at most C before and after.
            delta: What is left for this cell.
            grids: Widths of the privacy-loss grid to try; one alone allows a looser bound in less time.
        """
        raise NotImplementedError

    def delta_at(self, phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
        """Delta of all these rounds at epsilon; every one has noise."""
        raise NotImplementedError

    def pair(self, phases: Sequence[Phase], neighbours: Neighbours) -> str:
        """The two laws that are compared, for people."""
        raise NotImplementedError

    def released(self, phases: Sequence[Phase]) -> Sequence[Phase]:
        """The same as releases of which each is accounted for by itself, where there are such."""
        return phases

    def participations(self, phases: Sequence[Phase], cap: int | None, delta: float) -> tuple[int, float]:
        """(R, delta left): how often one client takes part at most, for an observer who knows when."""
        return sum(phase.rounds for phase in phases), delta

    def public(self, phases: Sequence[Phase], delta: float, grids: tuple[float, ...] = GRIDS) -> list[Bound]:
        """Bounds on a client towards everybody, under the neighbours of these rounds."""
        return [self.bound(phases, neighbours_of(phases), delta - surplus(phases), grids)]

    def record(self, own: Sequence[Phase], terms: Terms, delta: float, grids: tuple[float, ...]) -> list[Bound]:
        """Bounds on a record towards everybody, after what was released before; here that of its whole client."""
        if terms.record is not None and terms.record.unbounded:
            return [ANY_NUMBER_OF_ROWS]
        return [self.replaced((*terms.before, *own), delta, grids)]

    def replaced(self, phases: Sequence[Phase], delta: float, grids: tuple[float, ...]) -> Bound:
        """Bound on a client whose message becomes another one, within norm C."""
        return self.bound(phases, "replace-one", delta, grids)

    def bound(self, phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...]) -> Bound:
        """The composition of these rounds, with what it is and how it was found."""
        epsilon: float = math.inf if phases else 0.0
        method: ComposedBy = "pld"
        if have_noise(phases) and delta > 0:
            epsilon, method = self.composed(phases, neighbours, delta, grids)
        alone = self.one_release(phases, DISTANCES[neighbours])
        pair = self.pair(phases, neighbours)
        how = f"PLD of {pair}" if method == "pld" else f"{_HOW[method]} of {pair}{_CLOSED}"
        return Bound(
            method=method,
            epsilon=epsilon,
            event=rounds_seen(phases),
            formula=alone or how + self.folded(phases),
            loose=alone is None and method != "pld",
        )

    def one_release(self, phases: Sequence[Phase], moved: float) -> str | None:
        """The formula of rounds that are one release together; None: they compose."""
        return None

    def folded(self, phases: Sequence[Phase]) -> str:
        """Behind a formula: how often it is composed, and at which delta."""
        return f", {sum(phase.rounds for phase in self.released(phases))}-fold{self.off_delta(phases)}"

    def off_delta(self, phases: Sequence[Phase]) -> str:
        """Behind a formula: what rare events take of delta."""
        beta = surplus(phases)
        return f", at delta - {beta:.2g} ({self.rare})" if beta else ""

    def drawn_words(self, event: Event) -> str:
        """Who is in a round."""
        return sampling_of(event.sampler).drawn_words(event)

    def second_opinion(self, phases: Sequence[Phase], delta: float) -> tuple[str, float] | None:
        """(name, epsilon) of (client, public) by somebody else's accountant; None: nobody else knows such rounds."""
        return None


@lru_cache(maxsize=64)
def cost_named(name: str) -> ReleaseCost:
    """The kind of cost of this name: a file here, or package.module:name.

    Raises:
        InputError: There is none, or it does not say what rounds cost.
    """
    member = find(_SETTING, name, __name__)
    if not (isinstance(member, type) and issubclass(member, ReleaseCost)):
        raise InputError(f"{_SETTING} = {name}: is no ReleaseCost; derive it from {__name__}.ReleaseCost")
    for part in ("composed", "delta_at", "pair"):
        if getattr(member, part) is getattr(ReleaseCost, part):
            raise InputError(f"{_SETTING} = {name}: {member.__name__} has no {part}; it needs composed, delta_at, pair")
    return member()


def cost_of(phases: Sequence[Phase]) -> ReleaseCost:
    """The cost of these rounds together.

    Raises:
        RefusedPlan: They are of kinds of which no bound for both together is known.
    """
    names = {phase.event.cost for phase in phases} or {"independent"}
    for name in sorted(names):
        if names <= {name, *cost_named(name).beside}:
            return cost_named(name)
    raise RefusedPlan(
        f"rounds whose costs are {' and '.join(sorted(names))} are not added up: no bound is known for them together; "
        "what clients chose themselves (check-ins) or somebody's own cost is proved of one plan alone"
    )


def released(phases: Sequence[Phase]) -> Sequence[Phase]:
    """These rounds as releases of which each is accounted for by itself, where their cost has such."""
    return cost_of(phases).released(phases)


def composed_epsilon(
    phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
) -> float:
    """Epsilon of all rounds together, whatever they cost by; inf where one has no noise or nothing of delta is left."""
    if not phases:
        return 0.0
    if delta <= 0 or not have_noise(phases):
        return math.inf
    return cost_of(phases).composed(phases, neighbours, delta, grids)[0]


def composed_delta(phases: Sequence[Phase], neighbours: Neighbours, epsilon: float) -> float:
    """Delta of all rounds together at epsilon; 1 where one has no noise."""
    if not phases:
        return 0.0
    return cost_of(phases).delta_at(phases, neighbours, epsilon) if have_noise(phases) else 1.0


def quick_grid(phases: Sequence[Phase], neighbours: Neighbours, delta: float) -> float:
    """The coarsest width within 1% of the tight epsilon: for many shorter plans of the same constants."""
    tight = composed_epsilon(phases, neighbours, delta)
    good = (g for g in GRIDS if composed_epsilon(phases, neighbours, delta, (g,)) <= 1.01 * tight)
    return next(good, GRIDS[-1])


def participations_of(phases: Sequence[Phase], cap: int | None, delta: float) -> tuple[int, float]:
    """(R, delta left): how often one client takes part in these rounds at most."""
    return cost_of(phases).participations(phases, cap, delta)


def rounds_seen(phases: Sequence[Phase]) -> str:
    """Describe the rounds of each phase: their number, the sampling and the noise."""
    return ", then ".join(map(_phase_words, phases)) or "no round"


def _phase_words(phase: Phase) -> str:
    event = phase.event
    noise = event.noise.words if event.noise else "no noise"
    return f"{counted_words(phase.rounds, 'round')} ({cost_named(event.cost).drawn_words(event)}) with {noise}"
