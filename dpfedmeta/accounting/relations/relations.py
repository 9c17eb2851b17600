"""Relations between neighbouring data of one client: what a record does in each, and how far that moves a release.

Distances are in clip bounds of the release: (a, b) moves every support step by a and the query release by b. A relation
lists its worst cases for each kind of release; the proofs suppose that which group and role a row has follows from the
row alone (`RecordLayer.rows`), and that every part, or every record, is clipped on its own.

*parts*: a sum over groups of records that share none. A record that counts as nothing makes its group nothing: 1.
Another record in its place, or a row less, makes its group another one: both have length 1 at most, so 2. A row with
another label or other values leaves its group and enters another one: two groups become others, 4.

*steps*: noisy steps over the support records, then one noisy release over the query records; of each role and label the
first rows by hash are used. A row less lets the next row of its role and label in: one record is exchanged in one loop,
2. Another label is a row less in one list and one more in another; the lists may belong to one loop (4) or to both
(2 and 2). Rows exchanged under one label: in one role they are one exchange in one list, since all others keep their
order (2); otherwise each role has one exchange (2 and 2). A deleted and an added row bound any exchange.

*rows*: every record adds its own term and no other, all of them are added, and the sum is projected onto a ball. A
projection brings no two points further apart, so a term less moves it by 1, another term by 2.

*moments*: every record adds z z' with |z| <= 1, every pair of records u u' cut to a length of beta, every record z, cut
to a length of v, to the sum of its label (`MomentBlocks`). In units of what a record costs that counts as nothing,
sqrt(1 + beta^2 + v^2). Sums of positive semidefinite matrices of lengths p and q are sqrt(p^2 + q^2) apart at most,
since tr(uu' vv') >= 0. A row less takes z z' away and makes another pair of its own; another label changes two pairs; a
row that becomes another one does both. A number to predict stands in z, so another one is another z (`of_number`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from dpfedmeta.core.errors import RefusedPlan

Relation = Literal["zero-out", "in-place", "row-deleted", "row-relabelled", "row-exchanged-same-label", "row-exchanged"]
Kind = Literal["parts", "steps", "rows", "moments"]
Moves = tuple[tuple[float, float], ...]


@dataclass(frozen=True, kw_only=True)
class MomentBlocks:
    """Lengths of what one record adds to each block of moments, where the first adds at most 1.

    Attributes:
        pairs: beta, of a pair of records; 0: there is no such block.
        labels: v, of a record in the sum of its label; 0: there is none.
        radius: R, how much of the unit length of z the record itself may have; the rest is a constant.
        target: Square of how far z z' moves where only the number to predict in z becomes another one; 0: labels.
    """

    pairs: float = 0.0
    labels: float = 0.0
    radius: float = 1.0
    target: float = 0.0

    def __post_init__(self) -> None:
        # Labels in no block would cost nothing to change.
        if not max(self.pairs, self.labels, self.target) > 0.0:
            raise RefusedPlan(
                "blocks of moments: expected pairs, labels or target above 0; labels stand in none of them"
            )

    @staticmethod
    def of_number(length: float) -> float:
        """Square of how far z z' moves at most, |z| <= 1, where only the number of z becomes another one.

        With numbers s and t, and p the square of the rest, it is (s - t)^2 ((s + t)^2 + 2 p): all squares of lengths
        less twice that of the product. It grows with p, and (s + t) is 2 r - |s - t| at most.

        Args:
            length: r, the number is from -r to r; p is 1 - r^2 at most.
        """
        rest = 1.0 - length**2
        # Where it turns: one number at -r or r, and the other one inside; else the numbers are -r and r.
        turns = (3.0 * length - math.sqrt(max(length**2 - 4.0 * rest, 0.0))) / 2.0
        apart = [2.0 * length, turns] if length**2 > 4.0 * rest else [2.0 * length]
        return max(u**2 * ((2.0 * length - u) ** 2 + 2.0 * rest) for u in apart)

    @property
    def unit(self) -> float:
        """Distance by which a record moves all blocks that counts as nothing."""
        return math.sqrt(1.0 + self.pairs**2 + self.labels**2)

    def moved(self, relation: Relation) -> float:
        """Upper bound on the distance by which a record moves all blocks, in units of `unit`."""
        pairs, labels = self.pairs**2, self.labels**2
        # Two vectors of length 1 whose product is t move the squares by 2 - 2 t^2 and the sum of one label by v^2 (2 -
        # 2 t). They share the constant, so t is 1 - 2 R^2 at least. Of two labels v^2 counts twice, whatever t is.
        t = max(-labels / 2.0, 1.0 - 2.0 * self.radius**2)
        same, other = 2.0 * labels * (1.0 - t) - 2.0 * t**2, 2.0 * labels
        squares: Mapping[Relation, float] = {
            "zero-out": 1.0 + pairs + labels,
            "in-place": 2.0 + 2.0 * pairs + same,
            "row-deleted": 1.0 + 2.0 * pairs + labels,
            "row-relabelled": 8.0 * pairs + other + self.target,
            "row-exchanged-same-label": 2.0 + 8.0 * pairs + same,
            "row-exchanged": 2.0 + 8.0 * pairs + max(same, other),
        }
        return math.sqrt(squares[relation]) / self.unit

    def of_client(self, records: int, *, cut: bool = False) -> float:
        """Distance of all blocks where all records of a client become others, in units of `unit`.

        Args:
            records: n.
            cut: Whether it is the length of the message that is no more than n, and there are any number of records.
        """
        if cut:
            # Sums by label may point away from each other.
            return records * (2.0 if self.labels else math.sqrt(2.0))
        alike = 2.0 * records**2 * (1.0 + 0.25 * self.pairs**2)
        return math.sqrt(alike + (2.0 * self.labels * records) ** 2) / self.unit


_TWICE: Moves = ((2, 0), (0, 2))
_ANY: Moves = ((4, 0), (2, 2), (0, 4))


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """Change of one record of a client, and how far it moves a release at most.

    Attributes:
        words: The same for people, of "a record".
        of_rows: Whether it holds only where group and role of a record follow from its row alone.
        of_slots: Whether it is of records that have places of their own; a row has none, and is exchanged.
        sampled: Whether it is known for mini-batches that a client draws for itself.
        moves: (support, query) of each worst case, in clip bounds, by kind of release.
    """

    words: str
    of_rows: bool
    sampled: bool
    of_slots: bool = False
    moves: Mapping[Kind, Moves]


RELATIONS: Mapping[Relation, Neighbours] = {
    "zero-out": Neighbours(
        words="it counts as nothing, in its place",
        of_rows=False,
        sampled=True,
        moves={"parts": ((0, 1),), "steps": ((1, 0), (0, 1)), "rows": ((0, 1),)},
    ),
    "in-place": Neighbours(
        words="another one with its label takes its place",
        of_rows=False,
        of_slots=True,
        sampled=True,
        moves={"parts": ((0, 2),), "steps": _TWICE, "rows": ((0, 2),)},
    ),
    "row-deleted": Neighbours(
        words="its row is deleted or added",
        of_rows=True,
        sampled=True,
        moves={"parts": ((0, 2),), "steps": _TWICE, "rows": ((0, 1),)},
    ),
    "row-relabelled": Neighbours(
        words="its row gets another label, or number to predict",
        of_rows=True,
        sampled=False,
        moves={"parts": ((0, 4),), "steps": _ANY, "rows": ((0, 2),)},
    ),
    "row-exchanged-same-label": Neighbours(
        words="its row becomes another of its label",
        of_rows=True,
        sampled=False,
        moves={"parts": ((0, 4),), "steps": ((2, 2),), "rows": ((0, 2),)},
    ),
    "row-exchanged": Neighbours(
        words="its row becomes any other one",
        of_rows=True,
        sampled=False,
        moves={"parts": ((0, 4),), "steps": _ANY, "rows": ((0, 2),)},
    ),
}
"""Every relation that is known, from the one that costs least."""


NOT_COVERED = "the same person's other rows, and copies at other clients, are not covered"
"""Cases outside every relation of one record."""
