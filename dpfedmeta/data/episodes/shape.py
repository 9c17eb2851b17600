"""The size of an episode and the form of a record. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from dpfedmeta.data.missing import MissingValues

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Kind = Literal["images", "vectors", "tokens"]

LEAST_WAYS, LEAST_RECORDS = 2, 2
"""Of a whole client: its classes, and the records of each, one to adapt on and one to be judged on."""


@lru_cache(maxsize=8)
def class_labels(ways: int, each: int, device: torch.device | str = "cpu") -> Tensor:
    """Labels of classes with so many records each, in their order; everybody has the same ones, so nobody writes."""
    import torch

    return torch.arange(ways, device=device).repeat_interleave(each)


@dataclass(frozen=True, kw_only=True)
class EpisodeShape:
    """Size of an episode; n_s = ways * shots and n_q = ways * queries are public constants."""

    ways: int
    shots: int
    queries: int

    @property
    def support_records(self) -> int:
        """n_s."""
        return self.ways * self.shots

    @property
    def query_records(self) -> int:
        """n_q."""
        return self.ways * self.queries

    def ordered(self, support: Tensor, query: Tensor) -> bool:
        """Return whether labels are in the order of their classes, with the numbers of records that each has here."""
        import torch

        due = (class_labels(self.ways, each, support.device) for each in (self.shots, self.queries))
        return all(map(torch.equal, (support, query), due))

    @property
    def words(self) -> str:
        """For people."""
        return f"{self.ways} ways, {self.shots} shots, {self.queries} queries"


@dataclass(frozen=True, kw_only=True)
class WholeShape:
    """Public limits of an episode that uses all records of a client: its classes and records are its own number.

    Attributes:
        support_share: Share of each class that is support; at least one record is, and at least one is not.
        most_ways: Most classes.
        most_records: Most records of all classes together, at least two for each of `most_ways`.
    """

    support_share: float
    most_ways: int
    most_records: int

    @property
    def words(self) -> str:
        """For people."""
        least = f"{LEAST_RECORDS} records or more of each of {LEAST_WAYS} classes (of a public list: of one)"
        least += f" or, of numbers to predict, {LEAST_RECORDS} records"
        return f"{least}, up to {self.most_ways} classes and {self.most_records} records in all"

    def support_of(self, count: int) -> int:
        """Number of support records among `count` records of a class, for a count of at least 2."""
        # A share such as 0.29 of 100 is 28.999... in floats.
        return min(count - 1, max(1, int(self.support_share * count + 1e-9)))


@dataclass(frozen=True, kw_only=True)
class RecordForm:
    """Form of every record of a data set: shape and vocabulary; all records are float32.

    Attributes:
        shape: (channels, height, width) for images, (numbers,) for vectors, (length,) for token sequences.
        vocabulary: Tokens are whole numbers from 1 to below this; 0 pads shorter sequences. None if not tokens.
        targets: Whether each record comes with a number to predict, rather than a class.
        missing: How values that a table misses become numbers of a vector; None: it misses none.
    """

    shape: tuple[int, ...]
    vocabulary: int | None = None
    targets: bool = False
    missing: MissingValues | None = field(default=None, compare=False, repr=False)

    @property
    def stored(self) -> tuple[int, ...]:
        """Shape of a record in a decoded array: a number to predict stands behind those of a vector."""
        return (self.shape[0] + 1,) if self.targets else self.shape

    @property
    def kind(self) -> Kind:
        """Kind of the records: images, vectors or tokens."""
        if self.vocabulary is not None:
            return "tokens"
        return "images" if len(self.shape) == 3 else "vectors"

    @property
    def words(self) -> str:
        """For people."""
        if self.kind == "images":
            return "images of " + " x ".join(map(str, self.shape))
        if self.vocabulary is None:
            return f"vectors of {self.shape[0]} numbers" + (" with a number to predict" if self.targets else "")
        return f"sequences of {self.shape[0]} tokens (1 to {self.vocabulary - 1}, 0 pads)"


OWN, ASKED = "own", "asked"
"""Kinds of clients that are not simulated from a pool: objects of the caller's own, and those that a server asks."""
Clients = Literal["real", "named", "simulated", "unknown"]
"""Whose clients are: of a federation, of data that name them, nobody's, or that only their caller knows."""
