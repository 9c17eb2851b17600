"""Damaged messages of a federation's wire, also such as a server that went bad signs: each is refused, or is the one
message that has these bytes. Those of secure aggregation inside them: secure_aggregation/test_damaged_messages.py.

DPFEDMETA_FUZZ is their number in the slow test (100,000).
"""

import os
import random
from typing import Any

import numpy as np
import pytest

from dpfedmeta.federation.wire_format import (
    Attempt,
    Offer,
    ProtocolStep,
    Question,
    QuestionKind,
    RoundTask,
    Said,
    Start,
    answer,
    opened_answer,
)
from dpfedmeta.secure_aggregation.crypto.keys import SIGNATURE_BYTES, Identity
from dpfedmeta.secure_aggregation.crypto.protocol_errors import Refused

SERVER, CLIENT = Identity(bytes(32)), Identity(bytes([1]) * 32)
TASK = RoundTask(bound=0.5, model=np.arange(5, dtype=np.float32))
START = Start(invited=(0, 2, 3), task=TASK.encode())
OFFER = Offer(number=3, signature=bytes(range(64)), text=b'{"plan": 1}')
STEP = ProtocolStep(protocol=7, phase=3, said=START.encode())
BODIES: dict[QuestionKind, Any] = {
    QuestionKind.PLAN: OFFER,
    QuestionKind.VECTOR: TASK,
    QuestionKind.PHASE: STEP,
    QuestionKind.MODEL: TASK,
}
QUESTIONS = [
    Question(
        asked=kind, attempt=Attempt(run=bytes(32), round=4, again=again), plan=bytes(32), recipient=CLIENT.public,
        body=body.encode(),
    )
    for kind, body in BODIES.items()
    for again in ((), (1, 9))
]  # fmt: skip
ASKED = QUESTIONS[2].signed(SERVER)
ANSWERS = [answer(said, ASKED, b"body" if said else b"", CLIENT) for said in Said]
DECODED: dict[str, Any] = {
    "task": ([TASK], lambda body: RoundTask.decode(body, 5)),
    "start": ([START], lambda body: Start.decode(body, 4)),
    "offer": ([OFFER], Offer.decode),
    "step": ([STEP], ProtocolStep.decode),
}


def damaged(chance, content):
    found = bytearray(content)
    for _ in range(chance.randint(1, 3)):
        place, length = chance.randrange(len(found) + 1), chance.choice((1, 1, 2, 4, 8, 40))
        kind = chance.randrange(4)
        if kind == 0 and place < len(found):
            found[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            del found[place : place + length]
        elif kind == 2:
            found[place:place] = chance.choice((chance.randbytes(length), bytes(length), b"\xff" * length))
        else:
            found[place : place + length] = chance.choice((chance.randbytes(length), bytes(length), b"\xff" * length))
    return bytes(found)


def fuzz(count, seed):
    """(how many were tried, how many were accepted)."""
    chance, accepted, tried = random.Random(seed), 0, 0
    for number in range(count):
        kind, tried = number % 4, tried + 1
        try:
            if kind == 0:
                # On the way: whoever has no key changes nothing.
                whole = chance.choice(QUESTIONS).signed(SERVER)
                made = damaged(chance, whole)
                Question.opened(made, SERVER.public, CLIENT.public)
                assert made == whole
            elif kind == 1:
                whole = chance.choice(ANSWERS)
                made = damaged(chance, whole)
                opened_answer(made, Said.VECTOR, ASKED, CLIENT.public)
                assert made == whole
            elif kind == 2:
                # By the server itself.
                made = damaged(chance, chance.choice(QUESTIONS).signed(SERVER)[:-SIGNATURE_BYTES])
                made += SERVER.sign(made)
                assert Question.opened(made, SERVER.public, CLIENT.public).signed(SERVER) == made
            else:
                wholes, read = DECODED[chance.choice(list(DECODED))]
                made = damaged(chance, chance.choice(wholes).encode())
                assert read(made).encode() == made
        except Refused:
            continue
        accepted += 1
    return tried, accepted


def test_two_thousand_damaged_messages():
    tried, accepted = fuzz(2000, 1)
    assert tried == 2000
    # What the server signs itself is read; the rest is refused.
    assert 100 < accepted < 1500


@pytest.mark.slow
def test_a_hundred_thousand_damaged_messages():
    count = max(int(os.environ.get("DPFEDMETA_FUZZ", "0")), 100_000)
    tried, accepted = fuzz(count, random.randrange(2**32))
    print(f"\nfuzzed the wire: {tried} messages, {accepted} accepted, 0 crashes")
