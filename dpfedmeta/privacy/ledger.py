"""The privacy ledger: one event a line, on disk before the release is used.

Line 0 states the plan's constants; every further line is one round. Each line carries the hash of the one
before it, so an edit or a lost line in the middle is found. What was spent is computed from the ledger alone.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dpfedmeta.errors import InputError, RefusedPlan
from dpfedmeta.privacy.accounting import Guarantee, guarantees
from dpfedmeta.privacy.plan import PrivacyPlan, RecordLayer

VERSION = 1
_START = "0" * 64


@dataclass(frozen=True, kw_only=True)
class RoundEvent:
    """What one round costs; public constants only.

    Attributes:
        round: Number of the round.
        sampling_rate: q.
        noise_multiplier: z or z_eff that the public faces; None without a client-level mechanism.
        support_noise: z_s, or None.
        query_noise: z_q, or None.
        support_steps: K, or None.
    """

    round: int
    sampling_rate: float
    noise_multiplier: float | None
    support_noise: float | None = None
    query_noise: float | None = None
    support_steps: int | None = None


def planned_event(plan: PrivacyPlan, round_: int) -> RoundEvent:
    """The event that round `round_` of the plan will be charged with."""
    record = plan.record
    return RoundEvent(
        round=round_,
        sampling_rate=plan.rate,
        noise_multiplier=plan.effective_noise,
        support_noise=record.support_noise if record else None,
        query_noise=record.query_noise if record else None,
        support_steps=record.support_steps if record else None,
    )


def _line(body: dict[str, Any], previous: str) -> tuple[str, str]:
    text = json.dumps({**body, "previous": previous}, sort_keys=True)
    return text, hashlib.sha256(text.encode()).hexdigest()


class Ledger:
    """Append-only file. `charge` returns only after the line is flushed to disk."""

    def __init__(self, path: Path, plan: PrivacyPlan) -> None:
        """Start a new ledger; an existing file is an error, spent budget is never overwritten."""
        self._path = path
        self._plan = plan
        self.rounds = 0
        body = {"version": VERSION, "plan": asdict(plan)}
        self._previous = _START
        self._append(body, "x")

    def charge(self, event: RoundEvent) -> None:
        """Write one round's event; call it before the release is used (privacy rule 6)."""
        self._append(asdict(event), "a")
        self.rounds += 1

    def _append(self, body: dict[str, Any], mode: str) -> None:
        text, digest = _line(body, self._previous)
        with self._path.open(mode, encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        self._previous = digest


def read(path: Path) -> tuple[PrivacyPlan, tuple[RoundEvent, ...]]:
    """Read and check a ledger.

    Raises:
        InputError: Missing, truncated, edited or of another version; says which line.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot read the ledger ({error.strerror}); is this a run directory?") from error
    if len(lines) < 2 or lines[-1] != "":
        raise InputError(f"{path}, line {len(lines)}: the ledger is truncated; restore it from a backup")
    bodies = []
    previous = _START
    for number, text in enumerate(lines[:-1], start=1):
        try:
            body = json.loads(text)
            intact = body.pop("previous") == previous and _line(body, previous)[0] == text
        except (ValueError, KeyError, AttributeError, TypeError):
            intact = False
        if not intact:
            raise InputError(
                f"{path}, line {number}: the hash chain breaks here; this line or the one before it was "
                "edited or lost, and nothing after it counts"
            )
        previous = hashlib.sha256(text.encode()).hexdigest()
        bodies.append(body)
    try:
        return _plan(bodies[0]), tuple(RoundEvent(**body) for body in bodies[1:])
    except (KeyError, TypeError) as error:
        raise InputError(f"{path}: not a ledger of version {VERSION} ({error})") from error


def _plan(body: dict[str, Any]) -> PrivacyPlan:
    if body["version"] != VERSION:
        raise InputError(f"ledger version {body['version']} is not known here, only version {VERSION}")
    fields = dict(body["plan"])
    record = fields.pop("record")
    return PrivacyPlan(**fields, record=RecordLayer(**record) if record else None)


def spent(plan: PrivacyPlan, events: tuple[RoundEvent, ...]) -> tuple[Guarantee, ...]:
    """The four cells that the events add up to.

    Raises:
        RefusedPlan: An event differs from the plan in the header: that is another mechanism, and it is
            never accounted for approximately.
    """
    for event in events:
        if event != planned_event(plan, event.round):
            raise RefusedPlan(f"round {event.round} of the ledger is not the mechanism of the plan: {event}")
    return guarantees(plan, rounds=len(events))


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
