"""Guarantee for one unit towards one observer: (epsilon, delta), and how it was bounded."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from dpfedmeta.accounting.relations.relations import Relation

UnitName = Literal["client", "record"]
Observer = Literal["server", "public"]
Adjacency = Literal["add-remove", "replace-one"] | Relation
Method = Literal["pld", "rdp", "prv", "gdp", "gdp-mixture", "zcdp", "none"]


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Bound on the epsilon of one cell by one method.

    Attributes:
        method: Method that computes epsilon.
        epsilon: inf where the method gives no bound.
        event: Description of the releases that the observer sees, with their numbers.
        formula: The mathematics, in the words of docs/guarantees.md.
        loose: It holds, and may be many times larger than a distribution of privacy losses would give.
    """

    method: Method
    epsilon: float
    event: str
    formula: str
    loose: bool = False


ANY_NUMBER_OF_ROWS = Bound(
    method="none", epsilon=math.inf, event="any number of rows of a client", formula="nothing bounds their sum"
)
"""Of a client as a whole, where any number of its rows enter a sum of whole numbers."""


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta)-DP for one unit towards one observer.

    Attributes:
        unit: Whose data changes.
        observer: Who looks: the honest-but-curious server, or everybody who sees the releases.
        delta: The probability that the bound fails.
        adjacency: What "changes" means.
        bounds: All bounds that were computed for the cell, at least one.
        relations: Of a record: epsilon at the same delta for every relation that holds; empty where none was computed.
    """

    unit: UnitName
    observer: Observer
    delta: float
    adjacency: Adjacency
    bounds: tuple[Bound, ...]
    relations: Mapping[Relation, float] = field(default_factory=dict)

    @property
    def binding(self) -> Bound:
        """The smallest bound: what is promised."""
        return min(self.bounds, key=lambda bound: bound.epsilon)

    @property
    def epsilon(self) -> float:
        """Inf where the cell holds nothing."""
        return self.binding.epsilon

    @property
    def method(self) -> Method:
        """Method that computed epsilon; "none" where epsilon is infinite."""
        return self.binding.method if math.isfinite(self.epsilon) else "none"

    @property
    def name(self) -> str:
        """The cell as people write it."""
        return f"({self.unit}, {self.observer})"

    def as_json(self) -> dict[str, object]:
        """The form of summary.json; an infinite epsilon is null."""
        related = {relation: _finite(epsilon) for relation, epsilon in self.relations.items()}
        return {
            "unit": self.unit,
            "observer": self.observer,
            "epsilon": _finite(self.epsilon),
            "delta": self.delta,
            "adjacency": self.adjacency,
            "method": self.method,
            "event": self.binding.event,
            "formula": self.binding.formula,
            "bounds": {bound.method: _finite(bound.epsilon) for bound in self.bounds},
            **({"relations": related} if related else {}),
        }


class FourGuarantees(tuple[Guarantee, ...]):
    """The four cells, printed a line each."""

    def of(self, unit: str, observer: str) -> Guarantee:
        """Return a cell by unit ("client" or "record") and observer ("public" or "server")."""
        return next(cell for cell in self if (cell.unit, cell.observer) == (unit, observer))

    def __repr__(self) -> str:
        from dpfedmeta.accounting.rounded import rounded_up as up

        return "\n".join(
            f"{c.name:<17} epsilon {up(c.epsilon, 4):<8} at delta {up(c.delta, 6)} ({c.adjacency}, {c.method})"
            for c in self
        )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
