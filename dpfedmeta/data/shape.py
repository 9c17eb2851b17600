"""The size of an episode. Needs no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass


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
