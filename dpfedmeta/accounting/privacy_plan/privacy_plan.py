"""Privacy plan of a run, fixed before its first round: every constant that an epsilon depends on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from dpfedmeta.accounting.events.events import Earlier, Event, Phase, first_rounds
from dpfedmeta.accounting.events.failure_probability import RARE_SHARE
from dpfedmeta.accounting.events.noise_cost import Noise, ThresholdedNoise, noise_of
from dpfedmeta.accounting.events.record_layer import RecordLayer, check
from dpfedmeta.accounting.events.sampling import Sampling, sampling_of
from dpfedmeta.accounting.events.toeplitz_noise_cost import Correlation
from dpfedmeta.accounting.privacy_plan.matrix_mechanism_plan import correlated_noise
from dpfedmeta.accounting.privacy_plan.plan_checks import check_plan
from dpfedmeta.accounting.relations.relations import Relation
from dpfedmeta.core.errors import RefusedPlan

if TYPE_CHECKING:
    from dpfedmeta.accounting.privacy_plan.secure_round import SecureRounds

NoiseMode = Literal["shared", "stacked"]
NoiseSite = Literal["server", "clients"]
ServerSees = Literal["messages", "sum"]
"""What the server sees of a round before it releases the sum."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change that the plan fixes before training: what holds from one round on.

    Attributes:
        from_round: First round it holds for.
        noise_scale: The server's noise multiplier in these rounds over z.
        cohort_scale: The expected cohort in these rounds over L.
    """

    from_round: int
    noise_scale: float = 1.0
    cohort_scale: float = 1.0

    def __post_init__(self) -> None:
        check("from_round", self.from_round, self.from_round >= 0, "0 or more")
        for name in ("noise_scale", "cohort_scale"):
            check(name, getattr(self, name), 0 < getattr(self, name) < math.inf, "a finite number above 0")


@dataclass(frozen=True, kw_only=True)
class PrivacyPlan:
    """Everything the guarantees are computed from (privacy.md sections 2 and 3).

    Attributes:
        clients: N.
        cohort: L, the public expectation of the cohort size.
        rounds: T.
        noise_multiplier: z of the server; None where the algorithm has no client-level mechanism at all.
        sampler: Name of the sampler that draws cohorts (accounting.events.sampling).
        max_participations: R, or None.
        schedule: Changes of z and L by round, fixed before training; in order.
        noise_mode: How the server treats messages that carry record-level noise.
        noise_site: Who adds the client-level noise: the server, or each of the L clients of a cohort its share.
        noise: Which noise: independent, a correlated one, or package.module:Mechanism.
        correlation: What correlated noise needs besides; None with any other.
        server_sees: Every message, or only their sum: what the aggregation shows.
        colluding: c, how many clients of the cohort pool the knowledge of their own noise.
        hostile: Share of the population that may send messages without their noise; so many are not counted on where
            the clients' own noise pays for the server's.
        secure: How sums of whole numbers are made, where the server sees nothing else; None where it sees messages.
        record: The record-level layer, or None.
        relation: How two neighbouring records differ, for which the record cells are stated and targets are met.
        client_delta: delta of the client cells.
        record_delta: delta of the record cells.
        ends: Rounds that it had before it was extended, in order; none where it never was.
        missed: p of a release of counts above a threshold (events.noise_cost.ThresholdedNoise); None: there is none.
        earlier: What other ledgers charge the same clients with, before the first round: every cell counts it.
        capacity: M, clients that a round takes at most where they come when they choose; None: the server draws them.

    Raises:
        RefusedPlan: A constant for which no guarantee can be computed.
    """

    clients: int
    cohort: float
    rounds: int
    noise_multiplier: float | None
    sampler: str = "poisson"
    max_participations: int | None = None
    schedule: tuple[Change, ...] = ()
    noise_mode: NoiseMode = "shared"
    noise_site: NoiseSite = "server"
    noise: str = "independent"
    correlation: Correlation | None = None
    server_sees: ServerSees = "messages"
    colluding: int = 1
    hostile: float = 0.0
    secure: SecureRounds | None = None
    record: RecordLayer | None = None
    relation: Relation = "zero-out"
    client_delta: float = 1e-6
    record_delta: float = 1e-5
    ends: tuple[int, ...] = ()
    missed: float | None = None
    earlier: tuple[Earlier, ...] = ()
    capacity: int | None = None

    def __post_init__(self) -> None:
        check_plan(self)

    @property
    def sampling(self) -> type[Sampling]:
        """The sampler, as far as plans and accountants know it."""
        return sampling_of(self.sampler)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The whole plan.

        Raises:
            RefusedPlan: Shared mode leaves no noise towards colluding clients.
        """
        return tuple(Phase(event=self._event(change), rounds=rounds) for rounds, change in self.changes())

    @cached_property
    def before(self) -> tuple[Phase, ...]:
        """All releases that were made before."""
        return tuple(phase for other in self.earlier for phase in other.phases)

    @property
    def expected_participations(self) -> float:
        """Messages of the whole plan, in expectation and without the cap."""
        return sum(phase.rounds * phase.event.cohort for phase in self.phases)

    def first(self, rounds: int) -> tuple[Phase, ...]:
        """The plan's first `rounds` rounds."""
        return first_rounds(self.phases, rounds)

    def extended(self, rounds: int) -> PrivacyPlan:
        """The same plan with `rounds` rounds in all: every round that it had costs what it did.

        Guarantee:
            The guarantees of the result are those of all its rounds, the old ones too. No constant of a round depends
            on how many follow, so a run of the old plan is a run of this one that ended early.
        """
        return replace(self, rounds=rounds, ends=(*self.ends, self.rounds))

    @property
    def begun(self) -> PrivacyPlan:
        """The plan before its first extension; itself where it was never extended."""
        return replace(self, rounds=self.ends[0], ends=()) if self.ends else self

    def in_force(self, round_: int) -> int:
        """Number of rounds that the plan had when this round was first due."""
        return next(end for end in (*self.ends, self.rounds) if round_ < end)

    def at(self, round_: int) -> Event:
        """Return the event of one round: its privacy cost and the constants of its mechanism."""
        passed = 0
        for phase in self.phases:
            passed += phase.rounds
            if round_ < passed:
                return phase.event
        raise IndexError(f"round {round_} is not in a plan of {self.rounds} rounds")

    def changes(self) -> Iterator[tuple[int, Change]]:
        """(length, change) of every phase, from round 0."""
        changes = [c for c in self.schedule if c.from_round < self.rounds]
        if not changes or changes[0].from_round > 0:
            changes.insert(0, Change(from_round=0))
        ends = [change.from_round for change in changes[1:]] + [self.rounds]
        for change, end in zip(changes, ends, strict=True):
            yield end - change.from_round, change

    def _event(self, change: Change) -> Event:
        cohort = self.cohort * change.cohort_scale
        noise = None if self.noise_multiplier is None else self.noise_multiplier * change.noise_scale
        if self.secure is not None:
            # Inside: what belongs to sums of whole numbers is loaded where there are such.
            from dpfedmeta.accounting.privacy_plan.secure_round import secure_event

            return secure_event(self, self.secure)
        largest, hostile, rare, share = None, 0, 0.0, 0.0
        total, assured, effective = noise, noise, noise
        if self.capacity is not None:
            largest, rare = self.sampling.largest_of(self, cohort)
        if self.record is not None and self.noise_mode == "shared" and noise is not None:
            largest, rare = self.sampling.largest_of(self, cohort)
            hostile, unlucky = self.sampling.hostile_of(self, cohort)
            assert self.record.query_noise is not None
            rare, own = rare + unlucky, (self.record.query_noise / self.record.query_records) ** 2
            squared = max(noise**2 + self.colluding * own, (largest - hostile) * own)
            total, assured, effective = self._noises(squared, own, hostile)
        if self.noise_site == "clients" and noise is not None:
            hostile, rare = self.sampling.hostile_of(self, cohort)
            # Those that are sure to add theirs make z.
            share = noise / math.sqrt(self._honest(cohort, hostile))
            total, assured, effective = self._noises(noise**2, share**2, hostile)
        record = self.record
        return Event(
            sampler=self.sampler,
            clients=self.clients,
            cohort=cohort,
            rate=self.sampling.rate_of(self, cohort),
            largest_cohort=largest,
            hostile=hostile,
            surplus_probability=rare,
            total_noise=total,
            assured_noise=assured,
            noise=self._faced(effective),
            message_noise=share,
            support_noise=record.support_noise if record else None,
            support_steps=record.support_steps if record and record.support_noise is not None else None,
            query_noise=record.query_noise if record else None,
            slots=self.sampling.slots_of(self),
        )

    def _faced(self, multiplier: float | None) -> Noise | None:
        """Noise of multiplier 0, as of a server that adds none yet, is none."""
        if not multiplier:
            return None
        if self.missed is not None:
            return ThresholdedNoise(multiplier=multiplier, missed=self.missed)
        return noise_of(self.noise, multiplier) if self.correlation is None else correlated_noise(self, multiplier)

    def _noises(self, squared: float, own: float, hostile: int) -> tuple[float, float, float]:
        """(total, assured, effective) from the assured variance and that of one message's own noise."""
        return math.sqrt(squared + hostile * own), math.sqrt(squared), self._unknown_noise(squared, own)

    @property
    def allowed(self) -> float:
        """Probability allowed to each rare event in one round; extending a plan does not change it."""
        return RARE_SHARE * min(self.client_delta, self.record_delta) / self.begun.rounds

    def _honest(self, cohort: float, hostile: int) -> float:
        if hostile >= cohort:
            raise RefusedPlan(
                f"privacy.client.hostile = {self.hostile:g}: all {cohort:g} clients of a cohort may be hostile, so "
                "none is sure to add its share of the noise; lower it, raise population.cohort, or let the server add "
                "the noise (--server.noise_site server)"
            )
        return cohort - hostile

    def _unknown_noise(self, squared: float, own: float) -> float:
        if squared <= self.colluding * own:
            raise RefusedPlan(
                "(client, public): no noise is left that counts, since the colluding clients "
                f"(privacy.client.colluding = {self.colluding}) know all of it; "
                "raise server.noise_multiplier or lower privacy.client.colluding"
            )
        return math.sqrt(squared - self.colluding * own)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """A plan without its rounds, as far as a guarantee counts.

    Attributes:
        record: The record-level layer, or None.
        relation: How two neighbouring records differ.
        noise_mode: How the server treats messages that carry record-level noise.
        server_sees: Every message, or only their sum.
        max_participations: R, or None.
        client_delta: delta of the client cells.
        record_delta: delta of the record cells.
        before: Releases about the same clients that other ledgers charge, made before these rounds.
    """

    record: RecordLayer | None
    noise_mode: NoiseMode
    server_sees: ServerSees
    max_participations: int | None
    client_delta: float
    record_delta: float
    before: tuple[Phase, ...] = ()
    relation: Relation = "zero-out"

    @classmethod
    def of(cls, plan: PrivacyPlan) -> Terms:
        """The terms of a plan."""
        return cls(
            record=plan.record,
            relation=plan.relation,
            noise_mode=plan.noise_mode,
            server_sees=plan.server_sees,
            max_participations=plan.max_participations,
            client_delta=plan.client_delta,
            record_delta=plan.record_delta,
            before=plan.before,
        )
