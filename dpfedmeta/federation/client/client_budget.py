"""A client's promise on what a server may learn, and the effect of a plan on it, as the client computes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from dpfedmeta.accounting.divergences.discrete_gaussian_cost import summed_coordinates
from dpfedmeta.accounting.events.events import surplus
from dpfedmeta.accounting.events.guarantee import UnitName
from dpfedmeta.accounting.events.record_layer import default_relation, holding
from dpfedmeta.accounting.ledger.client_ledger import (
    NO_COST,
    ClientLedger,
    RecordBudget,
    RunCost,
    is_own_ledger,
    open_own_ledger,
)
from dpfedmeta.accounting.observers.server_observer import client_server, record_server
from dpfedmeta.accounting.participation_cost import Spending, spending
from dpfedmeta.accounting.privacy_plan.privacy_plan import PrivacyPlan, Terms
from dpfedmeta.accounting.relations.relations import RELATIONS, Relation
from dpfedmeta.accounting.rounded import asked, rounded_up
from dpfedmeta.core.files.run_directory import LEDGER
from dpfedmeta.federation.client.promise_checks import check_floors, check_promise
from dpfedmeta.federation.offers.plan_limits import PlanLimits
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused


class OverLimit(Refused):
    """A plan of which a client's own limit allows nothing: its owner alone can mend that, so nobody waits for it."""


@dataclass(frozen=True, kw_only=True)
class Floors:
    """Demands of a client on a plan under secure aggregation, whatever the plan's epsilon is.

    Attributes:
        adversarial: Least share of a cohort that the masks have to withstand.
        colluding: Least number of clients whose noise is not counted.
    """

    adversarial: float = 0.0
    colluding: int = 0

    def __post_init__(self) -> None:
        check_floors(self.adversarial, self.colluding)

    def check(self, plan: PrivacyPlan, *, rough: bool) -> None:
        """Check that a plan meets the demands; a plan without secure aggregation always does.

        Args:
            plan: The plan that is offered.
            rough: Whether it accepts so few bits that rounding costs a lot.

        Raises:
            Refused: It does not, or it is rough.
        """
        secure = plan.secure
        if secure is None:
            return
        if rough:
            raise Refused("the plan uses so few bits that rounding costs a lot (aggregation.rough = true)")
        if (secure.adversarial or 0.0) < self.adversarial:
            raise Refused(
                f"the plan's masks withstand {secure.adversarial or 0.0:g} of a cohort colluding, but this client "
                f"demands {self.adversarial:g} (--adversarial)"
            )
        if plan.colluding < self.colluding:
            raise Refused(
                f"the plan counts with {plan.colluding} colluding clients, who know their own noise, but this client "
                f"demands {self.colluding} (--colluding)"
            )


@dataclass(frozen=True, kw_only=True)
class Promise:
    """Promise of a client to those whose records it holds, towards the server, over all runs together.

    Attributes:
        unit: record: one of its records differs; client: all of them are others.
        epsilon: Largest epsilon; None: the server is trusted not to look, and participations alone are counted.
        delta: Delta at which epsilon counts.
        participations: R, how often the client takes part at most; None: as often as epsilon allows.
        floors: Further demands on a plan.
        relation: How a record differs; None: its row is deleted where the plan has rows, else it counts as nothing. The
            first run decides that for all that follow.

    Raises:
        InputError: It promises nothing, or a value is out of its range.
    """

    unit: UnitName = "record"
    epsilon: float | None = None
    delta: float = 1e-5
    participations: int | None = None
    floors: Floors = Floors()
    relation: Relation | None = None

    def __post_init__(self) -> None:
        check_promise(self.unit, self.epsilon, self.delta, self.participations, self.relation)

    def budget(self) -> RecordBudget:
        """Return the promise as the budget that the client's ledger keeps."""
        return RecordBudget(
            epsilon=self.epsilon,
            delta=self.delta,
            participations=self.participations,
            unit=self.unit,
            relation=self.relation,
        )

    @property
    def words(self) -> str:
        """For a log."""
        often = "" if self.participations is None else f"at most {self.participations} participations"
        if self.epsilon is None:
            return f"{often}; the server is trusted with exact messages"
        what = "the client as a whole"
        if self.unit == "record":
            what = f"a record{'' if self.relation is None else f' ({self.relation})'}"
        return f"{what}: epsilon <= {asked(self.epsilon)} at delta = {asked(self.delta)} towards the server" + (
            f", {often}" if often else ""
        )


def limit_of(home: Path) -> dict[str, Any]:
    """Return the limit that a home's ledger has now, by its parts; empty where there is no ledger yet."""
    return asdict(open_own_ledger(home / LEDGER)[1]) if is_own_ledger(home / LEDGER) else {}


def counted(plan: PrivacyPlan, promise: Promise, ledger: ClientLedger | None = None) -> Promise:
    """The promise with the relation that is counted in this plan: the client's own, the ledger's, or the plan's.

    Raises:
        Refused: The plan states nothing for it.
    """
    if promise.unit == "client":
        return promise
    of_ledger = None if ledger is None else ledger.relation
    relation = promise.relation or of_ledger or default_relation(plan.record)
    if relation in holding(plan.record):
        return replace(promise, relation=relation)
    if promise.epsilon is not None:
        raise Refused(
            f"this client counts what a record spends if {RELATIONS[relation].words} ({relation}), and for that the "
            "plan states nothing; give --relation zero-out (with --change-limit where the home has the other one)"
        )
    return replace(promise, relation=default_relation(plan.record))


def participation(plan: PrivacyPlan, promise: Promise, round_: int) -> Spending:
    """Return the effect of one participation in a round on the promised unit, towards the server.

    Raises:
        Refused: A client's ledger cannot add it up.
    """
    record = plan.record
    if promise.unit == "record" and record is not None and record.batch_rate < 1:
        raise Refused("the plan samples mini-batches, but a client's ledger can only add up whole support steps")
    return spending(plan.at(round_), record, plan.server_sees, promise.unit)


def run_cost(plan: PrivacyPlan) -> RunCost:
    """Return the cost of a run besides its participations, as the plan's cells count it: once for all of its rounds."""
    if plan.server_sees != "sum":
        return NO_COST
    return RunCost(rare=surplus(plan.phases), coordinates=tuple(summed_coordinates(plan.phases)))


def left(
    plan: PrivacyPlan, promise: Promise, ledger: ClientLedger, run: str, rounds: Sequence[int], limits: PlanLimits
) -> int:
    """Count how many of these rounds, in this order, a client may still answer.

    This is the only computation of what is left of a promise: a dry run, an offer, an answer and the log all call it,
    so none of them can say more than another.

    Args:
        plan: Plan of the run.
        promise: The client's promise.
        ledger: Its ledger, with the spending of all runs.
        run: Identifier of the run.
        rounds: Rounds of the run that are not answered yet.
        limits: What the plan itself allows this client.
    """
    promise = counted(plan, promise, ledger)
    rounds = limits.open_rounds(ledger, run, rounds)
    most = most_participations(plan, promise) - len(ledger.keys(run))
    costs = [participation(plan, promise, round_) for round_ in rounds[: max(most, 0)]]
    return ledger.further(costs, run=run, cost=run_cost(plan))


def left_of_run(plan: PrivacyPlan, promise: Promise, ledger: ClientLedger, run: str, limits: PlanLimits) -> int:
    """The same of all rounds that are to come."""
    last = max(ledger.keys(run), default=(-1,))[0]
    return left(plan, promise, ledger, run, range(last + 1, plan.rounds), limits)


def epsilon_after(plan: PrivacyPlan, promise: Promise, participations: int) -> float:
    """Epsilon of the promised unit towards the server, after so many participations in this plan.

    Guarantee:
        The cell of the accountant for exactly so many participations, whoever draws cohorts and however: nothing is
        amplified by sampling, since the server knows who took part.
    """
    if not participations:
        return 0.0
    relation = counted(plan, promise).relation
    terms = replace(
        Terms.of(plan),
        relation=relation or plan.relation,
        max_participations=participations,
        client_delta=promise.delta,
        record_delta=promise.delta,
    )
    cell = record_server if promise.unit == "record" else client_server
    return cell(plan.phases, terms).epsilon


@lru_cache(maxsize=16)
def most_participations(plan: PrivacyPlan, promise: Promise) -> int:
    """Count how many of a plan's rounds the promise allows by itself; spending of other runs comes on top."""
    most = plan.rounds if promise.participations is None else min(plan.rounds, promise.participations)
    if promise.epsilon is None:
        return most
    limit = promise.epsilon * (1.0 + 1e-9)
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if epsilon_after(plan, promise, middle) <= limit else (low, middle)
    return low


def check_allowed(plan: PrivacyPlan, promise: Promise) -> None:
    """Refuse a plan of which the promise by itself allows no round.

    Raises:
        OverLimit: The promise allows none.
    """
    if not most_participations(plan, promise):
        one = epsilon_after(plan, promise, 1)
        raise OverLimit(
            f"a single round would cost epsilon {rounded_up(one)} for ({promise.unit}, server), which is more than the "
            f"promise ({promise.words})"
        )
