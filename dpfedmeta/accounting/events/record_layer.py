"""Record-level layer of a client: the number and noise of its releases about its records."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from dpfedmeta.accounting.relations.relations import RELATIONS, Kind, MomentBlocks, Moves, Relation
from dpfedmeta.core.errors import RefusedPlan

AccountantName = Literal["pld", "rdp", "prv"]


@dataclass(frozen=True, kw_only=True)
class RecordLayer:
    """Releases of a client about its records in one round, and the noise on them.

    A client may release K noisy support steps, a noisy sum over its query records (or over other parts of its records
    that share none), or both; its message is the last of them.

    Attributes:
        support_noise: z_s, per support step; None: no support step is released.
        query_noise: z_q; None: there is no query release, and the message is the sum of the support steps.
        support_steps: K; 1 without support release.
        support_records: n_s.
        query_records: n_q: number of terms of the query release, each clipped to C_q.
        parts: Name of these terms, for people.
        query_to_message_bound: C_q/C, used in stacked mode.
        batch_rate: Probability that a record is in the mini-batch of a support step, by a coin of the client's own.
        accountant: Accountant that composes mini-batched steps.
        of_sum: Whether parts carry no noise of their own, since the server sees their sum over a whole cohort alone.
        rows: Whether group and role of each record follow from its row alone, so that relations of rows hold.
        own_terms: Whether each term reads one row and no other, and all rows have one, in a sum that is projected.
        blocks: Of a release of moments: what a record adds to each of them; else None.
    """

    support_noise: float | None
    query_noise: float | None
    support_steps: int
    support_records: int
    query_records: int
    parts: str = "query records"
    query_to_message_bound: float = 1.0
    batch_rate: float = 1.0
    accountant: AccountantName = "pld"
    of_sum: bool = False
    rows: bool = False
    own_terms: bool = False
    blocks: MomentBlocks | None = None

    def __post_init__(self) -> None:
        check("batch_rate", self.batch_rate, 0 < self.batch_rate <= 1, "a number above 0 and at most 1")
        # A query gradient reads all its records at once.
        whole = self.batch_rate == 1 or self.query_noise is None
        check("batch_rate", self.batch_rate, whole, "1, unless clients send their update")
        released = self.support_noise is not None or self.query_noise is not None
        check("support_noise", self.support_noise, released or self.of_sum, "noise of support or query")
        alone = not (released and self.of_sum)
        check("of_sum", self.of_sum, alone, "false with support_noise or query_noise: one noise or the other")
        summed = self.support_noise is None
        check("own_terms", self.own_terms, summed or not self.own_terms, "false with noisy support steps")
        moments = self.blocks is None or (summed and not self.own_terms)
        check("blocks", self.blocks, moments, "none with noisy support steps or own_terms")
        for name in ("support_noise", "query_noise", "query_to_message_bound"):
            value = getattr(self, name)
            check(name, value, value is None or 0 < value < math.inf, "a finite number above 0")
        for name in ("support_steps", "support_records", "query_records"):
            check(name, getattr(self, name), getattr(self, name) >= 1, "at least 1")

    @property
    def kind(self) -> Kind:
        """Kind of release, by which relations state how far it moves."""
        if self.blocks is not None:
            return "moments"
        if self.own_terms:
            return "rows"
        return "parts" if self.support_noise is None else "steps"

    @property
    def unbounded(self) -> bool:
        """True if nothing bounds a client as a whole: any number of its rows enter a sum of whole numbers."""
        return self.of_sum and self.rows and self.blocks is not None

    def holds(self, relation: Relation) -> bool:
        """Return whether anything is proved about records that differ so."""
        stated = RELATIONS[relation]
        known = not stated.of_slots if self.rows else not stated.of_rows
        return known and (self.batch_rate == 1 or stated.sampled)

    def moves(self, relation: Relation) -> Moves:
        """(support, query) of each worst case, in clip bounds."""
        if self.blocks is not None:
            return ((0.0, self.blocks.moved(relation)),)
        return RELATIONS[relation].moves[self.kind]

    def moved(self, relation: Relation) -> float:
        """Largest change of the query release, or of the sum of parts, in clip bounds of one term."""
        return max(query for _, query in self.moves(relation))

    def roles(self) -> tuple[float, float]:
        """(mu_s, mu_q) of one participation towards who sees the message, of a change by one clip bound in either role.

        Parts without noise of their own have none to offer: what their sum's noise is worth says
        participation_cost.
        """
        if self.of_sum:
            return math.inf, math.inf
        support = 0.0 if self.support_noise is None else math.sqrt(self.support_steps) / self.support_noise
        return support, 0.0 if self.query_noise is None else 1.0 / self.query_noise

    def towards_messages(self, relation: Relation) -> tuple[float, str]:
        """(mu of one participation of a record towards who sees the message, formula): its worst case.

        A record is a part of its client, and changes the message by no more than that.
        """
        support, query = self.roles()
        cases = self.moves(relation)
        worst, of_support, of_query = max(
            (math.hypot(a * support, b * query), a * support, b * query) for a, b in cases
        )
        whole, formula = self.whole_client()
        if whole < worst:
            return whole, formula
        if of_support and of_query:
            return worst, "2 sqrt(K/z_s^2 + 1/z_q^2)"
        one = support if of_support else query
        times = f"{worst / one:.4g}" if one else "1"
        return worst, f"{f'{times} ' if times != '1' else ''}sqrt(K)/z_s" if of_support else f"{times}/z_q"

    def whole_client(self) -> tuple[float, str]:
        """(mu of one participation where all records of a client are others, formula)."""
        if self.query_noise is not None and self.blocks is not None:
            moved = self.blocks.of_client(self.query_records, cut=self.rows)
            return moved / self.query_noise, f"{moved:.4g} / z_q"
        if self.query_noise is not None:
            return 2.0 * self.query_records / self.query_noise, "2 n_q / z_q"
        assert self.support_noise is not None
        mu = 2.0 * math.sqrt(self.support_steps) * self.support_records / self.support_noise
        return mu, "2 sqrt(K) n_s / z_s"

    def with_mu(self, mu: float) -> RecordLayer:
        """Balanced noise: a record in either role is mu-GDP (z_s = sqrt(K) z_q)."""
        support = None if self.support_noise is None else math.sqrt(self.support_steps) / mu
        return replace(self, support_noise=support, query_noise=None if self.query_noise is None else 1.0 / mu)


def holding(record: RecordLayer | None) -> tuple[Relation, ...]:
    """Relations that are proved for a layer; without one a record changes its whole client at most, in every one."""
    return tuple(relation for relation in RELATIONS if record is None or record.holds(relation))


def default_relation(record: RecordLayer | None) -> Relation:
    """Relation that a target is for where nothing is said: rows, where records are such."""
    return "row-deleted" if record is not None and record.rows else "zero-out"


def check(name: str, value: object, holds: bool, wanted: str) -> None:
    """Refuse a constant for which no guarantee can be computed.

    Raises:
        RefusedPlan: `holds` is false; says what is wanted.
    """
    # A comparison with NaN is false, so NaN never holds.
    if not holds:
        raise RefusedPlan(f"{name} = {value}: expected {wanted}; no guarantee can be computed otherwise")
