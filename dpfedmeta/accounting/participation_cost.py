"""Cost of one participation for the unit, towards the server; used by the cells, client ledgers and sweeps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from dpfedmeta.accounting.events.events import Event
from dpfedmeta.accounting.events.guarantee import UnitName
from dpfedmeta.accounting.events.record_layer import RecordLayer, default_relation, holding
from dpfedmeta.accounting.relations.relations import Relation


@dataclass(frozen=True, kw_only=True)
class Participation:
    """Cost of one participation in a plan.

    Attributes:
        mu: Mu of a Gaussian mechanism with the same cost for the unit; inf: the server sees the exact message.
        formula: Formula of mu, for people.
    """

    mu: float
    formula: str = ""


CLIENT = "client"
"""Name of a client as a whole, among the relations of a record."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """Cost of one participation as a client's ledger counts it.

    Attributes:
        mus: Mu for every relation of a record that holds, or for the client as a whole.
        relation: That which is counted where the client names none.
    """

    mus: Mapping[str, float]
    relation: Relation = "zero-out"


def change_of(unit: UnitName, record: RecordLayer | None, relation: Relation) -> float:
    """Largest change by the unit of a sum, over its clip bound."""
    if record is not None and record.unbounded:
        return math.inf if unit == "client" else record.moved(relation) / record.query_records
    # Where no part is clipped on its own, a record may change its client's whole message.
    if unit == "client" or record is None or not record.of_sum:
        return 2.0
    return min(record.moved(relation) / record.query_records, 2.0)


def participation(
    event: Event, record: RecordLayer | None, server_sees: str, unit: UnitName, relation: Relation = "zero-out"
) -> Participation:
    """Compute the cost of one participation in a round for the unit.

    Args:
        event: The round.
        record: The record-level layer of the plan, or None.
        server_sees: messages or sum.
        unit: record, or client: all of its data is replaced.
        relation: How a record differs; no matter for a client.

    Guarantee:
        Given all that was released before, the participation is mu-GDP for the unit towards a server that knows who
        took part; participations compose in squares. Parts without noise of their own are covered by the noise of the
        sum and by nothing else: where that is missing, mu is inf. Discrete noise costs more than mu says
        (discrete_gaussian_cost), and secret mini-batches less (poisson_steps_epsilon).
    """
    if record is not None and not record.of_sum and (unit == "record" or server_sees == "messages"):
        mu, formula = record.towards_messages(relation) if unit == "record" else record.whole_client()
        return Participation(mu=mu, formula=formula)
    moved = change_of(unit, record, relation)
    if server_sees == "sum":
        # What the server adds afterwards covers nothing that it sees: without noise of the clients' there is none.
        noise = event.sum_noise or (event.noise if event.message_noise else None)
        return Participation(mu=noise.mu(moved) if noise else math.inf, formula=f"{moved:.4g} / z_sum")
    return Participation(mu=moved / event.message_noise if event.message_noise else math.inf, formula="2 sqrt(L) / z")


def spending(event: Event, record: RecordLayer | None, server_sees: str, unit: UnitName) -> Spending:
    """Return the cost of one participation for all relations that hold, for a client's ledger; see `participation`."""
    if unit == "client":
        return Spending(mus={CLIENT: participation(event, record, server_sees, unit).mu})
    mus: dict[str, float] = {each: participation(event, record, server_sees, unit, each).mu for each in holding(record)}
    return Spending(mus=mus, relation=default_relation(record))
