"""Cost of one participation for the unit, towards the server; used by the cells, client ledgers and sweeps."""

import math
from dataclasses import dataclass

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.guarantee import UnitName
from dpfedmeta.accounting.events.record_layer import RecordLayer


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Cost of one participation in a plan.

    Attributes:
        mu: Mu of a Gaussian mechanism with the same cost for the unit; inf: the server sees the exact message.
        formula: Formula of mu, for people.
    """

    mu: float
    formula: str = ""

    def roles(self) -> tuple[float, ...]:
        """Return mu for the worse of the unit's roles, as a tuple of one."""
        return (self.mu,)


def change_of(unit: UnitName, record: RecordLayer | None, change: float) -> float:
    """Largest change by the unit of a sum, over its clip bound.

    Args:
        unit: The unit that is protected.
        record: The record-level layer, or None.
        change: Largest change by a record of a sum of parts: 1 under zero-out, 2 where it is replaced.
    """
    # Where no part is clipped on its own, a record may change its client's whole message.
    return change / record.query_records if unit == "record" and record is not None and record.of_sum else 2.0


def participation(
    event: Event, record: RecordLayer | None, server_sees: str, unit: UnitName, change: float = 1.0
) -> Participation:
    """Compute the cost of one participation in a round for the unit.

    Args:
        event: The round.
        record: The record-level layer of the plan, or None.
        server_sees: messages or sum.
        unit: record, or client: all of its data is replaced.
        change: Largest change by a record of a sum over its clip bound: 1 under zero-out, 2 where it is replaced.

    Guarantee:
        Given all that was released before, the participation is mu-GDP for the unit towards a server that knows who
        took part; participations compose in squares. Parts without noise of their own are covered by the noise of the
        sum and by nothing else: where that is missing, mu is inf. Discrete noise costs more than mu says
        (discrete_gaussian_cost), and secret mini-batches less (poisson_steps_epsilon).
    """
    if record is not None and not record.of_sum:
        if unit == "record":
            support, query = record.roles()
            return Participation(
                mu=change * max(support, query), formula="sqrt(K)/z_s" if support >= query else "1/z_q"
            )
        if server_sees == "messages":
            mu, formula = record.whole_client()
            return Participation(mu=mu, formula=formula)
    moved = change_of(unit, record, change)
    if server_sees == "sum":
        # What the server adds afterwards covers nothing that it sees: without noise of the clients' there is none.
        noise = event.sum_noise or (event.noise if event.message_noise else None)
        return Participation(mu=noise.mu(moved) if noise else math.inf, formula=f"{moved:.4g} / z_sum")
    return Participation(mu=moved / event.message_noise if event.message_noise else math.inf, formula="2 sqrt(L) / z")
