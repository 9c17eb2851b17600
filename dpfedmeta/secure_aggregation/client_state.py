"""Where a client stands in a round, and the secrets that it holds meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dpfedmeta.secure_aggregation import pairwise
from dpfedmeta.secure_aggregation.bodies import Survivors
from dpfedmeta.secure_aggregation.keys import SECRET_BYTES, Pair

# In place of a key pair that is forgotten.
SPENT = Pair(bytes(SECRET_BYTES))


class Step(Enum):
    """What a client does next."""

    ADVERTISE = "advertise"
    SHARE = "share"
    AGREE = "agree"
    MASK = "mask"
    CONSENT = "consent"
    UNMASK = "unmask"
    DONE = "done"
    ABORTED = "aborted"


@dataclass(frozen=True, kw_only=True)
class History:
    """What a client's own ledger says.

    Attributes:
        taken: Rounds that it took part in, failed ones too.
        most: R, the rounds that it promised at most. None: no limit.
        last: (round, attempt) of the last one of this run, if any.
    """

    taken: int = 0
    most: int | None = None
    last: tuple[int, int] | None = None


@dataclass(kw_only=True)
class Secrets:
    """What is forgotten as soon as it has been used."""

    mask_keys: Pair
    share_keys: Pair
    seed: bytes
    channels: dict[int, pairwise.Channel] = field(default_factory=dict)
    # Of neighbours: (of the seed, of the mask key).
    shares: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Neighbours whose shares are no shares.
    rejected: set[int] = field(default_factory=set)
    sharers: frozenset[int] = frozenset()
    told: Survivors | None = None
