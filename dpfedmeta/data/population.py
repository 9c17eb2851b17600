"""Populations: from a client's number to its data, lazily."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dpfedmeta.data.episode import Episode, EpisodeShape, draw_episode
from dpfedmeta.data.pool import ClassPool
from dpfedmeta.randomness import Purpose, public_generator


class Population(Protocol):
    """From a client's number to its data."""

    @property
    def clients(self) -> int:
        """N."""
        ...

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, always the same."""
        ...


@dataclass(frozen=True, kw_only=True)
class VirtualPopulation:
    """`clients` simulated clients; each always holds the same episode, and none is stored.

    Images are shared between clients: a client is the privacy unit of the simulation, and a record is one
    slot of one client, not one image.
    """

    pool: ClassPool
    shape: EpisodeShape
    clients: int
    seed: int

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, a function of (seed, client) alone.

        Raises:
            IndexError: There is no such client.
        """
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        return draw_episode(self.pool, public_generator(self.seed, Purpose.CLIENT_DATA, client), self.shape)
