"""Clients that compute nothing, hundreds in one thread: they send what a client sends, byte for byte as long.

The package's own client takes a thread and a TLS context for each of its two connections. 500 of them in one process
wait for each other, and then it is their time that is measured, not the server's.
"""

from __future__ import annotations

import asyncio
import base64
import random
import ssl
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from flwr.app import Message
from flwr.common.constant import HEARTBEAT_MIN_INTERVAL, TIMESTAMP_HEADER
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import fleet_pb2, heartbeat_pb2, message_pb2
from flwr.proto.node_pb2 import Node
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE

from dpfedmeta.federation.flower.flower_channel import content_of, record_of
from dpfedmeta.federation.flower.flower_environment import PATIENT
from dpfedmeta.federation.identity.credentials import wire_key
from dpfedmeta.federation.identity.invitation import Invitation
from dpfedmeta.federation.wire_format import Question, QuestionKind, Said, answer, packed_floats
from dpfedmeta.secure_aggregation.crypto.keys import Identity

# Bytes of a task before the weights: the clip bound.
_BOUND_BYTES = 8
# Seconds: of one signature's use, between two heartbeats, before the next try and at most, and of all tries.
_SIGNATURE, _BEATS, _PAUSE, _LONGEST_PAUSE, _PATIENCE = 60.0, 0.2, 0.25, 10.0, 900.0
Response = TypeVar("Response")


class Stub:
    """A client that accepts every plan and sends zeros (a federation.channel.Party).

    Attributes:
        over: Whether the learned model was handed out.
    """

    def __init__(self, private: bytes, server: bytes) -> None:
        self._own, self._server, self.over = Identity(private), server, False

    @property
    def identity(self) -> bytes:
        """Its public key."""
        return self._own.public

    def answer(self, question: bytes) -> bytes:
        """The answer to one question, in its form."""
        asked = Question.opened(question, self._server, self.identity)
        if asked.asked is QuestionKind.PLAN:
            return answer(Said.ACCEPTED, question, b"", self._own)
        if asked.asked is QuestionKind.VECTOR:
            zeros = np.zeros((len(asked.body) - _BOUND_BYTES) // 4, dtype=np.float32)
            return answer(Said.VECTOR, question, packed_floats(zeros), self._own)
        self.over = True
        return answer(Said.ADAPTED, question, b"", self._own)


async def attend_all(
    privates: Sequence[bytes], told: Invitation, between: float, stub: Callable[[bytes, bytes], Stub] = Stub
) -> None:
    """All of them, until the model was handed out to each.

    Args:
        privates: Their identities.
        told: Where the server is, and its keys.
        between: Seconds between two that connect.
        stub: Makes a client from its identity and the server's.
    """
    context = ssl.create_default_context(cadata=told.authority.decode())
    running = []
    for private in privates:
        running.append(asyncio.ensure_future(_Attending(stub(private, told.identity), private, told, context).attend()))
        await asyncio.sleep(between)
    await asyncio.gather(*running)


class _Attending:
    """One client, with a connection for questions and one for heartbeats."""

    def __init__(self, stub: Stub, private: bytes, told: Invitation, context: ssl.SSLContext) -> None:
        self._stub, self._told, self._context = stub, told, context
        self._key = wire_key(private)
        self._pem = public_key_to_bytes(self._key.public_key())
        self._signed, self._made = "", -float("inf")

    async def attend(self) -> None:
        """Until the model was handed out; a connection that breaks is made again."""
        began, pause = time.monotonic(), _PAUSE
        while not self._stub.over:
            try:
                await self._connected()
            except (OSError, EOFError, RuntimeError):
                if time.monotonic() - began > _PATIENCE:
                    raise
                await asyncio.sleep(pause * random.uniform(0.5, 1.5))
                pause = min(2 * pause, _LONGEST_PAUSE)

    async def _connected(self) -> None:
        wire = await _Wire.opened(self)
        try:
            request = fleet_pb2.ActivateNodeRequest(public_key=self._pem, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
            node = Node(node_id=(await wire.post("activate-node", request, fleet_pb2.ActivateNodeResponse)).node_id)
            heart = asyncio.ensure_future(self._beat(node))
            try:
                while not self._stub.over:
                    await self._turn(wire, node)
            finally:
                heart.cancel()
        finally:
            wire.close()

    async def _beat(self, node: Node) -> None:
        request = heartbeat_pb2.SendNodeHeartbeatRequest(node=node, heartbeat_interval=HEARTBEAT_MIN_INTERVAL)
        while True:
            with suppress(OSError, EOFError, RuntimeError):
                wire = await _Wire.opened(self)
                try:
                    while True:
                        await wire.post("send-node-heartbeat", request, heartbeat_pb2.SendNodeHeartbeatResponse)
                        await asyncio.sleep(_BEATS)
                finally:
                    wire.close()
            await asyncio.sleep(random.uniform(0.5, 1.5))

    async def _turn(self, wire: _Wire, node: Node) -> None:
        request = fleet_pb2.PullMessagesRequest(node=node)
        found = await wire.post("pull-messages", request, fleet_pb2.PullMessagesResponse)
        if not found.messages_list:
            return
        question, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
        run, parts = question.metadata.run_id, {}
        for part in iterate_object_tree(tree):
            wanted = message_pb2.PullObjectRequest(node=node, run_id=run, object_id=part.object_id)
            pulled = await wire.post("pull-object", wanted, message_pb2.PullObjectResponse)
            parts[part.object_id] = pulled.object_content
        got = message_pb2.ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        await wire.post("confirm-message-received", got, message_pb2.ConfirmMessageReceivedResponse)
        try:
            inside = inflate_object_from_contents(tree.object_id, parts)
        except ValueError:
            return  # it came too late: the question is no longer there
        content = content_of(inside) if isinstance(inside, Message) else None
        if content is not None:
            await _answered(wire, node, question, self._stub.answer(content))

    def headers(self) -> str:
        """Of one request, after its first line."""
        if time.monotonic() - self._made > _SIGNATURE:
            stamp = now().isoformat()
            lines = {
                "host": self._told.server,
                "content-type": PROTOBUF_MEDIA_TYPE,
                TIMESTAMP_HEADER: stamp,
                FLEET_HTTP_PUBLIC_KEY_HEADER: base64.b64encode(self._pem).decode(),
                FLEET_HTTP_SIGNATURE_HEADER: base64.b64encode(sign_message(self._key, stamp.encode())).decode(),
                PATIENT: "1",
            }
            self._signed = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
            self._made = time.monotonic()
        return self._signed

    async def opened(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to the server."""
        host, _, port = self._told.server.rpartition(":")
        return await asyncio.open_connection(host, int(port), ssl=self._context, server_hostname=host)


class _Wire:
    """A connection of one client."""

    def __init__(self, client: _Attending, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client, self._reader, self._writer = client, reader, writer

    @classmethod
    async def opened(cls, client: _Attending) -> _Wire:
        """A new one."""
        return cls(client, *await client.opened())

    async def post(self, name: str, request: Any, kind: type[Response]) -> Response:
        """The answer to one request.

        Raises:
            RuntimeError: The server refuses it.
        """
        body = request.SerializeToString()
        head = f"POST /v1/fleet/{name} HTTP/1.1\r\n{self._client.headers()}content-length: {len(body)}\r\n\r\n"
        if self._reader.at_eof():  # the server closes what is idle, as between two requests of a busy client
            self._writer.close()
            self._reader, self._writer = await self._client.opened()
        self._writer.write(head.encode() + body)
        await self._writer.drain()
        lines = (await self._reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
        size = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:"))
        content = await self._reader.readexactly(size)
        if (status := int(lines[0].split()[1])) != 200:
            raise RuntimeError(f"{name}: {status}: {content[:200]!r}")
        found: Response = kind.FromString(content)  # type: ignore[attr-defined]
        return found

    def close(self) -> None:
        """End it."""
        self._writer.close()


async def _answered(wire: _Wire, node: Node, question: Message, content: bytes) -> None:
    """As `flower_client` sends an answer."""
    reply = Message(record_of(content), reply_to=question)
    reply.metadata.__dict__["_src_node_id"] = node.node_id
    with no_object_id_recompute():
        reply.metadata.__dict__["_message_id"] = reply.object_id
        parts, tree = get_all_nested_objects(reply), get_object_tree(reply)
    head = message_to_proto(Message(type(reply.content)(), reply_to=question))
    head.metadata.CopyFrom(message_to_proto(reply).metadata)
    pushed = fleet_pb2.PushMessagesRequest(node=node, messages_list=[head], message_object_trees=[tree])
    wanted = await wire.post("push-messages", pushed, fleet_pb2.PushMessagesResponse)
    for name in wanted.objects_to_push:
        part = message_pb2.PushObjectRequest(
            node=node,
            run_id=question.metadata.run_id,
            session_id=wanted.session_id,
            object_id=name,
            object_content=parts[name].deflate(),
        )
        await wire.post("push-object", part, message_pb2.PushObjectResponse)
