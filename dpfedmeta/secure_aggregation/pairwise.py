"""What two neighbours derive from their keys: the seed of their mask, and a key for the shares of each direction."""

from __future__ import annotations

from hashlib import sha256

from dpfedmeta.secure_aggregation.agreement import Round
from dpfedmeta.secure_aggregation.keys import Pair, committed, derived
from dpfedmeta.secure_aggregation.messages import KeyList, Keys, Phase, header


def graph_seed(round_: Round, listed: KeyList | None) -> bytes:
    """What the graph is drawn from: the round alone, or with a malicious server all commitments and keys of all clients.

    Guarantee:
        With a malicious server every honest client's keys are in it, and all who accept one another's signatures hold the same list. A server that
        tries many lists with its colluding clients before it publishes one multiplies the 2^-40 of `graph.parameters` by their number.
    """
    return sha256(b"graph" + bound_to(round_, listed)).digest()


def bound_to(round_: Round, listed: KeyList | None) -> bytes:
    """What everything after the keys is bound to."""
    return sha256(b"keys" + round_.digest + (listed.encode() if listed else b"")).digest()


def mask_seed(bound: bytes, own: Pair, keys: Keys, others: Keys, seat: int, other: int) -> bytes:
    """256 bits that both of a pair derive.

    Args:
        bound: See `bound_to`.
        own: One's mask keys.
        keys: What `seat` showed.
        others: What `other` showed.
        seat: One's own.
        other: The neighbour's.

    Raises:
        Refused: The other key agrees on nothing secret.
    """
    low, high = ((seat, keys), (other, others)) if seat < other else ((other, others), (seat, keys))
    place = low[0].to_bytes(4, "big") + high[0].to_bytes(4, "big")
    return derived(own.agreed(others.mask_key), b"mask of a pair" + bound + place + low[1].encode() + high[1].encode())


def own_seed(bound: bytes, seed: bytes, seat: int) -> bytes:
    """256 bits of a client's own mask."""
    return derived(seed, b"own mask" + bound + seat.to_bytes(4, "big"))


def commitment(round_: Round, seed: bytes, seat: int) -> bytes:
    """To the seed of one's own mask."""
    return committed(seed, round_.digest + seat.to_bytes(4, "big"))


class ShareKeys:
    """The keys that seal shares between two neighbours: one for each direction, since one key for both would use its nonce twice.

    Args:
        round_: Of the keys.
        bound: See `bound_to`.
        own: One's share keys.
        other: The neighbour's public share key.

    Raises:
        Refused: The other key agrees on nothing secret.
    """

    def __init__(self, round_: Round, bound: bytes, own: Pair, other: bytes) -> None:
        self._secret = own.agreed(other)
        self._round, self._bound = round_, bound

    def one_way(self, sender: int, recipient: int, sender_keys: Keys, recipient_keys: Keys) -> tuple[bytes, bytes]:
        """(key, context) of what the sender seals for the recipient."""
        context = b"".join(
            (
                header(self._round, Phase.SHARES, sender, recipient),
                self._round.digest,
                self._bound,
                sender_keys.encode(),
                recipient_keys.encode(),
            )
        )
        return derived(self._secret, b"shares" + context), context
