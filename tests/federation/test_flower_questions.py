"""A client takes no question out of a server's messages that is longer, or in more parts, than it said."""

from types import SimpleNamespace

import httpx
import pytest
from flwr.app import Message
from flwr.common.serde import message_to_proto
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.task_identity import TaskIdentity

from dpfedmeta.federation.flower import flower_client
from dpfedmeta.federation.flower.flower_channel import record_of
from dpfedmeta.federation.flower.flower_client import _Node
from dpfedmeta.federation.flower.http_client import ConnectionRefused, TooLong, _Bounded, _Counted


@pytest.fixture(autouse=True)
def an_app(monkeypatch):
    """Flower's messages name the app that a process runs."""
    for name in ("_run_id", "_task_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 3, raising=False)


def node(content, most, *, damaged=False):
    """A connection on which one question waits; (it, what was fetched)."""
    message = Message(record_of(content), 7, "query")
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        parts, tree = get_all_nested_objects(message), get_object_tree(message)
    head = message_to_proto(Message(type(message.content)(), 7, "query"))
    head.metadata.CopyFrom(message_to_proto(message).metadata)
    fetched = []

    def pulled(request):
        fetched.append(request.object_id)
        return SimpleNamespace(object_content=b"" if damaged else parts[request.object_id].deflate())

    client = SimpleNamespace(
        PullMessages=lambda request: SimpleNamespace(messages_list=[head], message_object_trees=[tree]),
        PullObject=pulled,
        ConfirmMessageReceived=lambda request: None,
    )
    return _Node(client, Node(node_id=7), most), fetched


@pytest.mark.parametrize(("size", "taken"), [(99, True), (100, True), (101, False), (10_000, False)])
def test_a_question_is_as_long_as_was_said(size, taken):
    found, fetched = node(b"x" * size, 100)
    question, content = found._question()
    assert question is not None
    assert fetched
    assert content == (b"x" * size if taken else None)


def test_a_question_whose_parts_are_damaged_is_none():
    assert node(b"x", 100, damaged=True)[0]._question() == (None, None)


def test_a_question_without_parts_is_none():
    found, _ = node(b"x", 100)
    pulled = found._client.PullMessages(None)
    found._client.PullMessages = lambda request: SimpleNamespace(
        messages_list=pulled.messages_list, message_object_trees=[]
    )
    assert found._question() == (None, None)


@pytest.mark.parametrize("more", [[], ["0" * 64]])
def test_a_server_gets_the_parts_of_an_answer_and_no_others(more):
    found, _ = node(b"x", 100)
    question, _ = found._question()
    pushed = []

    def push(request):
        return SimpleNamespace(
            objects_to_push=[*(part.object_id for part in iterate_object_tree(request.message_object_trees[0])), *more],
            session_id="1",
        )

    found._client.PushMessages, found._client.PushObject = push, lambda request: pushed.append(request.object_id)
    assert found._send(Message(record_of(b"answer"), reply_to=question), question)
    assert len(pushed) == len({*pushed}) > 1
    assert not {*more} & {*pushed}


def test_a_question_of_many_parts_is_not_fetched(monkeypatch):
    monkeypatch.setattr(flower_client, "_MOST_PARTS", 1)
    found, fetched = node(b"x", 100)
    with pytest.raises(TooLong, match="more than 1 parts"):
        found._question()
    assert fetched == []
    said = []
    found.turn(None, said.append)
    assert said == ["dropped: the server's question has more than 1 parts"]


@pytest.mark.parametrize("question", [None, "question"])
@pytest.mark.parametrize("content", [None, b"content"])
def test_only_a_whole_question_is_answered(monkeypatch, question, content):
    asked, found = [], _Node(None, Node(node_id=7), 100)
    monkeypatch.setattr(found, "_question", lambda: (question, content))
    monkeypatch.setattr(found, "_send", lambda reply, asked_: True)
    monkeypatch.setattr(flower_client, "Message", lambda record, reply_to: reply_to)
    party = SimpleNamespace(answer=lambda content: asked.append(content) or b"answer")
    found.turn(party, lambda line: None)
    assert asked == ([b"content"] if question and content else [])


@pytest.mark.parametrize("taken", [True, False, 404])
def test_an_answer_that_nobody_wants_any_more_is_said_to_be_too_late(monkeypatch, taken):
    """It is charged all the same; what failed is the wire's, and the client goes on."""
    said, found = [], _Node(None, Node(node_id=7), 100)

    def sends(reply, question):
        if taken == 404:
            raise httpx.HTTPStatusError("x", request=None, response=httpx.Response(404))
        return taken

    monkeypatch.setattr(found, "_question", lambda: ("question", b"content"))
    monkeypatch.setattr(found, "_send", sends)
    monkeypatch.setattr(flower_client, "Message", lambda record, reply_to: reply_to)
    found.turn(SimpleNamespace(answer=lambda content: b"answer"), said.append)
    why = " (404)" if taken == 404 else ""
    assert said == ([] if taken is True else [
        f"the server did not accept an answer{why}: it came too late; its charge, if any, stays"])  # fmt: skip


@pytest.mark.parametrize("made", [_Bounded, _Counted])
def test_what_is_inside_is_closed_with_it(made):
    closed = []
    made(SimpleNamespace(close=lambda: closed.append(made)), 5).close()
    assert closed == [made]


@pytest.mark.parametrize(
    "leaving", [None, httpx.ReadError("gone"), ConnectionRefused("no"), ValueError("what"), KeyError]
)
@pytest.mark.parametrize("inside", [None, httpx.ReadError("lost")])
def test_a_client_says_goodbye_whatever_comes_of_it(monkeypatch, leaving, inside):
    """It goes on with what happened before; only an error of the program is one."""
    said, ended = [], []

    class Requests:
        def __init__(self, wire):
            said.append("open")

        def __enter__(self):
            return self

        def __exit__(self, *error):
            said.append("closed")

        def ActivateNode(self, request):
            return SimpleNamespace(node_id=17)

        def DeactivateNode(self, request):
            said.append(f"goodbye of {request.node_id}")
            if leaving is not None:
                raise leaving

    monkeypatch.setattr(flower_client, "Requests", Requests)
    monkeypatch.setattr(flower_client, "_beat", lambda wire, node, stopped: ended.append((node.node_id, stopped)))
    wire = SimpleNamespace(private=b"k" * 32, most_bytes=99)

    def attends():
        with flower_client._connected(wire) as found:
            assert (found._node.node_id, found._most) == (17, 99)
            assert not ended or not ended[0][1].is_set()
            if inside is not None:
                raise inside

    due = KeyError if leaving is KeyError else None if inside is None else httpx.ReadError
    if due is None:
        attends()
    else:
        with pytest.raises(due):
            attends()
    assert said == ["open", "goodbye of 17", "closed"]
    ((node, stopped),) = ended
    assert node == 17
    assert stopped.is_set()
