"""Shares between neighbours: dealing one's own, and opening those that a neighbour dealt."""

from __future__ import annotations

from collections.abc import Sequence

from dpfedmeta.secure_aggregation.byte_layout import share_of
from dpfedmeta.secure_aggregation.crypto.pairwise import ShareKeys, share_commitment
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused
from dpfedmeta.secure_aggregation.crypto.shamir import SHARE_BYTES
from dpfedmeta.secure_aggregation.payloads import Dealt, Kind
from dpfedmeta.secure_aggregation.round_parameters import Round


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
            raise Refused(f"another share than seat {dealt.seat} committed to")
    return shares
