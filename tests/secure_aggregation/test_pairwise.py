"""Digests, commitments and keys of the protocol, byte for byte, by hashlib and hmac alone.

Where both sides leave a field out, they still understand each other: only bytes that are known elsewhere show it.
"""

import hmac
import struct
from dataclasses import fields, replace
from hashlib import sha256

import pytest
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from dpfedmeta.secure_aggregation.crypto import pairwise
from dpfedmeta.secure_aggregation.crypto.keys import Pair
from dpfedmeta.secure_aggregation.payloads import KeyList, Keys, Kind
from dpfedmeta.secure_aggregation.protocol_messages import ProtocolPhase
from dpfedmeta.secure_aggregation.round_parameters import Agreement, Identities, Round

RUN, SERVER, SECRET = b"r" * 32, b"s" * 32, b"x" * 32
ROSTER = {seat: bytes([9 - seat]) * 32 for seat in range(4)}
NUMBERS = (4, 5, 16, 3, 3, 0, 3, True)
PAIRS = {seat: (Pair(bytes([seat]) * 32), Pair(bytes([50 + seat]) * 32)) for seat in range(4)}
KEYS = {
    seat: Keys(ROSTER[seat], mask.public, share.public, bytes([100 + seat]) * 32)
    for seat, (mask, share) in PAIRS.items()
}
LISTED = KeyList(tuple((seat, keys.encoded, bytes([seat]) * 64) for seat, keys in KEYS.items()))


def a_round(**changes):
    names = [field.name for field in fields(Agreement)]
    agreement = Agreement(**dict(zip(names, NUMBERS, strict=True)))
    usual = {"run": RUN, "round": 3, "attempt": 1, "agreement": agreement, "server": SERVER}
    return Round(**({**usual, "identities": Identities(keys=ROSTER)} | changes))


def seat(number):
    return number.to_bytes(4, "big")


def hkdf(secret, info, size=32):
    """RFC 5869, without salt."""
    key, found, last = hmac.digest(bytes(32), secret, "sha256"), b"", b""
    while len(found) < size:
        last = hmac.digest(key, last + info + bytes([len(found) // 32 + 1]), "sha256")
        found += last
    return found[:size]


def digest_by_hand():
    roster = sha256(b"\0" + b"".join(ROSTER[number] for number in range(4))).digest()
    place = struct.pack(">H32sII", 2, RUN, 3, 1) + struct.pack(">8I", *map(int, NUMBERS))
    return sha256(b"dpfedmeta secure aggregation" + place + roster + SERVER).digest()


def bound_by_hand():
    entries = b"".join(seat(n) + KEYS[n].encoded + bytes([n]) * 64 for n in range(4))
    return sha256(b"keys" + digest_by_hand() + seat(4) + entries).digest()


def test_a_round_is_these_bytes():
    assert a_round().digest == digest_by_hand()


OTHERS = {
    "run": {"run": b"q" * 32},
    "round": {"round": 4},
    "attempt": {"attempt": 2},
    "server": {"server": b"t" * 32},
    "order of the roster": {"identities": Identities(keys={**ROSTER, 0: ROSTER[1], 1: ROSTER[0]})},
    "one identity": {"identities": Identities(keys={**ROSTER, 2: b"z" * 32})},
    **{
        name: {"agreement": replace(a_round().agreement, **{name: value})}
        for name, value in (("dimension", 6), ("bits", 17), ("fewest", 4), ("malicious", False))
    },
}


@pytest.mark.parametrize("field", OTHERS)
def test_whatever_differs_the_digest_does(field):
    assert a_round(**OTHERS[field]).digest != a_round().digest


def test_what_follows_the_keys_is_bound_to_these_bytes():
    bound = bound_by_hand()
    assert pairwise.bound_to(a_round(), LISTED) == bound
    assert pairwise.bound_to(a_round(), None) == sha256(b"keys" + digest_by_hand()).digest()
    assert pairwise.graph_seed(a_round(), LISTED) == sha256(b"graph" + bound).digest()
    assert pairwise.bound_to_sharers(bound, {2, 0}) == sha256(b"sharers" + bound + seat(0) + seat(2)).digest()


def test_commitments_are_these_bytes():
    bound = bound_by_hand()
    shown = sha256(b"commitment" + digest_by_hand() + seat(2) + SECRET).digest()
    assert pairwise.commitment(a_round(), SECRET, 2) == shown
    for kind in Kind:
        place = b"share" + bound + seat(1) + seat(3) + bytes([kind])
        by_hand = sha256(b"commitment" + place + (77).to_bytes(33, "big")).digest()
        assert pairwise.share_commitment(bound, 1, 3, kind, 77) == by_hand


@pytest.mark.parametrize(("own", "other"), [(1, 3), (3, 1)])
def test_keys_of_a_pair_and_of_one_client_are_these_bytes(own, other):
    bound = bound_by_hand()
    context = bound + seat(1) + seat(3) + KEYS[1].encoded + KEYS[3].encoded
    assert pairwise.pair_context(bound, own, KEYS[own], other, KEYS[other]) == context
    (mask, share), (theirs, their_share) = PAIRS[own], PAIRS[other]
    seed = hkdf(mask.agreed(theirs.public), b"mask of a pair" + context)
    assert pairwise.mask_seed(mask, theirs.public, context) == seed
    both = hkdf(share.agreed(their_share.public), b"shares" + context, 64)
    channel = pairwise.channel(share, their_share.public, context, lower=own < other)
    assert (channel.out, channel.back) == ((both[:32], both[32:]) if own < other else (both[32:], both[:32]))
    assert pairwise.own_seed(bound, SECRET, own) == hkdf(SECRET, b"own mask" + bound + seat(own))


def test_sealed_shares_are_these_bytes():
    bound = bound_by_hand()
    context = pairwise.pair_context(bound, 1, KEYS[1], 3, KEYS[3])
    channel = pairwise.channel(PAIRS[1][1], PAIRS[3][1].public, context, lower=True)
    front = struct.pack(">4sH32sIIBII", b"DPSA", 2, RUN, 3, 1, ProtocolPhase.SHARES, 1, 3)
    by_hand = ChaCha20Poly1305(channel.out).encrypt(bytes(12), b"two shares", front + context)
    assert channel.sealed(a_round(), 1, 3, b"two shares") == by_hand
