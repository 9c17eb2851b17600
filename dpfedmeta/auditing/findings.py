"""Findings of an audit, for people and for files."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dpfedmeta.accounting.events.guarantee import Guarantee

AuditName = Literal["distinguish", "one-run", "one-shot", "many-runs"]
AUDITS: tuple[AuditName, ...] = ("distinguish", "one-run", "one-shot", "many-runs")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Finding of one audit on one cell.

    Attributes:
        unit: client or record.
        observer: server or public.
        promised: Epsilon of the cell.
        delta: Delta of the cell.
        audited: A lower bound on epsilon, or an estimate of it; None: this audit cannot look at the cell.
        confidence: Confidence of the bound; None: `audited` is an estimate.
        audit: Name of the audit.
        method: How the bound comes from what was seen; or why there is none.
        runs: How many runs it is from.
        canaries: How many canaries each of them had.
        right: Runs in which the attack named the world; None: another kind of audit.
        second: Whether it is from a second sample, made because the bound of a first one was above the promise.
    """

    unit: str
    observer: str
    promised: float
    delta: float
    audited: float | None
    confidence: float | None
    audit: AuditName
    method: str
    runs: int
    canaries: int
    right: int | None = None
    second: bool = False

    @classmethod
    def of(
        cls,
        cell: Guarantee,
        audit: AuditName,
        audited: float | None,
        method: str,
        *,
        confidence: float | None = None,
        runs: int = 1,
        canaries: int = 1,
        right: int | None = None,
        second: bool = False,
    ) -> Finding:
        """Make the finding of an audit on this cell."""
        return cls(
            unit=cell.unit,
            observer=cell.observer,
            promised=cell.epsilon,
            delta=cell.delta,
            audited=audited,
            confidence=confidence,
            audit=audit,
            method=method,
            runs=runs,
            canaries=canaries,
            right=right,
            second=second,
        )

    @property
    def cell(self) -> str:
        """The cell as (unit, observer)."""
        return f"({self.unit}, {self.observer})"

    @property
    def ratio(self) -> float | None:
        """Audited over promised; None of a promise of nothing and of one that is 0."""
        if self.audited is None or not 0 < self.promised < math.inf:
            return None
        return self.audited / self.promised

    @property
    def above(self) -> bool:
        """True if a lower bound is above the promise.

        At 95% confidence, one in twenty first samples of a program that keeps its promise may be above it by chance.
        """
        return self.confidence is not None and self.audited is not None and self.audited > self.promised

    @property
    def refutes(self) -> bool:
        """True if a second, independent sample confirms that the promise is broken."""
        return self.second and self.above

    def as_json(self) -> dict[str, Any]:
        """Return the finding as audit.json and --json hold it; an infinite promise is null."""
        return {
            "unit": self.unit,
            "observer": self.observer,
            "promised": self.promised if math.isfinite(self.promised) else None,
            "delta": self.delta,
            "audited": self.audited,
            "ratio": self.ratio,
            "confidence": self.confidence,
            "audit": self.audit,
            "method": self.method,
            "runs": self.runs,
            "canaries": self.canaries,
            "right": self.right,
            "second": self.second,
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Finding:
        """The inverse."""
        values = {name: content[name] for name in cls.__dataclass_fields__}
        return cls(**{**values, "promised": math.inf if values["promised"] is None else values["promised"]})
