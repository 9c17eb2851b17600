"""State of a client in a round, and the secrets that it holds meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from dpfedmeta.secure_aggregation.crypto import pairwise
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, Pair
from dpfedmeta.secure_aggregation.payloads import Survivors

# In place of a key pair that is forgotten.
SPENT = Pair(bytes(SECRET_BYTES))


class ClientStep(Enum):
    """Next step of a client."""

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
    """Participations by the client's own ledger.

    Attributes:
        taken: Number of rounds that it took part in, failed ones too.
        most: R, the most rounds that it may join. None: no limit.
        last: (round, attempt) of its last participation in this run, if any.
    """

    taken: int = 0
    most: int | None = None
    last: tuple[int, int] | None = None


@dataclass(kw_only=True)
class Secrets:
    """Secrets of a client in a round; each is forgotten as soon as it has been used."""

    mask_keys: Pair
    share_keys: Pair
    seed: bytes
    channels: dict[int, pairwise.ShareKeys] = field(default_factory=dict)
    # Of neighbours: (of the seed, of the mask key).
    shares: dict[int, tuple[int, int]] = field(default_factory=dict)
    # Neighbours whose shares are no shares.
    rejected: set[int] = field(default_factory=set)
    sharers: frozenset[int] = frozenset()
    told: Survivors | None = None
