"""Gate before Flower's server: it checks who speaks, limits the length of messages, and lets nodes wait for news.

Flower reads a whole request before it asks who sent it, and lets a node answer in another's name. The gate does
neither. Nodes wait without polling. Flower 1.41 needs it still: without it, a client's answer in another's name gets
code 200, and 300 MB that nobody signed are read to their end (`TestGate` of tests/federation/test_flower_wire.py).
"""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import datetime
from threading import Event
from typing import Any, TypeAlias

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.proto.fleet_pb2 import PushMessagesRequest
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from dpfedmeta.federation.flower.flower_environment import MOST_BYTES, ROOM_BYTES

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Application: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_FLEET = "/v1/fleet/"
_PULL, _HEARTBEAT, _PUSH, _OBJECT = (
    _FLEET + name for name in ("pull-messages", "send-node-heartbeat", "push-messages", "push-object")
)
_OTHERS = ("activate-node", "deactivate-node", "pull-object", "confirm-message-received", "get-run")
_PATHS = {_PULL, _HEARTBEAT, _PUSH, _OBJECT, *(_FLEET + name for name in _OTHERS)}
# A question that waits is fetched at once; Flower's own heartbeat gives up after 5 s.
_PULL_SECONDS, _HEARTBEAT_SECONDS = 8.0, 3.0
# A connection may break and come back: whoever is not heard of for so long after is gone.
_GRACE_SECONDS = 2.0
# A message, its record dictionary, its one record; Flower's own parts of a message are as many.
_MOST_OBJECTS = 8
# A body ends so many seconds after its headers, and later by the time that a slow line takes for its bytes.
_BODY_SECONDS, _SLOWEST_BYTES = 30.0, 20_000.0


class Gate:
    """An ASGI application before another one.

    Args:
        application: Flower's.
        nodes: Number of the node by its public key (PEM).
        gone: Called with the number of a node whose connections broke.
        most_bytes: The longest message; a longer one is not read, nor are several of one client that are together.
        signed: Called with the address of a connection on which a client of the roster speaks.
    """

    def __init__(
        self,
        application: Application,
        nodes: Mapping[bytes, int],
        gone: Callable[[int], object],
        most_bytes: int = MOST_BYTES,
        signed: Callable[[tuple[str, int]], object] = lambda address: None,
    ) -> None:
        self.arrived = Event()
        self._application, self._nodes, self._gone, self._signed = application, dict(nodes), gone, signed
        self._most = most_bytes + ROOM_BYTES
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = {node: asyncio.Event() for node in self._nodes.values()}
        # Requests so far and at the moment, and bytes of bodies that are being read, of each node.
        self._heard, self._open, self._reading = (dict.fromkeys(self._nodes.values(), 0) for _ in range(3))
        self._leaving: set[asyncio.Task[None]] = set()
        self._closed, self._closing = False, asyncio.Event()

    def wake(self, node: int) -> None:
        """Something waits for this node; from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._news[node].set)

    def close(self) -> None:
        """Let go of everybody who waits."""
        self._closed = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        self._loop = asyncio.get_running_loop()
        path: str = scope["path"]
        if scope["method"] != "POST" or path not in _PATHS:
            return await _refuse(send, 404, "this address serves only the clients of a federation")
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            node = self._authenticated(headers)
        except ValueError as error:
            return await _refuse(send, 401, str(error))
        if scope.get("client"):
            self._signed(scope["client"])
        self._heard[node] += 1
        self._open[node] += 1
        try:
            await self._admitted(path, node, headers, scope, receive, send)
        finally:
            self._open[node] -= 1

    async def _admitted(
        self, path: str, node: int, headers: Mapping[str, str], scope: Scope, receive: Receive, send: Send
    ) -> None:
        """A request of a node of the roster."""
        try:
            body = await self._body(node, headers, receive)
        except TimeoutError:
            return await _refuse(send, 408, "the body of this request did not come in time")
        if body is None:
            return await _refuse(send, 413, f"a client may send at most {self._most - ROOM_BYTES:,} bytes in all")
        if path == _PUSH and not _in_own_name(body, node):
            return await _refuse(send, 403, "the answer is in another client's name, or in too many parts")
        if path == _HEARTBEAT:
            # It counts from its arrival: one that is answered late must not bring back who has said goodbye.
            answer: list[Message] = []
            await self._application(scope, _once(body, receive), _kept(answer))
            if await self._waited(_HEARTBEAT_SECONDS, asyncio.Event(), node, receive):
                for message in answer:
                    await send(message)
            return None
        if path == _PULL:
            if not await self._waited(_PULL_SECONDS, self._news[node], node, receive):
                return None
            self._news[node].clear()
        if self._closed:
            return await _refuse(send, 503, "the server is stopping")
        await self._application(scope, _once(body, receive), send)
        if path in (_PUSH, _OBJECT):
            self.arrived.set()

    async def _body(self, node: int, headers: Mapping[str, str], receive: Receive) -> bytes | None:
        """Read a whole body; None where those of this node would be too long together, and then no more is read.

        Raises:
            TimeoutError: It did not end in time.
        """
        try:
            stated = int(headers.get("content-length", 0))
        except ValueError:
            return None
        parts: list[bytes] = []
        size = counted = 0

        def kept_free() -> bool:
            """Reserve room for the body, and return whether it fits.

            The announced length counts from the start, so that a node cannot begin many slow bodies at once.
            """
            nonlocal counted
            more = max(stated, size) - counted
            fits = self._reading[node] + more <= self._most
            if fits:
                self._reading[node] += more
                counted += more
            return fits

        try:
            async with asyncio.timeout(_BODY_SECONDS + max(stated, 0) / _SLOWEST_BYTES):
                more = stated >= 0
                while more and kept_free():
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    more = message.get("more_body", False)
                return b"".join(parts) if stated >= 0 and not more and kept_free() else None
        finally:
            self._reading[node] -= counted

    def _authenticated(self, headers: Mapping[str, str]) -> int:
        """Which node speaks.

        Raises:
            ValueError: None of the roster, in words that may be sent back.
        """
        try:
            key = base64.b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.lower()], validate=True)
            signature = base64.b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER.lower()], validate=True)
            stamp = headers[TIMESTAMP_HEADER.lower()]
            age = (now() - datetime.fromisoformat(stamp)).total_seconds()
        except (KeyError, ValueError, TypeError):
            raise ValueError("the request does not carry a client's key") from None
        if key not in self._nodes:
            raise ValueError("this key is not in the server's roster")
        if not verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature):
            raise ValueError("the signature does not fit the key")
        if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE:
            raise ValueError(f"this machine's clock differs from the server's by {abs(age):.0f} s; set it")
        return self._nodes[key]

    async def _waited(self, seconds: float, news: asyncio.Event, node: int, receive: Receive) -> bool:
        """Hold a request until there are news; whether there is still somebody to tell."""
        ends = (_disconnected(receive), self._closing.wait(), news.wait())
        waiting = [asyncio.ensure_future(end) for end in ends]
        await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        left = waiting[0].done()
        for task in waiting:
            task.cancel()
        if left:
            leaving = asyncio.ensure_future(self._leave(node, self._heard[node]))
            self._leaving.add(leaving)
            leaving.add_done_callback(self._leaving.discard)
        return not left

    async def _leave(self, node: int, heard: int) -> None:
        await asyncio.sleep(_GRACE_SECONDS)
        if self._heard[node] == heard and not self._open[node] and not self._closed:
            self._gone(node)


def _in_own_name(body: bytes, node: int) -> bool:
    """Check that a push request holds one message of this node, in no more parts than a message needs."""
    try:
        request = PushMessagesRequest.FromString(body)
    except DecodeError:
        return False
    trees, messages = request.message_object_trees, request.messages_list
    if len(messages) != 1 or len(trees) != 1 or messages[0].metadata.src_node_id != node:
        return False
    left, waiting = _MOST_OBJECTS, [trees[0]]
    while waiting:
        left -= 1
        if left < 0:
            return False
        waiting.extend(waiting.pop().children)
    return True


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _once(body: bytes, receive: Receive) -> Receive:
    """The body again, for the application behind."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _kept(answer: list[Message]) -> Send:
    """Return a `Send` that keeps the messages of the application behind it for later."""

    async def keep(message: Message) -> None:
        answer.append(message)

    return keep


async def _refuse(send: Send, status: int, reason: str) -> None:
    content = json.dumps({"detail": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})
