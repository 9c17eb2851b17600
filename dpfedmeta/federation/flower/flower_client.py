"""A client's end of the wire, over Flower: one process that asks for questions and answers them.

It speaks as a SuperNode does, but runs no app: what answers is what is installed here, whatever the server sends.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import httpx
from flwr.app import Message
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient

from dpfedmeta.core.errors import InputError
from dpfedmeta.federation.channel import Party
from dpfedmeta.federation.flower.flower_channel import content_of, record_of
from dpfedmeta.federation.flower.http_client import (
    ClockDiffers,
    ConnectionRefused,
    IdentityTaken,
    Requests,
    TooLong,
    Wire,
    wrong_certificate,
)
from dpfedmeta.federation.identity.credentials import wire_key
from dpfedmeta.training.terminal.progress_bar import Heartbeat

_MOST_PARTS = 8
_LONGEST_PAUSE = 10.0
_HEARTBEAT_PAUSE = 0.2
_TOO_LATE = "the server did not accept an answer{why}: it came too late; its charge, if any, stays"


def attend(
    party: Party,
    wire: Wire,
    *,
    over: Callable[[], bool] = lambda: False,
    say: Callable[[str], object] = lambda line: None,
) -> None:
    """Answer the questions of a server until it is over; a server that goes away is waited for.

    Args:
        party: Who answers.
        wire: How to reach the server.
        over: Whether there is nothing more to wait for; asked after each answer and every few seconds.
        say: Told in a line what happens to the connection.

    Raises:
        InputError: A wrong certificate or key, a client of this identity that is connected already, or a clock that
            differs from the server's for so long as `wire.patience` says.
        RuntimeError: No server for so long as `wire.patience` says.
    """
    lost: float | None = time.monotonic()
    told, pause = False, 0.25
    heart = Heartbeat(say=say).started()
    while not over():
        try:
            with _connected(wire) as node:
                heart.told(f"connected to {wire.server}")
                lost, told, pause = None, False, 0.25
                while not over():
                    _turn(node, party, say)
                    heart.beat(f"connected to {wire.server}; waiting for its next question")
        except IdentityTaken:
            reason = "a client of this identity is connected already"
            failure: Exception = InputError(f"{wire.server}: {reason}; stop that one, or use a key of your own")
            patience = min(wire.patience, 3 * HEARTBEAT_MIN_INTERVAL)
        except ClockDiffers as error:
            reason, patience = str(error), wire.patience
            failure = InputError(f"{wire.server}: {error}")
        except ConnectionRefused as error:
            raise InputError(f"{wire.server}: {error}") from None
        except (httpx.HTTPError, ValueError, TooLong) as error:
            if (wrong := wrong_certificate(error)) is not None:
                raise InputError(f"{wire.server}: is not the server of this federation: {wrong}") from None
            reason = str(error) if isinstance(error, TooLong) else "no answer"
            failure = RuntimeError(f"{wire.server}: the server did not answer for {wire.patience:.0f} s")
            patience = wire.patience
        else:
            return
        lost = lost or time.monotonic()
        if time.monotonic() - lost > patience:
            raise failure from None
        if not told:
            heart.told(f"{wire.server}: {reason}; trying again for {patience:.0f} s")
            told = True
        left = patience - (time.monotonic() - lost)
        heart.beat(f"{wire.server}: {reason}; trying again for {left:.0f} s more")
        # Not all of those that lost the same server at once.
        time.sleep(pause * random.uniform(0.5, 1.5))
        pause = min(2 * pause, _LONGEST_PAUSE)


def _turn(node: _Node, party: Party, say: Callable[[str], object]) -> None:
    """Wait for one question and answer it; a refusal on an open connection is raised as a connection error.

    So it does not end the client: a server that was started again first has to let this client in again.
    """
    try:
        node.turn(party, say)
    except ConnectionRefused as error:
        say(str(error))
        raise httpx.RemoteProtocolError(str(error)) from None


class _Node:
    """A connection that the server has let in."""

    def __init__(self, client: FleetHttpClient, node: Node, most_bytes: int) -> None:
        self._client, self._node, self._most = client, node, most_bytes

    def turn(self, party: Party, say: Callable[[str], object]) -> None:
        """Wait some seconds for a question, and answer it if one came."""
        try:
            question, content = self._question()
        except TooLong as error:
            say(f"dropped: {error}")
            return
        if question is None or content is None:
            return
        try:
            if not self._send(Message(record_of(party.answer(content)), reply_to=question), question):
                say(_TOO_LATE.format(why=""))
        except httpx.HTTPStatusError as error:
            say(_TOO_LATE.format(why=f" ({error.response.status_code})"))

    def _send(self, reply: Message, question: Message) -> bool:
        """Send a reply; False: the question is over, and the server wants no part of it."""
        reply.metadata.__dict__["_src_node_id"] = self._node.node_id
        with no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
        head = message_to_proto(Message(type(reply.content)(), reply_to=question))
        head.metadata.CopyFrom(message_to_proto(reply).metadata)
        response = self._client.PushMessages(
            PushMessagesRequest(node=self._node, messages_list=[head], message_object_trees=[tree])
        )
        for name in parts.keys() & set(response.objects_to_push):
            self._client.PushObject(
                PushObjectRequest(
                    node=self._node,
                    run_id=question.metadata.run_id,
                    session_id=response.session_id,
                    object_id=name,
                    object_content=parts[name].deflate(),
                )
            )
        return bool(response.objects_to_push)

    def _question(self) -> tuple[Message | None, bytes | None]:
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list or not response.message_object_trees:
            return None, None
        question, tree = message_from_proto(response.messages_list[0]), response.message_object_trees[0]
        names = [part.object_id for part in iterate_object_tree(tree)][: _MOST_PARTS + 1]
        if len(names) > _MOST_PARTS:
            raise TooLong(f"the server's question has more than {_MOST_PARTS} parts")
        run = question.metadata.run_id
        parts = {}
        for name in names:
            request = PullObjectRequest(node=self._node, run_id=run, object_id=name)
            parts[name] = self._client.PullObject(request).object_content
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=self._node, run_id=run, message_object_id=tree.object_id)
        )
        try:
            found = inflate_object_from_contents(tree.object_id, parts)
        except Exception:
            return None, None
        content = content_of(found) if isinstance(found, Message) else None
        return question, content if content is None or len(content) <= self._most else None


@contextmanager
def _connected(wire: Wire) -> Iterator[_Node]:
    """A node of Flower that is let in, with its heartbeat."""
    key = wire_key(wire.private)
    with Requests(wire) as client:
        request = ActivateNodeRequest(
            public_key=public_key_to_bytes(key.public_key()), heartbeat_interval=HEARTBEAT_MIN_INTERVAL
        )
        node = Node(node_id=client.ActivateNode(request).node_id)
        stopped = threading.Event()
        heart = threading.Thread(target=_beat, args=(wire, node, stopped), name="heartbeat", daemon=True)
        heart.start()
        try:
            yield _Node(client, node, wire.most_bytes)
        finally:
            stopped.set()
            with suppress(httpx.HTTPError, ConnectionRefused, ValueError):
                client.DeactivateNode(DeactivateNodeRequest(node_id=node.node_id))


def _beat(wire: Wire, node: Node, stopped: threading.Event) -> None:
    """The server holds each heartbeat for some seconds: it sees at once when this process has gone.

    Its connection is its own: closed by another thread while it connects, it would stay open.
    """
    with Requests(wire) as client:
        while not stopped.wait(_HEARTBEAT_PAUSE):
            try:
                client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL))
            except (httpx.HTTPError, ConnectionRefused, ValueError):
                stopped.wait(1)
