"""Messages of a federation as bytes: what is not laid out as it has to be is refused."""

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpfedmeta.federation.wire_format import (
    _QUESTION,
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


def test_an_opening_comes_back_as_it_was_sent():
    start = Start(invited=(0, 2, 3), task=b"task")
    assert Start.decode(start.encode(), 4) == start


@pytest.mark.parametrize(
    "invited",
    [(), (2,), (1, 1, 2), (1, 2, 2), (2, 1), (1, 2, 4), (0, 1, 2, 3, 3)],
    ids=["nobody", "one", "first twice", "last twice", "out of order", "unknown", "more than there are"],
)
def test_a_list_of_invited_clients_names_each_once_and_in_order(invited):
    with pytest.raises(Refused, match="invited clients"):
        Start.decode(Start(invited=invited, task=b"task").encode(), 4)


def test_a_list_that_is_cut_short_is_refused():
    whole = Start(invited=(0, 1, 2), task=b"").encode()
    for size in range(len(whole)):
        with pytest.raises(Refused, match="invited clients"):
            Start.decode(whole[:size], 4)


MODEL = np.arange(5, dtype=np.float32)
# (a message, how it is read, sizes at which it is whole).
WHOLE: dict[str, Any] = {
    "task": (RoundTask(bound=0.5, model=MODEL), lambda body: RoundTask.decode(body, 5), {28}),
    "step": (ProtocolStep(protocol=7, phase=3, said=b"abc"), ProtocolStep.decode, {5, 6, 7, 8}),
    "offer": (Offer(number=3, signature=bytes(64), text=b"plan"), Offer.decode, {69, 70, 71, 72}),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_a_message_comes_back_and_is_refused_where_it_is_cut(kind):
    message, read, whole = WHOLE[kind]
    body = message.encode() if kind != "offer" else b"\0\0\0\3" + bytes(64) + b"plan"
    found = read(body)
    assert all(np.array_equal(getattr(found, name), value) for name, value in vars(message).items())
    for size in range(len(body) + 1):
        if size not in whole:
            with pytest.raises(Refused):
                read(body[:size])
        else:
            read(body[:size])


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-300, 1e300, float("inf"), float("nan")])
def test_a_task_has_a_bound_and_a_model_of_numbers(bound):
    with pytest.raises(Refused, match="out of range"):
        RoundTask.decode(RoundTask(bound=bound, model=MODEL).encode(), 5)
    for value in (np.nan, np.inf):
        with pytest.raises(Refused, match="not finite"):
            RoundTask.decode(RoundTask(bound=0.5, model=np.where(MODEL == 3, value, MODEL).astype("f4")).encode(), 5)


SERVER, CLIENT, OTHER = (Identity(bytes([number]) * 32) for number in (1, 2, 3))
ASKED = Question(
    asked=QuestionKind.VECTOR, attempt=Attempt(run=b"r" * 32, round=3, again=(1, 7)), plan=b"p" * 32,
    recipient=CLIENT.public, body=b"task",
)  # fmt: skip


def resigned(message, place, value):
    """A field of the head in place of another one, signed by the server all the same."""
    front = bytearray(message[:-SIGNATURE_BYTES])
    front[place : place + len(value)] = value
    return bytes(front) + SERVER.sign(bytes(front))


def test_a_question_is_of_its_server_for_its_client_and_whole():
    message = ASKED.signed(SERVER)
    assert Question.opened(message, SERVER.public, CLIENT.public) == ASKED
    first = replace(ASKED, attempt=replace(ASKED.attempt, again=()))
    assert Question.opened(first.signed(SERVER), SERVER.public, CLIENT.public) == first
    for place in range(len(message)):
        with pytest.raises(Refused):
            damaged = message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
            Question.opened(damaged, SERVER.public, CLIENT.public)
    for size in (0, _QUESTION.size, len(message) - 1):
        with pytest.raises(Refused):
            Question.opened(message[:size], SERVER.public, CLIENT.public)
    for server, client, why in ((OTHER, CLIENT, "not signed by the server"), (SERVER, OTHER, "for another client")):
        with pytest.raises(Refused, match=why):
            Question.opened(message, server.public, client.public)
    with pytest.raises(Refused, match="unknown kind"):
        Question.opened(resigned(message, 6, b"\x63"), SERVER.public, CLIENT.public)
    with pytest.raises(Refused, match="version"):
        Question.opened(resigned(message, 4, struct.pack(">H", 99)), SERVER.public, CLIENT.public)
    with pytest.raises(Refused, match="not a question"):
        Question.opened(resigned(message, 0, b"XXXX"), SERVER.public, CLIENT.public)


def test_an_answer_is_to_its_question_by_its_client_and_of_the_kind_that_was_asked():
    question = ASKED.signed(SERVER)
    message = answer(Said.VECTOR, question, b"numbers", CLIENT)
    assert opened_answer(message, Said.VECTOR, question, CLIENT.public) == b"numbers"
    assert opened_answer(answer(Said.DECLINED, question, b"", CLIENT), Said.VECTOR, question, CLIENT.public) is None
    for place in range(len(message)):
        with pytest.raises(Refused):
            damaged = message[:place] + bytes([message[place] ^ 1]) + message[place + 1 :]
            opened_answer(damaged, Said.VECTOR, question, CLIENT.public)
    for wrong, why in (
        (answer(Said.DECLINED, question, b"but", CLIENT), "wrong kind"),
        (answer(Said.PHASE, question, b"numbers", CLIENT), "wrong kind"),
        (answer(Said.VECTOR, question + b"x", b"numbers", CLIENT), "another question"),
        (answer(Said.VECTOR, question, b"numbers", OTHER), "not signed by the client"),
    ):
        with pytest.raises(Refused, match=why):
            opened_answer(wrong, Said.VECTOR, question, CLIENT.public)
