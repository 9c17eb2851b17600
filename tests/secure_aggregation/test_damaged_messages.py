"""Messages cut, repeated, reordered, of other rounds, or rubbish: refused, never a traceback or a wrong sum.

DPFEDMETA_FUZZ is the number of inputs of each test (default 100,000 of the slow ones; `make test-slow`).
"""

import itertools
import os
import random
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from round_tables import Table, agreement, people, plain_sum

from dpfedmeta.secure_aggregation import Aborted, Refused
from dpfedmeta.secure_aggregation.crypto.keys import Identity
from dpfedmeta.secure_aggregation.payloads import (
    SEALED_BYTES,
    Agree,
    Ciphertexts,
    Dealt,
    KeyList,
    Keys,
    Kind,
    Masked,
    Reveal,
    ShareList,
    Signatures,
    Survivors,
)
from dpfedmeta.secure_aggregation.protocol_messages import EVERYONE, SERVER, ProtocolPhase, header, signed

COUNT = int(os.environ.get("DPFEDMETA_FUZZ", "100000"))
SPEAKING = [
    ProtocolPhase.KEYS,
    ProtocolPhase.SHARES,
    ProtocolPhase.AGREE,
    ProtocolPhase.MASKED,
    ProtocolPhase.CONSENT,
    ProtocolPhase.REVEAL,
]
HEARD = {
    ProtocolPhase.SHARES: ProtocolPhase.KEY_LIST,
    ProtocolPhase.AGREE: ProtocolPhase.SHARE_LIST,
    ProtocolPhase.MASKED: ProtocolPhase.AGREED,
    ProtocolPhase.CONSENT: ProtocolPhase.SURVIVORS,
    ProtocolPhase.REVEAL: ProtocolPhase.CONSENTS,
}
NUMBERS = agreement(5, malicious=True, adversarial=0.0, dropout=0.2)
FRONT = len(header(Table(NUMBERS).round, ProtocolPhase.KEYS, 0, SERVER))


DEALT = Ciphertexts((Dealt(1, bytes(SEALED_BYTES), bytes(32), bytes(32)),))
# A body of each kind, and what reads it.
BODIES = {
    "keys": (Keys(*(bytes([n]) * 32 for n in range(4))).encoded, Keys.decode),
    "a list of keys": (KeyList(((2, bytes(128), bytes(64)),)).encode(), KeyList.decode),
    "shares": (DEALT.encode(), Ciphertexts.decode),
    "sharers": (ShareList(frozenset({0, 1}), DEALT).encode(NUMBERS), lambda body: ShareList.decode(body, NUMBERS)),
    "an agreement": (Agree(bytes(64), (1, 3)).encode(), Agree.decode),
    "survivors": (
        Survivors(frozenset({0, 1}), frozenset({2})).encode(NUMBERS),
        lambda body: Survivors.decode(body, NUMBERS),
    ),
    "signatures": (Signatures(((1, bytes(64)),)).encode(), Signatures.decode),
    "revealed shares": (Reveal(((1, Kind.SEED, 5), (2, Kind.KEY, 7))).encode(), Reveal.decode),
}


@pytest.mark.parametrize("name", BODIES)
def test_whatever_value_a_byte_has_a_body_is_read_or_refused(name):
    """Every byte with every value: whoever may sign could end the server by any other error."""
    body, read = BODIES[name]
    read(body)
    for place, value in itertools.product(range(len(body)), range(256)):
        with suppress(Refused):
            read(body[:place] + bytes([value]) + body[place + 1 :])


def test_a_header_has_the_layout_that_is_written_down():
    """Independent of the code: two versions of this program, or another one, meet in these bytes."""
    round_ = replace(Table(NUMBERS).round, run=bytes(range(32)), round=3, attempt=2)
    start = b"DPSA" + b"\0\2" + bytes(range(32)) + b"\0\0\0\3" + b"\0\0\0\2"
    for phase, number in zip(ProtocolPhase, range(1, 12), strict=True):
        for recipient, address in ((7, "00000007"), (SERVER, "ffffffff"), (EVERYONE, "fffffffe")):
            written = start + bytes([number]) + b"\0\0\0\5" + bytes.fromhex(address)
            assert header(round_, phase, 5, recipient) == written


def damaged(chance, message, pool):
    """One to three changes: bits, cuts, repeats, pieces of other messages, numbers at the edges of what they can be."""
    content = bytearray(message)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(content) + 1)
        to = min(len(content), at + chance.choice([1, 2, 4, 33, 82, 196, 500]))
        kind = chance.randrange(7)
        if kind == 0 and at < len(content):
            content[at] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del content[at:to]
        elif kind == 2:
            content[at:at] = content[at:to]
        elif kind == 3:
            content = content[:at]
        elif kind == 4:
            other = chance.choice(pool)
            content[at:to] = other[at:to]
        elif kind == 5:
            content[at : at + 4] = chance.choice([bytes(4), b"\xff" * 4, b"\x7f\xff\xff\xff", bytes([0, 0, 0, 1])])
        else:
            content = bytearray(chance.choice(pool))
    return bytes(content)


def snapshot(client):
    """What brings a client back to where it was."""
    kept, secrets = dict(client.__dict__), client._secrets

    def again():
        client.__dict__.clear()
        client.__dict__.update(kept)
        client._secrets = secrets and replace(secrets, channels=dict(secrets.channels), shares=dict(secrets.shares))

    return again


def recorded():
    """Every message of a round, and of another round: (phase, up or down, seat) to bytes."""
    found = {}
    for number in (3, 4):
        table = Table(NUMBERS, number=number)
        while table.sent:
            phase = table.server.phase
            for seat, message in table.sent.items():
                found[number, phase, "down", seat] = message
                found[number, phase, "up", seat] = table.says(seat, message)
                table.server.receive(found[number, phase, "up", seat])
            table.sent = table.server.close()
        assert (table.server.sum().total == plain_sum(range(5), NUMBERS)).all()
    return found


@pytest.fixture(scope="module")
def messages():
    return recorded()


def fuzz(messages, count, seed, make):
    """`make(chance, phase, pool, message of seat 0 in that phase, way)` is tried on both sides in every phase."""
    chance, pool = random.Random(seed), [message for message in messages.values() if message]
    tried = accepted = 0
    table = Table(NUMBERS)
    while table.sent:
        phase, client = table.server.phase, table.clients[0]
        again = snapshot(client)
        for _ in range(count // 11 + 1):
            if phase is not ProtocolPhase.KEYS:
                accepted += heard(table, client, make(chance, table, phase, pool, "down"), again)
                tried += 1
            accepted += taken(table, make(chance, table, phase, pool, "up"), messages)
            tried += 1
        again()
        table.phase()
    # After all of it the round is what it would have been.
    assert (table.server.sum().total == plain_sum(range(5), NUMBERS)).all()
    assert tried >= count
    return accepted


def heard(table, client, message, again):
    again()
    try:
        table.says(0, message)
    except Aborted:
        assert client._secrets is None
        return False
    # What was accepted is what the server sent, down to the last bit.
    assert message == table.sent[0]
    return True


def taken(table, message, messages):
    try:
        seat = table.server.receive(message)
    except Refused:
        return False
    raise AssertionError(f"accepted what is said to be of seat {seat}: {message.hex()}")


def any_bytes(messages):
    def make(chance, table, phase, pool, way):
        if way == "down":
            return damaged(chance, table.sent[0], pool)
        original = messages[3, phase, "up", 0]
        pool = [other for key, other in messages.items() if key[0] == 4 or key[1] is not phase or key[2] == "down"]
        while (made := damaged(chance, original, [m for m in pool if m])) in messages.values() and made == original:
            continue
        return made

    return make


def test_a_few_hundred_damaged_messages(messages):
    fuzz(messages, 400, 1, any_bytes(messages))


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages(messages):
    fuzz(messages, COUNT, random.randrange(2**32), any_bytes(messages))


DECODERS = {
    (ProtocolPhase.KEYS, "up"): (Keys.decode, lambda body: body.encoded),
    (ProtocolPhase.SHARES, "down"): (KeyList.decode, KeyList.encode),
    (ProtocolPhase.SHARES, "up"): (Ciphertexts.decode, Ciphertexts.encode),
    (ProtocolPhase.AGREE, "down"): (lambda body: ShareList.decode(body, NUMBERS), lambda body: body.encode(NUMBERS)),
    (ProtocolPhase.AGREE, "up"): (Agree.decode, Agree.encode),
    (ProtocolPhase.MASKED, "down"): (Signatures.decode, Signatures.encode),
    (ProtocolPhase.MASKED, "up"): (lambda body: Masked.decode(body, NUMBERS), lambda body: body.encode(NUMBERS)),
    (ProtocolPhase.CONSENT, "down"): (lambda body: Survivors.decode(body, NUMBERS), lambda body: body.encode(NUMBERS)),
    (ProtocolPhase.REVEAL, "down"): (Signatures.decode, Signatures.encode),
    (ProtocolPhase.REVEAL, "up"): (Reveal.decode, Reveal.encode),
}


def canonical(messages, count, seed):
    chance, accepted = random.Random(seed), 0
    for (phase, way), (decode, encode) in DECODERS.items():
        body = messages[3, phase, way, 0][FRONT:-64]
        pool = [messages[4, phase, way, seat][FRONT:-64] for seat in range(5)]
        assert encode(decode(body)) == body
        for _ in range(count // len(DECODERS) + 1):
            made = damaged(chance, body, pool)
            try:
                found = decode(made)
            except Refused:
                continue
            assert encode(found) == made
            accepted += 1
    assert accepted > count // 20


def test_decoding_then_encoding_gives_the_same_bytes(messages):
    canonical(messages, 600, 2)


@pytest.mark.slow
def test_decoding_then_encoding_gives_the_same_bytes_a_hundred_thousand_times(messages):
    canonical(messages, COUNT, random.randrange(2**32))


def signed_rubbish(messages, count, seed):
    """Bodies that were damaged and then signed by who may sign: a server, or a client, that has gone bad itself."""
    chance = random.Random(seed)
    table = Table(NUMBERS)
    while table.sent:
        phase, client = table.server.phase, table.clients[0]
        again = snapshot(client)
        for _ in range(count // 11 + 1):
            again()
            if phase is not ProtocolPhase.KEYS:
                pool = [messages[4, phase, "down", seat][FRONT:-64] for seat in range(5)]
                body = damaged(chance, table.sent[0][FRONT:-64], pool)
                bound = b"" if phase is ProtocolPhase.SHARES else table.bound(0)
                message = signed(table.round, HEARD[phase], SERVER, 0, body, table.identity, bound)
                try:
                    table.says(0, message)
                except Aborted:
                    assert client._secrets is None
            again()
            pool = [messages[4, phase, "up", seat][FRONT:-64] for seat in range(5)]
            body = damaged(chance, messages[3, phase, "up", 0][FRONT:-64], pool)
            to = EVERYONE if phase in (ProtocolPhase.KEYS, ProtocolPhase.CONSENT) else SERVER
            bound = table.clients[1]._bound if phase is not ProtocolPhase.KEYS else b""
            if phase is ProtocolPhase.MASKED and len(body) == 10:
                continue  # a client may send any vector
            try:
                table.server.receive(signed(table.round, phase, 0, to, body, Identity(people(5)[0]), bound))
            except Refused:
                continue
            # What its keys, shares and reveals are, a client may choose; the round then ends without a
            # sum, or with the right one.
            return finish(table, again)
        again()
        table.phase()
    return True


def finish(table, again):
    again()
    try:
        for seat, message in table.sent.items():
            if seat != 0:
                table.server.receive(table.says(seat, message))
        table.sent = table.server.close()
        while table.sent:
            for seat, message in table.sent.items():
                if seat != 0:
                    table.server.receive(table.says(seat, message))
            table.sent = table.server.close()
        total = table.server.sum()
    except Aborted:
        return False
    assert (total.total == plain_sum(total.survivors, NUMBERS)).all()
    return True


def test_rubbish_from_who_may_sign(messages):
    ended = [signed_rubbish(messages, 60, seed) for seed in range(6)]
    assert len(ended) == 6


@pytest.mark.slow
def test_rubbish_from_who_may_sign_a_hundred_thousand_times(messages):
    for _ in range(COUNT // 200):
        signed_rubbish(messages, 200, random.randrange(2**32))
