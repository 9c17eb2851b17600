"""Rounds of a plan that one client may join, by its own ledger: the plan's cap, its spacing and its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from dpfedmeta.accounting.events.participation_pattern import Spacing
from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import spacing_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import participations_of
from dpfedmeta.core.pydantic_errors import counted_words


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """Limits that a plan is proved for, as far as one client can keep them.

    Attributes:
        plan: Privacy plan of the offer.
        name: Digest of what is offered, without its run: a plan that is offered again under another run has the same.
        number: The client's; None: it has none, and no turn.

    Guarantee:
        Whatever a server asks: over all runs of one plan a client joins no more rounds than
        `population.max_participations`, further attempts counted; without a cap it joins no more rounds of a run than
        the plan's cells towards the server count with. Any two of its rounds are as far apart as correlated noise
        counts with, and where clients take turns it joins in its own alone.
    """

    plan: PrivacyPlan
    name: str
    number: int | None

    def open_rounds(self, ledger: ClientLedger, run: str, rounds: Sequence[int]) -> list[int]:
        """The rounds of these that the client may join, one after the other.

        Args:
            ledger: Its ledger.
            run: Identifier of the run.
            rounds: In increasing order.
        """
        joined, found = self._joined(ledger, run), []
        for round_ in rounds:
            if self._problem(joined, round_) is None:
                found.append(round_)
                joined.add(round_)
        return found

    def problem(self, ledger: ClientLedger, run: str, round_: int) -> str | None:
        """Say why the plan does not have the client join this round, whatever was promised; None: it may."""
        return self._problem(self._joined(ledger, run), round_)

    def _joined(self, ledger: ClientLedger, run: str) -> _Joined:
        joined = _Joined(of_plan=ledger.participations_in(self.name))
        for key in ledger.keys(run):
            joined.add(key[0], counted=True)
        return joined

    def _problem(self, joined: _Joined, round_: int) -> str | None:
        plan, cap, most, spacing = self.plan, self.plan.max_participations, self._most_of_plan, self._spacing
        if cap is not None and joined.of_plan >= cap:
            return f"this client took part {joined.of_plan} times in runs of this plan, which has at most {cap}"
        if round_ not in joined.rounds and len(joined.rounds) >= most:
            joins = f"this client joined {counted_words(most, 'round')}"
            return f"{joins}, and the plan's guarantees towards the server count with no more"
        if spacing is None:
            return None
        if not spacing.allows(round_, joined.attempts, joined.latest):
            return (
                f"the plan's noise counts with {counted_words(spacing.participations, 'round')} of a client, "
                f"{spacing.separation} apart, and this client joined {joined.attempts}, the last one {joined.latest}"
            )
        if self.number is not None and not plan.sampling.in_turn(self.number, round_, spacing):
            return f"it is not the turn of client {self.number}"
        return None

    @cached_property
    def _most_of_plan(self) -> int:
        return most_counted(self.plan)

    @cached_property
    def _spacing(self) -> Spacing | None:
        return spacing_of(self.plan)


@dataclass(kw_only=True)
class _Joined:
    """Rounds that a client joined.

    Attributes:
        of_plan: Participations in all runs of the plan, with further attempts.
        attempts: Those in this run.
        rounds: Their rounds.
        latest: The last of these; None: none.
    """

    of_plan: int
    attempts: int = 0
    rounds: set[int] = field(default_factory=set)
    latest: int | None = None

    def add(self, round_: int, *, counted: bool = False) -> None:
        """Add a participation; `counted`: the number of the plan has it already."""
        self.of_plan += not counted
        self.attempts += 1
        self.rounds.add(round_)
        self.latest = round_ if self.latest is None else max(self.latest, round_)


@lru_cache(maxsize=16)
def most_counted(plan: PrivacyPlan) -> int:
    """Rounds that a client joins at most without a cap, as the plan's cells towards the server count.

    Where all clients are in every round, all rounds. Where they are sampled, the number that an honest sampler exceeds
    with a probability of at most delta/100, of the larger delta: so the cells hold for whatever a server draws.
    """
    deltas = (plan.client_delta, plan.record_delta)
    return min(participations_of(plan.phases, None, delta)[0] for delta in deltas)
