"""Rounds of a plan that one client may join, by its own ledger: the plan's cap, its spacing and its turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dpfedmeta.accounting.ledger.client_ledger import ClientLedger
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import spacing_of
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan
from dpfedmeta.accounting.release_costs import participations_of


@dataclass(frozen=True, kw_only=True)
class PlanLimits:
    """What a plan is proved for, as far as one client can keep it.

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
        joined, in_all = self._joined(ledger, run)
        found: list[int] = []
        for round_ in rounds:
            if self._problem([*joined, *found], in_all + len(found), round_) is None:
                found.append(round_)
        return found

    def problem(self, ledger: ClientLedger, run: str, round_: int) -> str | None:
        """Say why the plan does not have the client join this round, whatever was promised; None: it may."""
        return self._problem(*self._joined(ledger, run), round_)

    def _joined(self, ledger: ClientLedger, run: str) -> tuple[list[int], int]:
        """(rounds of this run, further attempts too; number of those of all runs of the plan)."""
        return [key[0] for key in ledger.keys(run)], ledger.participations_in(self.name)

    def _problem(self, joined: Sequence[int], in_all: int, round_: int) -> str | None:
        plan, cap = self.plan, self.plan.max_participations
        if cap is not None and in_all >= cap:
            return f"this client took part {in_all} times in runs of this plan, which has at most {cap}"
        most = most_rounds(plan)
        if len({*joined, round_}) > most:
            return f"this client joined {most} rounds, and the plan's guarantees towards the server count with no more"
        spacing = spacing_of(plan)
        if spacing is None:
            return None
        if not spacing.allows(round_, len(joined), max(joined, default=None)):
            return (
                f"the plan's noise counts with {spacing.participations} rounds of a client, {spacing.separation} apart,"
                f" and this client joined {len(joined)}, the last one {max(joined, default=None)}"
            )
        if self.number is not None and not plan.sampling.in_turn(self.number, round_, spacing):
            return f"it is not the turn of client {self.number}"
        return None


@lru_cache(maxsize=16)
def most_rounds(plan: PrivacyPlan) -> int:
    """Rounds that a client joins at most without a cap, as the plan's cells towards the server count.

    Where all clients are in every round, all rounds. Where they are sampled, the number that an honest sampler exceeds
    with a probability of at most delta/100, of the larger delta: so the cells hold for whatever a server draws.
    """
    deltas = (plan.client_delta, plan.record_delta)
    return min(participations_of(plan.phases, None, delta)[0] for delta in deltas)
