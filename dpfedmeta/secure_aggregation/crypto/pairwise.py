"""Keys that two neighbours derive together: the seed of their mask, and a key for the shares of each direction."""

from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256

from dpfedmeta.secure_aggregation.crypto.keys import Pair, committed, derived, sealed, unsealed
from dpfedmeta.secure_aggregation.crypto.shamir import SHARE_BYTES
from dpfedmeta.secure_aggregation.payloads import KeyList, Keys, Kind
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase, header
from dpfedmeta.secure_aggregation.round_parameters import Round


def graph_seed(round_: Round, listed: KeyList | None) -> bytes:
    """Seed of the graph, from the round and, with a malicious server, all clients' commitments and keys.

    Guarantee:
        With a malicious server every honest client's keys are in it, and all who accept one another's signatures hold
        the same list. A server that tries many lists with its colluding clients before it publishes one multiplies
        the 2^-40 of `neighbour_graph.parameters` by their number.
    """
    return sha256(b"graph" + bound_to(round_, listed)).digest()


def bound_to(round_: Round, listed: KeyList | None) -> bytes:
    """Digest to which everything after the keys is bound, up to the list of sharers."""
    return sha256(b"keys" + round_.digest + (b"" if listed is None else listed.encode())).digest()


def bound_to_sharers(bound: bytes, sharers: Collection[int]) -> bytes:
    """Digest to which everything after the list of sharers is bound: the masks, and the signatures that fix the list.

    Args:
        bound: Digest that the list itself is bound to (`bound_to`).
        sharers: Seats of the clients who shared, each with all of its neighbours on the list.
    """
    return sha256(b"sharers" + bound + b"".join(seat.to_bytes(4, "big") for seat in sorted(sharers))).digest()


def pair_context(bound: bytes, seat: int, keys: Keys, other: int, others: Keys) -> bytes:
    """Context from which both of a pair derive keys, beside their secret: the round, the two seats and their keys."""
    if seat > other:
        seat, keys, other, others = other, others, seat, keys
    return b"".join((bound, seat.to_bytes(4, "big"), other.to_bytes(4, "big"), keys.encoded, others.encoded))


def mask_seed(own: Pair, other: bytes, context: bytes) -> bytes:
    """256 bits that both of a pair derive.

    Args:
        own: One's mask keys.
        other: The neighbour's public mask key.
        context: Of the pair.

    Raises:
        Refused: The other key agrees on nothing secret.
    """
    return derived(own.agreed(other), b"mask of a pair" + context)


def own_seed(bound: bytes, seed: bytes, seat: int) -> bytes:
    """256 bits of a client's own mask."""
    return derived(seed, b"own mask" + bound + seat.to_bytes(4, "big"))


def commitment(round_: Round, seed: bytes, seat: int) -> bytes:
    """To the seed of one's own mask."""
    return committed(seed, round_.digest + seat.to_bytes(4, "big"))


def share_commitment(bound: bytes, dealer: int, holder: int, kind: Kind, share: int) -> bytes:
    """To one share, by who deals it: a wrong one that is revealed is then its holder's fault, and no other's.

    It says nothing of the share: as long as fewer than t are known, each of them has 256 random bits.
    """
    place = b"".join(seat.to_bytes(4, "big") for seat in (dealer, holder)) + bytes([kind])
    return committed(share.to_bytes(SHARE_BYTES, "big"), b"share" + bound + place)


@dataclass(frozen=True)
class ShareKeys:
    """Sealing of shares between two neighbours: a key for each direction, since a single one would use its nonce twice.

    Attributes:
        context: Context of the pair.
        out: Key towards the neighbour.
        back: Key from the neighbour.
    """

    context: bytes
    out: bytes
    back: bytes

    def sealed(self, round_: Round, seat: int, other: int, content: bytes) -> bytes:
        """For the neighbour."""
        return sealed(self.out, content, header(round_, ProtocolPhase.SHARES, seat, other) + self.context)

    def unsealed(self, round_: Round, seat: int, other: int, content: bytes) -> bytes:
        """Open shares that the neighbour sealed.

        Raises:
            Refused: The tag fails.
        """
        return unsealed(self.back, content, header(round_, ProtocolPhase.SHARES, other, seat) + self.context)


def channel(own: Pair, other: bytes, context: bytes, *, lower: bool) -> ShareKeys:
    """Between two neighbours.

    Args:
        own: One's share keys.
        other: The neighbour's public share key.
        context: Of the pair.
        lower: Whether one's own seat is the lower one.

    Raises:
        Refused: The other key agrees on nothing secret.
    """
    both = derived(own.agreed(other), b"shares" + context, 64)
    first, second = both[:32], both[32:]
    return ShareKeys(context, *((first, second) if lower else (second, first)))
