"""How often, and how, a client divides its records into support and query. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpfedmeta.data.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Divisions:
    """How often, and how, a client divides its own records.

    Attributes:
        count: S.
        shots: Support records of a class in each; the others of the client are the query set.
    """

    count: int
    shots: int

    def fits(self, episode: Episode) -> bool:
        """Whether a client holds as many records of each class, and more than go into a support set."""
        held = (episode.support_labels.bincount(minlength=1), episode.query_labels.bincount(minlength=1))
        ways = max(len(each) for each in held)
        counts = [sum(int(each[way]) for each in held if way < len(each)) for way in range(ways)]
        return len(set(counts)) == 1 and counts[0] > self.shots
