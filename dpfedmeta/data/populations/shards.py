"""Clients of a sorted benchmark: each holds two shards, hence mostly two classes (McMahan et al. 2017, https://arxiv.org/abs/1602.05629)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpfedmeta.core.errors import InputError
from dpfedmeta.core.random.random_sources import IntArray, Purpose, public_generator
from dpfedmeta.data.episodes.class_pool import ClassPool
from dpfedmeta.data.episodes.episode import Episode

SHARDS_PER_CLIENT = 2


@dataclass(frozen=True, kw_only=True)
class ShardPopulation:
    """All images of a split sorted by class, cut into shards, and two shards dealt to each client.

    One deal uses every shard once; where there are more clients than that, the shards are shuffled and dealt again
    (as in Geyer et al. 2017, https://arxiv.org/abs/1712.07557), so an image then belongs to several clients.

    Attributes:
        pool: The images; label k is the k-th class of the pool.
        records: Records of a client.
        clients: N.
        seed: Of the deals.
    """

    pool: ClassPool
    records: int
    clients: int
    seed: int

    def __post_init__(self) -> None:
        if self.records % SHARDS_PER_CLIENT or self.shards < SHARDS_PER_CLIENT:
            raise InputError(
                f"population.records = {self.records}: a client holds {SHARDS_PER_CLIENT} shards of equal size out of "
                f"{self.pool.size:,} images; give an even number of at most {self.pool.size}"
            )

    @property
    def shards(self) -> int:
        """Shards of one deal."""
        return self.pool.size // (self.records // SHARDS_PER_CLIENT)

    @property
    def clients_per_deal(self) -> int:
        """Clients after whom the shards are dealt again."""
        return self.shards // SHARDS_PER_CLIENT

    def episode(self, client: int) -> Episode:
        """The data of client number `client`, all of it as support; a function of (seed, client) alone.

        Raises:
            IndexError: There is no such client.
        """
        if not 0 <= client < self.clients:
            raise IndexError(f"client {client} of a population of {self.clients}")
        import torch

        images, labels = self.pool.records_at(self._rows(client))
        return Episode(
            support_images=torch.from_numpy(images),
            support_labels=torch.from_numpy(labels),
            query_images=torch.zeros(0, *images.shape[1:]),
            query_labels=torch.zeros(0, dtype=torch.int64),
        )

    def _rows(self, client: int) -> IntArray:
        deal, place = divmod(client, self.clients_per_deal)
        order = public_generator(self.seed, Purpose.CLIENT_DATA, deal).permutation(self.shards)
        mine = order[SHARDS_PER_CLIENT * place : SHARDS_PER_CLIENT * (place + 1)]
        size = self.records // SHARDS_PER_CLIENT
        return np.concatenate([np.arange(shard * size, (shard + 1) * size) for shard in mine])
