"""The privacy ledger: one event a line, on disk before the release is used.

The first line states the plan's constants; every further line is one round. What was spent is computed from the
numbers of the rounds' own lines, never from the plan.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.privacy.accounting import Terms, four_cells, guarantees
from dpfedmeta.privacy.guarantee import Guarantee
from dpfedmeta.privacy.hash_chain import HashChain, read_chain
from dpfedmeta.privacy.plan import Change, PrivacyPlan, RecordLayer, SamplerName, Stretch

VERSION = 2


@dataclass(frozen=True, kw_only=True)
class RoundEvent:
    """What one round costs; public constants only.

    Attributes:
        round: Number of the round.
        sampler: How its cohort was drawn.
        clients: N.
        cohort: L.
        rate: q.
        noise_multiplier: z or z_eff that the public faces; None without a client-level mechanism.
        surplus_probability: How likely shared mode dropped surplus clients.
        support_noise: z_s, or None.
        query_noise: z_q, or None.
        support_steps: K, or None.
        message_noise: Deviation of each message's own noise over C; 0 where the server adds it all.
    """

    round: int
    sampler: SamplerName
    clients: int
    cohort: float
    rate: float
    noise_multiplier: float | None
    surplus_probability: float
    support_noise: float | None = None
    query_noise: float | None = None
    support_steps: int | None = None
    message_noise: float = 0.0


def planned_event(plan: PrivacyPlan, round_: int) -> RoundEvent:
    """The event that round `round_` of the plan will be charged with."""
    record, constants = plan.record, plan.at(round_)
    return RoundEvent(
        round=round_,
        sampler=constants.sampler,
        clients=constants.clients,
        cohort=constants.cohort,
        rate=constants.rate,
        noise_multiplier=constants.effective_noise,
        surplus_probability=constants.surplus_probability,
        support_noise=record.support_noise if record else None,
        query_noise=record.query_noise if record else None,
        support_steps=record.support_steps if record else None,
        message_noise=constants.message_noise,
    )


def opening_line(plan: PrivacyPlan) -> dict[str, Any]:
    """The first line: the plan's constants."""
    return {"version": VERSION, "plan": asdict(plan)}


class Ledger:
    """Append-only file. `charge` returns only after the line is flushed to disk."""

    def __init__(self, path: Path, plan: PrivacyPlan) -> None:
        """Start a new ledger; an existing file is an error, spent budget is never overwritten."""
        self._chain = HashChain.start(path, opening_line(plan))
        self.rounds = 0

    @property
    def head(self) -> str:
        """Hash of the last line."""
        return self._chain.head

    def charge(self, event: RoundEvent) -> None:
        """Write one round's event; call it before the release is used (privacy rule 6)."""
        self._chain.append(asdict(event))
        self.rounds += 1


def read(path: Path) -> tuple[PrivacyPlan, tuple[RoundEvent, ...]]:
    """Read and check a ledger.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line.
    """
    bodies, _ = read_chain(path, "ledger")
    try:
        return _plan(bodies[0]), tuple(RoundEvent(**body) for body in bodies[1:])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path}: not a ledger of version {VERSION} ({error})") from error


def head(path: Path) -> str:
    """Hash of the last line of a ledger."""
    return read_chain(path, "ledger")[1]


def _plan(body: dict[str, Any]) -> PrivacyPlan:
    if body["version"] != VERSION:
        raise InputError(
            f"ledger version {body['version']} is not known here, only version {VERSION}; verify it with the "
            "dpfedmeta that wrote it"
        )
    fields = dict(body["plan"])
    record = fields.pop("record")
    schedule = tuple(Change(**change) for change in fields.pop("schedule"))
    return PrivacyPlan(**fields, schedule=schedule, record=RecordLayer(**record) if record else None)


def spent(plan: PrivacyPlan, events: Sequence[RoundEvent]) -> tuple[Guarantee, ...]:
    """The four cells that the events add up to, from their own numbers.

    Raises:
        RefusedPlan: An event differs from what the header planned for its round, or rounds are missing or repeated (a
            repeated round may have had the same cohort): that is another mechanism, and it is never accounted for
            approximately.
    """
    for line, event in enumerate(events, start=2):
        if event.round != line - 2:
            raise RefusedPlan(f"line {line} of the ledger is round {event.round}, where round {line - 2} is due")
        if event.round >= plan.rounds or event != planned_event(plan, event.round):
            raise RefusedPlan(
                f"line {line}: round {event.round} of the ledger is not the mechanism of the plan: {event}"
            )
    return four_cells(stretches_of(events), Terms.of(plan))


def stretches_of(events: Sequence[RoundEvent]) -> tuple[Stretch, ...]:
    """The events as stretches of equal rounds."""
    return tuple(_stretch(constants, len(list(group))) for constants, group in groupby(events, key=_constants))


_Constants = tuple[SamplerName, int, float, float, float | None, float, float]


def _constants(event: RoundEvent) -> _Constants:
    own, surplus = event.message_noise, event.surplus_probability
    return event.sampler, event.clients, event.cohort, event.rate, event.noise_multiplier, surplus, own


def _stretch(constants: _Constants, rounds: int) -> Stretch:
    sampler, clients, cohort, rate, noise, surplus, own = constants
    return Stretch(
        rounds=rounds,
        sampler=sampler,
        clients=clients,
        cohort=cohort,
        rate=rate,
        largest_cohort=None,
        surplus_probability=surplus,
        total_noise=None,
        effective_noise=noise,
        message_noise=own,
    )


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The most that may be spent in each cell; the guard fails closed (privacy rule 7).

    Attributes:
        limits: Epsilon for each of the four cells, in the order of `guarantees`.
    """

    limits: tuple[float, ...]

    @classmethod
    def of(cls, planned: tuple[Guarantee, ...]) -> Budget:
        """Allow what was promised before round 0."""
        return cls(limits=tuple(guarantee.epsilon for guarantee in planned))

    def affordable_rounds(self, plan: PrivacyPlan) -> int:
        """The most rounds of the plan that stay within every limit (epsilon grows with rounds)."""
        if self.allows(guarantees(plan)):
            return plan.rounds
        low, high = 0, plan.rounds
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.allows(guarantees(plan, rounds=middle)) else (low, middle)
        return low

    def allows(self, after: tuple[Guarantee, ...]) -> bool:
        """Whether no cell would exceed its limit. NaN is never allowed."""
        return all(
            guarantee.epsilon <= limit and not math.isnan(guarantee.epsilon)
            for guarantee, limit in zip(after, self.limits, strict=True)
        )
