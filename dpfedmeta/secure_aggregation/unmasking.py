"""What the server takes off the sum of masked vectors, from the shares that survivors revealed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dpfedmeta.secure_aggregation import masks, pairwise, shamir
from dpfedmeta.secure_aggregation.agreement import Round
from dpfedmeta.secure_aggregation.bodies import Keys, Kind
from dpfedmeta.secure_aggregation.keys import SECRET_BYTES, Pair
from dpfedmeta.secure_aggregation.refusals import Aborted, Refused


@dataclass(frozen=True, kw_only=True)
class Missing:
    """One client's secret that masks hang on. Tasks are independent, so that several processes can share them.

    Attributes:
        seat: Whose.
        kind: Its seed, where it survived, or its mask key, where it fell silent.
        shares: Revealed ones by point, exactly t.
        keys: What it showed of itself.
        survivors: Neighbours that masked with it, and what they showed; nobody for a seed.
    """

    seat: int
    kind: Kind
    shares: Mapping[int, int]
    keys: Keys
    survivors: Mapping[int, Keys]


def correction(round_: Round, bound: bytes, missing: Sequence[Missing]) -> masks.Words:
    """What these clients' masks add to the sum of survivors, modulo 2^16 or 2^32.

    Raises:
        Aborted: Shares that do not give the secret which was committed to: somebody revealed a wrong one.
    """
    agreement = round_.agreement
    total = np.zeros(agreement.dimension, dtype=masks.word(agreement.bits))
    for task in missing:
        # A wrong share gives any element of the field, also one that 32 bytes do not hold.
        secret = (shamir.join(task.shares) % 2 ** (8 * SECRET_BYTES)).to_bytes(SECRET_BYTES, "big")
        if task.kind is Kind.SEED:
            if pairwise.commitment(round_, secret, task.seat) != task.keys.commitment:
                raise Aborted(f"the shares of the seed of seat {task.seat} do not give what it committed to")
            total += masks.expand(pairwise.own_seed(bound, secret, task.seat), agreement.dimension, agreement.bits)
            continue
        pair = Pair(secret)
        if pair.public != task.keys.mask_key:
            raise Aborted(f"the shares of the mask key of seat {task.seat} do not give the key that it showed")
        for seat, keys in task.survivors.items():
            try:
                context = pairwise.pair_context(bound, task.seat, task.keys, seat, keys)
                seed = pairwise.mask_seed(pair, keys.mask_key, context)
            except Refused as error:
                raise Aborted(f"seat {seat}: {error}") from None
            mask = masks.expand(seed, agreement.dimension, agreement.bits)
            # The survivor added it if the silent one's seat is the higher.
            (np.add if task.seat > seat else np.subtract)(total, mask, out=total)
    return total
