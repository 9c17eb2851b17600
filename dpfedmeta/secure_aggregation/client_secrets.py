"""Secrets of a client in a round: what it holds meanwhile, and the shares that it deals and opens."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from dpfedmeta.secure_aggregation.crypto import pairwise
from dpfedmeta.secure_aggregation.crypto.keys import SECRET_BYTES, Pair
from dpfedmeta.secure_aggregation.crypto.pairwise import ShareKeys, share_commitment
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.crypto.shamir import SHARE_BYTES
from dpfedmeta.secure_aggregation.payloads import Dealt, Kind, Survivors
from dpfedmeta.secure_aggregation.protocol_messages import share_of
from dpfedmeta.secure_aggregation.round_parameters import Round

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


def deal(round_: Round, bound: bytes, channel: ShareKeys, seat: int, other: int, shares: Sequence[int]) -> Dealt:
    """Shares for a neighbour, sealed and committed to.

    Args:
        round_: Which one.
        bound: What commitments are bound to.
        channel: With the neighbour.
        seat: One's own.
        other: The neighbour's.
        shares: Of the seed, of the mask key.
    """
    content = b"".join(share.to_bytes(SHARE_BYTES, "big") for share in shares)
    seed, key = (share_commitment(bound, seat, other, kind, share) for kind, share in zip(Kind, shares, strict=True))
    return Dealt(other, channel.sealed(round_, seat, other, content), seed, key)


def held(round_: Round, bound: bytes, channel: ShareKeys, seat: int, dealt: Dealt) -> tuple[int, int]:
    """The shares (of the seed, of the mask key) that a neighbour dealt.

    Args:
        round_: Which one.
        bound: What commitments are bound to.
        channel: With the neighbour.
        seat: One's own.
        dealt: What is shown of the neighbour.

    Raises:
        Refused: They do not open, or are not what the neighbour committed to.
    """
    content = channel.unsealed(round_, seat, dealt.seat, dealt.sealed)
    shares = share_of(content[:SHARE_BYTES]), share_of(content[SHARE_BYTES:])
    for kind, share, shown in zip(Kind, shares, dealt.commitments, strict=True):
        if share_commitment(bound, dealt.seat, seat, kind, share) != shown:
            raise Refused(f"the share is not the one that seat {dealt.seat} committed to")
    return shares
