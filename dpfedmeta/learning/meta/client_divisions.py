"""Repeated divisions of a client's records into support and query sets. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from dpfedmeta.config.settings import Settings
from dpfedmeta.core.errors import InputError
from dpfedmeta.data.episodes.shape import EpisodeShape

if TYPE_CHECKING:
    from dpfedmeta.data.episodes.episode import Episode


@dataclass(frozen=True, kw_only=True)
class Divisions:
    """Number and support size of the divisions of a client's records, or of each micro-episode's.

    Attributes:
        count: S, the number of divisions.
        shots: Support records per class in each division; the other records of the client, or of the micro-episode, are
            the query set.
    """

    count: int
    shots: int
    linear_head: ClassVar[bool] = True

    @classmethod
    def planned(cls, settings: Settings, shape: EpisodeShape) -> Divisions | None:
        """Those of what holds as many records as an episode of this shape; None: it is divided as it stands, once.

        Raises:
            InputError: A support set would leave no query record.
        """
        count, shots = settings.meta.divisions, settings.meta.division_shots
        if count == 1 and shots is None:
            return None
        held, shots = shape.shots + shape.queries, shots or shape.shots
        if shots >= held:
            raise InputError(
                f"meta.division_shots = {shots}: what is divided, a client or a micro-episode, holds {held} records of "
                "each class, and a query set needs one"
            )
        # A window that moves round has no more than `held` places.
        return cls(count=min(count, held), shots=shots)

    def fits(self, episode: Episode) -> bool:
        """Return whether a client holds equally many records of each class, and more than a support set takes."""
        held = (episode.support_labels.bincount(minlength=1), episode.query_labels.bincount(minlength=1))
        ways = max(len(each) for each in held)
        counts = [sum(int(each[way]) for each in held if way < len(each)) for way in range(ways)]
        return len(set(counts)) == 1 and counts[0] > self.shots
