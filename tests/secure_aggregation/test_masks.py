import hashlib

import numpy as np
import pytest

from dpfedmeta.secure_aggregation.crypto import pairwise
from dpfedmeta.secure_aggregation.crypto.keys import Pair, committed, derived, sealed, unsealed
from dpfedmeta.secure_aggregation.crypto.masks import expand, packed, packed_size, reduced, unpacked
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused


def quarter(state, a, b, c, d):
    for first, second, third, turn in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
        state[first] = (state[first] + state[second]) % 2**32
        mixed = state[third] ^ state[first]
        state[third] = (mixed << turn | mixed >> (32 - turn)) % 2**32


def chacha20(key, blocks):
    """RFC 8439 by hand, nonce 0, from block 0 on."""
    stream = b""
    for counter in range(blocks):
        start = [0x61707865, 0x3320646E, 0x79622D32, 0x6B206574, *np.frombuffer(key, "<u4").tolist(), counter, 0, 0, 0]
        state = list(start)
        for _ in range(10):
            for quad in ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15)):
                quarter(state, *quad)
            for quad in ((0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)):
                quarter(state, *quad)
        stream += b"".join(((x + y) % 2**32).to_bytes(4, "little") for x, y in zip(state, start, strict=True))
    return stream


def test_masks_are_the_words_of_chacha20():
    key = bytes(range(32))
    stream = chacha20(key, 4)
    assert expand(key, 100, 16).tolist() == [int.from_bytes(stream[2 * i : 2 * i + 2], "little") for i in range(100)]
    twenty = reduced(expand(key, 50, 20), 20).tolist()
    assert twenty == [int.from_bytes(stream[4 * i : 4 * i + 4], "little") % 2**20 for i in range(50)]
    # For other implementations: the first words, and a digest of 32,768 of them.
    assert reduced(expand(key, 4, 12), 12).tolist() == [
        int.from_bytes(stream[2 * i : 2 * i + 2], "little") % 4096 for i in range(4)
    ]
    assert expand(key, 4, 16).tolist() == VECTOR
    assert hashlib.sha256(packed(expand(key, 32_768, 16), 16)).hexdigest() == DIGEST


VECTOR = [64825, 32043, 50649, 27161]
DIGEST = "4eac79ef7b5abe25b165ec416b302bfd422946a7bd7afc84c144937d1f561ce1"


@pytest.mark.parametrize("place", range(32))
def test_every_byte_of_the_key_counts(place):
    # A key that is folded to 32 bits, or a generator seeded with 32, repeats itself somewhere here.
    one, two = bytearray(32), bytearray(32)
    two[place] = 1
    assert (expand(bytes(one), 64, 16) != expand(bytes(two), 64, 16)).sum() > 50


def test_masks_are_uniform():
    words = reduced(expand(b"k" * 32, 2**16, 8), 8)
    counts = np.bincount(words, minlength=256)
    # chi-square with 255 degrees: 1e-9 above 406
    assert 150 < ((counts - 256) ** 2 / 256).sum() < 406


@pytest.mark.parametrize("bits", range(8, 33))
def test_vectors_take_exactly_their_bits_and_come_back(bits):
    words = reduced(expand(b"v" * 32, 77, bits), bits)
    content = packed(words, bits)
    assert len(content) == packed_size(77, bits) == -(-77 * bits // 8)
    assert (unpacked(content, 77, bits) == words).all()
    whole = int.from_bytes(content, "little")
    assert [whole >> bits * i & 2**bits - 1 for i in range(77)] == words.tolist()
    with pytest.raises(ValueError, match="bytes"):
        unpacked(content + b"\0", 77, bits)
    if 77 * bits % 8:
        with pytest.raises(ValueError, match="behind"):
            unpacked(content[:-1] + bytes([content[-1] | 0x80]), 77, bits)


def test_primitives_are_called_as_their_standards_say():
    # RFC 5869, test case 3: no salt, no info, 42 bytes.
    assert derived(b"\x0b" * 22, b"", 42).hex() == (
        "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"
    )
    # RFC 7748, section 5.2, one iteration.
    nine = bytes([9]) + bytes(31)
    assert Pair(nine).agreed(nine).hex() == "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    one, other = Pair(bytes(range(32))), Pair(bytes(range(1, 33)))
    assert one.agreed(other.public) == other.agreed(one.public)


@pytest.mark.parametrize("point", [bytes(32), bytes([1]) + bytes(31), (2**255 - 20).to_bytes(32, "little")])
def test_keys_that_agree_on_nothing_secret_are_refused(point):
    with pytest.raises(Refused, match="no secret can be agreed"):
        Pair(bytes(range(32))).agreed(point)


def test_what_is_sealed_opens_with_its_key_and_context_alone():
    content = sealed(b"k" * 32, b"two shares", b"here")
    assert unsealed(b"k" * 32, content, b"here") == b"two shares"
    for key, damaged, context in (
        (b"l" * 32, content, b"here"),
        (b"k" * 32, content, b"there"),
        (b"k" * 32, content[:-1] + bytes([content[-1] ^ 1]), b"here"),
        (b"k" * 32, content[:10], b"here"),
    ):
        with pytest.raises(Refused, match="tag"):
            unsealed(key, damaged, context)
    assert (
        len(
            {derived(b"s" * 32, b"a"), derived(b"s" * 32, b"b"), committed(b"s" * 32, b"a"), committed(b"s" * 32, b"b")}
        )
        == 4
    )


def test_the_two_directions_of_a_pair_have_keys_of_their_own():
    # One key for both would seal two contents with one nonce.
    one, other = Pair(b"1" * 32), Pair(b"2" * 32)
    mine = pairwise.channel(one, other.public, b"context", lower=True)
    theirs = pairwise.channel(other, one.public, b"context", lower=False)
    assert (mine.out, mine.back) == (theirs.back, theirs.out)
    assert mine.out != mine.back
    assert pairwise.mask_seed(one, other.public, b"context") == pairwise.mask_seed(other, one.public, b"context")
    assert len({mine.out, mine.back, pairwise.mask_seed(one, other.public, b"context")}) == 3
