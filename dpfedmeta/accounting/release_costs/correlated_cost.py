"""Rounds with correlated noise: all of a run together are one Gaussian release (events.toeplitz_noise_cost)."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from dpfedmeta.accounting.divergences.pld_composition import GRIDS, ComposedBy, closed_epsilon, composed
from dpfedmeta.accounting.events.events import Event, Phase
from dpfedmeta.accounting.events.guarantee import Bound
from dpfedmeta.accounting.events.noise_cost import JointNoise
from dpfedmeta.accounting.events.sampling import Neighbours
from dpfedmeta.accounting.privacy_plan.privacy_plan import Terms
from dpfedmeta.accounting.release_costs import ReleaseCost
from dpfedmeta.accounting.release_costs.sum_cost import SumCost


class CorrelatedCost(SumCost):
    """One release of each run with all its attempts and copies, beside rounds that are accounted for one by one.

    There is no mixture over participations: what one round adds, the next ones take back.
    """

    beside: ClassVar[frozenset[str]] = frozenset({"independent", "sum"})
    joint: ClassVar[bool] = True

    def released(self, phases: Sequence[Phase]) -> Sequence[Phase]:
        """The same with all rounds of correlated noise as the one release that they are; all else as it is.

        Where secret coins decide over each participation (a rate below 1), they are as many releases as a client may
        take part in, each sampled; a further attempt is charged as a release that the client was in for sure.

        Of one run and its copies: several runs are joined one by one, then put in a row.

        Raises:
            RefusedPlan: More rounds than the noise was fitted for, or coins that its participations do not have apart.
        """
        joint: dict[JointNoise, list[Phase]] = {}
        others = []
        for phase in phases:
            if isinstance(phase.event.noise, JointNoise):
                joint.setdefault(phase.event.noise, []).append(phase)
            else:
                others.append(phase)
        for noise, own in joint.items():
            course = sum(phase.rounds for phase in own if not (phase.again or phase.copy))
            further = sum(phase.rounds for phase in own) - course
            first = own[0].event
            if first.rate < 1.0 and course:
                apart, each = noise.apart(course)
                # Coins of its own for each of them: what is left is sampled like any round.
                others.append(Phase(event=replace(first, sampler="poisson", noise=each), rounds=apart))
                course = 0
            if course or further:
                sure = replace(first, sampler="poisson", noise=noise.together(course, further), rate=1.0)
                others.append(Phase(event=sure, rounds=1))
        return others if joint else phases

    def composed(
        self, phases: Sequence[Phase], neighbours: Neighbours, delta: float, grids: tuple[float, ...] = GRIDS
    ) -> tuple[float, ComposedBy]:
        """In closed form, which is exact, where all is one release."""
        releases = self.released(phases)
        if _is_one(releases):
            return closed_epsilon(releases, neighbours, delta)
        return composed(releases, neighbours, delta, grids)

    def record(self, own: Sequence[Phase], terms: Terms, delta: float, grids: tuple[float, ...]) -> list[Bound]:
        """That of its whole client alone."""
        return ReleaseCost.record(self, own, terms, delta, grids)

    def one_release(self, phases: Sequence[Phase], moved: float) -> str | None:
        """The formula of rounds that are one Gaussian release together; None: some of them compose round by round."""
        releases = self.released(phases)
        if not _is_one(releases):
            return None
        mu = math.sqrt(sum(phase.event.noise.mu(moved) ** 2 for phase in releases if phase.event.noise))
        further = sum(phase.rounds for phase in phases if phase.again or phase.copy)
        words = f"; {further} further attempts add the largest row of C squared" if further else ""
        twice = "2 " if moved == 2 else ""
        return f"({twice}sens/z)-GDP of all rounds as one Gaussian release, mu = {mu:.4g}, nothing amplified{words}"

    def folded(self, phases: Sequence[Phase]) -> str:
        """Behind a formula: how often it is composed; by turns, where coins are secret."""
        takes_turns = any(isinstance(phase.event.noise, JointNoise) and phase.event.rate < 1.0 for phase in phases)
        turns = " (turns of a client; z is over the length of its bands)" if takes_turns else ""
        times = sum(phase.rounds for phase in self.released(phases))
        return f", {times}-fold{turns}{self.off_delta(phases)}"

    def drawn_words(self, event: Event) -> str:
        """Who is in a round: no secret is counted on, but the coins of turns."""
        turns = f"each client whose group's turn it is with q = {event.rate:.4g}"
        return turns if event.rate < 1.0 else "whoever takes part, seen or not"


def _is_one(releases: Sequence[Phase]) -> bool:
    """Return whether these phases are a single release without secret sampling (rate 1)."""
    return len(releases) == 1 and releases[0].rounds == 1 and releases[0].event.rate == 1.0


MEMBER = CorrelatedCost
